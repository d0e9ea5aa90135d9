"""FedPer (Arivazhagan et al., 2019): by hand, and told apart from what is mistaken for it."""

from dataclasses import dataclass, replace

import pytest
import torch

from masquerade.core import ClientInfo, Message, Method, Part, Round, State, Task
from masquerade.core.tree import split
from masquerade.methods import FedPer
from tests.papers.chain import BODY, models, play, used
from tests.papers.replay import stage
from tests.support import advance, measure, raises, simulation

HAND = FedPer(lr=0.125, local_epochs=1)


def assert_two_rounds_by_hand(method: FedPer) -> None:
    """Hold two rounds against the arithmetic: the body is averaged, heads stay where they are."""
    # Round 0, b = h = 1, rate 1/8. A: hb − y = −2, both slopes −4, so b = h = 3/2.
    # B: hb − y = 2, both slopes 4, so b = h = 1/2. Averaged by samples: b = (3/2 + 3 · 1/2) / 4.
    assert used(*play(method, 1)) == [(0.75, 1.5), (0.75, 0.5)]
    # Round 1. A: hb = 9/8, off by −15/8; slopes −15/4 · b = −45/16 for h and −15/4 · h = −45/8 for
    # b, so h = 1.8515625 and b = 1.453125. B: hb = 3/8, off by 11/8; slopes 33/16 and 11/8, so
    # h = 0.2421875 and b = 0.578125. Averaged: b = (1.453125 + 3 · 0.578125) / 4 = 0.796875.
    assert used(*play(method, 2)) == [(0.796875, 1.8515625), (0.796875, 0.2421875)]


def test_fedper_by_hand() -> None:
    assert_two_rounds_by_hand(HAND)


def test_the_head_is_neither_at_the_server_nor_in_a_message() -> None:
    made, progress = play(HAND, 1)
    round = made.context.round("train", "train", 1)
    down = HAND.download(made.server.task, progress.server, {}, round)
    assert set(progress.server["params"]) == set(down["params"].values) == {BODY}
    client = HAND.client_init(made.server.task, made.server.clients[0])
    work = HAND.start(made.server.task, down, client, round)
    up, _ = HAND.finish(made.server.task, work, down, client, round)
    assert set(up["params"].values) == {BODY}


@dataclass(frozen=True, kw_only=True)
class HeadSent(FedPer):
    """Sends and averages the head with the body."""

    def server_init(self, task: Task) -> State:
        return Method.server_init(self, task)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        head, _ = split(work["params"], client["head"])
        return {"params": Part(work["params"])}, {"head": head}


class HeadAveraged(HeadSent):
    """Trains on from the averaged head."""

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        return Method.start(self, task, message, client, round)


class EvaluatedWithAveragedHead(HeadSent):
    """Trains its own head, and is evaluated with the averaged one."""

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        return Method.personalize(self, task, message, client, view)


@pytest.mark.parametrize("wrong", [HeadAveraged, EvaluatedWithAveragedHead])
def test_mistake_the_head_is_averaged(wrong: type[FedPer]) -> None:
    with pytest.raises(AssertionError):
        assert_two_rounds_by_hand(wrong(lr=0.125, local_epochs=1))


def assert_everybody_uses_the_newest_body(method: FedPer) -> None:
    made, _ = stage(method, 3)
    progress = made.begin()
    for _ in range(3):
        advance(made, progress)
    # Some clients were not sampled in the last round.
    assert len(made.server.participation.cohort(2)) < made.federation.clients
    for model in models(made, progress):
        for name, value in progress.server["params"].items():
            assert torch.equal(model["params"].values[name], value)


def test_everybody_uses_the_newest_body() -> None:
    assert_everybody_uses_the_newest_body(FedPer(local_epochs=1))


class BodyKept(FedPer):
    """Is evaluated with the body that a client had when it was last sampled."""

    def client_init(self, task: Task, info: ClientInfo) -> State:
        return {**super().client_init(task, info), "body": task.divide(self.personal_layers)[0]}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        up, held = super().finish(task, work, message, {"head": client["head"]}, round)
        body = message["params"].values if round.kind == "train" else client["body"]
        return up, {**held, "body": body}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        return {"params": Part(task.join(client["body"], client["head"]))}


def test_mistake_clients_that_were_not_sampled_use_a_stale_body() -> None:
    with pytest.raises(AssertionError):
        assert_everybody_uses_the_newest_body(BodyKept(local_epochs=1))


def test_as_many_layers_are_personal_as_asked() -> None:
    made, _ = stage(FedPer(personal_layers=2), 1)
    assert set(made.begin().server["params"]) == {"0.weight", "0.bias"}
    assert set(made.begin().clients.state["head"]) == {"2.weight", "2.bias", "4.weight", "4.bias"}


def test_a_network_without_a_shared_layer_is_refused() -> None:
    with raises("E202", "3"):
        stage(FedPer(personal_layers=3), 1)


class Untrained(FedPer):
    """Lets a client that comes after training use the body under a head that nobody trained."""

    joins = False


def assert_a_newcomer_trains_its_head(method: FedPer) -> None:
    """A client that comes after training uses a head that is not where everybody's began."""
    made = simulation(method)
    made = replace(made, server=replace(made.server, novel=(1,)))
    tests = list(made.federation.test)
    (model,) = measure(made, made.begin(), "personal", tests, novel=True).models
    _, head = made.server.task.divide(method.personal_layers)
    used = model["params"].values
    assert all(not torch.equal(used[name], value) for name, value in head.items())


def test_mistake_unseen_clients_have_an_untrained_head() -> None:
    assert_a_newcomer_trains_its_head(FedPer(local_epochs=2))
    with pytest.raises(AssertionError):
        assert_a_newcomer_trains_its_head(Untrained(local_epochs=2))
