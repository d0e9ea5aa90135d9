"""FedBABU (Oh et al., 2022): worked by hand, and told apart from what is mistaken for it."""

from dataclasses import replace

import pytest
import torch

from masquerade.core import ClientInfo, Message, Method, Round, Stage, State, Task
from masquerade.methods import FedAvg, FedBABU
from tests.papers.chain import BODY, models, play, used
from tests.papers.replay import stage
from tests.support import advance, measure

HAND = {"lr": 0.125, "local_epochs": 1, "tune_lr": 0.125, "tune_epochs": 1}


def assert_one_round_by_hand(method: FedBABU) -> None:
    """Hold a round and the fine-tuning against the arithmetic."""
    # From b = h = 1, rate 1/8, the body alone. A: hb − y = −2, slope −4, so b = 3/2.
    # B: off by 2, slope 4, so b = 1/2. Averaged by samples: b = (3/2 + 3 · 1/2) / 4 = 3/4; h = 1.
    # In use, both at once. A: 3/4 − 3 = −9/4; slopes −9/2 · b = −27/8 for h, −9/2 for b,
    # so b = 3/4 + 9/16 = 1.3125 and h = 1 + 27/64 = 1.421875.
    # B: 3/4 + 1 = 7/4; slopes 21/8 for h, 7/2 for b, so b = 0.3125 and h = 1 − 21/64 = 0.671875.
    assert used(*play(method)) == [(1.3125, 1.421875), (0.3125, 0.671875)]


def test_fedbabu_by_hand() -> None:
    assert_one_round_by_hand(FedBABU(**HAND))


class Untuned(FedBABU):
    """Is evaluated without the fine-tuning."""

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return ()


def test_mistake_evaluated_without_fine_tuning() -> None:
    with pytest.raises(AssertionError):
        assert_one_round_by_hand(Untuned(**HAND))


STILL = {"tune_lr": 0.0, "weight_decay": 0.1, "local_epochs": 2}


def assert_heads_are_the_common_initial_one(method: FedBABU) -> None:
    """Without a rate for fine-tuning, every head is as it began, bit for bit; bodies are not."""
    made, _ = stage(method, 2)
    progress = made.begin()
    for _ in range(2):
        advance(made, progress)
    body, head = made.server.task.divide(1)
    for model in models(made, progress):
        values = model["params"].values
        assert all(torch.equal(values[name], value) for name, value in head.items())
        assert not any(torch.equal(values[name], value) for name, value in body.items())


def test_heads_stay_at_their_common_initial_weights_during_training() -> None:
    assert_heads_are_the_common_initial_one(FedBABU(**STILL))


class HeadTrained(FedBABU):
    """Trains, sends and averages the head too."""

    def server_init(self, task: Task) -> State:
        return Method.server_init(self, task)

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        return Method.start(self, task, message, client, round)

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return Method.plan(self, task, round)


class HeadDecayed(HeadTrained):
    """Takes no gradient of the head, and lets weight decay have it."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        _, head = task.divide(1)

        def model(work: State):
            still = {name: work["params"][name].detach() for name in head}
            return {**work["params"], **still}

        return (Stage("train", self.sgd_step(task, model=model), self.local_epochs),)


class OwnHeads(FedBABU):
    """Draws another random head for every client."""

    def client_init(self, task: Task, info: ClientInfo) -> State:
        return {"head": {name: task.fresh(info.id)[name] for name in task.last(1)}}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        work = super().start(task, message, client, round)
        return work if round.kind == "train" else {"params": {**work["params"], **client["head"]}}


@pytest.mark.parametrize("wrong", [HeadTrained, HeadDecayed, OwnHeads])
def test_mistakes_in_what_holds_the_head_still(wrong: type[FedBABU]) -> None:
    with pytest.raises(AssertionError):
        assert_heads_are_the_common_initial_one(wrong(**STILL))


def test_only_the_body_crosses_and_nothing_is_stored() -> None:
    method = FedBABU(**HAND)
    made, progress = play(method)
    round = made.context.round("train", "train", 1)
    down = method.download(made.server.task, progress.server, {}, round)
    work = method.start(made.server.task, down, {}, round)
    up, held = method.finish(made.server.task, work, down, {}, round)
    assert set(down["params"].values) == set(up["params"].values) == {BODY}
    assert held == {}


def test_fine_tuning_never_feeds_back() -> None:
    _, progress = play(FedBABU(**HAND), 2)
    again, other = play(FedBABU(**HAND), 1)
    models(again, other)
    advance(again, other)
    assert torch.equal(progress.server["params"][BODY], other.server["params"][BODY])


def test_without_a_head_it_is_fedavg_with_fine_tuning() -> None:
    found = []
    for method in (FedBABU(head_layers=0, local_epochs=1), FedAvg(local_epochs=1)):
        made, _ = stage(method, 2)
        progress = made.begin()
        for _ in range(2):
            advance(made, progress)
        found.append(measure(made, progress, "tuned", list(made.federation.test)).models)
    for ours, theirs in zip(*found, strict=True):
        for name, value in theirs["params"].values.items():
            assert torch.equal(ours["params"].values[name], value)


def test_the_rate_of_fine_tuning_is_its_own() -> None:
    slow = replace(FedBABU(**HAND), tune_lr=0.0)
    made, progress = play(slow)
    assert used(made, progress) == [(0.75, 1.0)] * 2
