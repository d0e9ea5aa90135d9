"""FedRep (Collins et al., 2021): by hand, against plain PyTorch, and against common mistakes."""

import copy

import pytest
import torch
from torch import nn

from masquerade.core import Batch, Round, Stage, State, Task
from masquerade.methods import FedRep
from tests.papers.chain import models, play, used
from tests.papers.replay import World, stage
from tests.support import advance

HAND = {"lr": 0.125, "local_epochs": 1, "head_epochs": 1, "final_epochs": 1}


def assert_one_round_by_hand(method: FedRep) -> None:
    """Hold a round and the final training of the heads against the arithmetic."""
    # From b = h = 1, rate 1/8. A, head: hb − y = −2, slope −4 · b, so h = 3/2.
    # A, body: 3/2 − 3 = −3/2, slope −3 · h = −9/2, so b = 1 + 9/16 = 25/16.
    # B, head: off by 2, slope 4, so h = 1/2; body: off by 3/2, slope 3 · 1/2, so b = 13/16.
    # Averaged by samples: b = (25/16 + 3 · 13/16) / 4 = 1.
    # In use, under b = 1. A: 3/2 − 3 = −3/2, slope −3, so h = 3/2 + 3/8 = 1.875.
    # B: 1/2 + 1 = 3/2, slope 3, so h = 1/2 − 3/8 = 0.125.
    assert used(*play(method)) == [(1.0, 1.875), (1.0, 0.125)]


def test_fedrep_by_hand() -> None:
    assert_one_round_by_hand(FedRep(**HAND))


class BodyFirst(FedRep):
    """Trains the body before the head."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return super().plan(task, round)[::-1]


class Together(FedRep):
    """Trains head and body at once, as FedPer does, for the same number of epochs."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        def model(work: State):
            return {**work["body"], **work["head"]}

        step = self.sgd_step(task, model=model, on=("body", "head"))
        return (Stage("both", step, self.head_epochs + self.local_epochs),)


class NeverFinal(FedRep):
    """Is evaluated with the heads of each client's last round."""

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return ()


@pytest.mark.parametrize("wrong", [BodyFirst, Together, NeverFinal])
def test_mistakes_in_what_is_trained_when(wrong: type[FedRep]) -> None:
    with pytest.raises(AssertionError):
        assert_one_round_by_hand(wrong(**HAND))


ROUNDS = 3
PAPER = FedRep(lr=0.2, local_epochs=2, head_epochs=3, final_epochs=4)


def replay(world: World) -> list[nn.Module]:
    """Play Algorithm 1 of the paper: the networks that the clients end with."""
    shared = copy.deepcopy(world.network)
    heads = [copy.deepcopy(shared[4]) for _ in world.federation.train]

    def joined(client: int) -> nn.Module:
        return nn.Sequential(*copy.deepcopy(shared)[:4], heads[client])

    def train(model: nn.Module, part: nn.Module, client: int, epochs: range, number: int) -> None:
        kind = "train" if number < ROUNDS else "adapt"
        optimizer = torch.optim.SGD(part.parameters(), lr=PAPER.lr * world.lr_decay**number)
        for epoch in epochs:
            for x, y in world.epoch(client, number, epoch, kind):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    for number in range(ROUNDS):
        bodies = {}
        for client in world.cohorts[number]:
            model = joined(client)
            train(model, model[4], client, range(3), number)
            train(model, model[:4], client, range(3, 5), number)
            bodies[client] = model[:4].state_dict()
        total = sum(world.share(client) for client in bodies)
        shares = {client: world.share(client) / total for client in bodies}
        mean = {
            name: sum(shares[client] * body[name] for client, body in bodies.items())
            for name in shared[:4].state_dict()
        }
        shared[:4].load_state_dict(mean)
    for client in range(world.federation.clients):
        model = joined(client)
        train(model, model[4], client, range(4), ROUNDS)
    return [joined(client) for client in range(world.federation.clients)]


def assert_equals_the_replay(method: FedRep) -> None:
    made, world = stage(method, ROUNDS)
    progress = made.begin()
    for _ in range(ROUNDS):
        advance(made, progress)
    for model, expected in zip(models(made, progress), replay(world), strict=True):
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(model["params"].values[name], value, rtol=0, atol=1e-6)


def test_three_rounds_equal_plain_pytorch() -> None:
    assert_equals_the_replay(PAPER)


@pytest.mark.parametrize("wrong", [BodyFirst, Together, NeverFinal])
def test_the_replay_rejects_the_same_mistakes(wrong: type[FedRep]) -> None:
    with pytest.raises(AssertionError):
        assert_equals_the_replay(wrong(lr=0.2, local_epochs=2, head_epochs=3, final_epochs=4))


def test_the_frozen_tree_keeps_its_bits_even_with_momentum_and_decay() -> None:
    method = FedRep(lr=0.2, local_epochs=1, head_epochs=1, momentum=0.9, weight_decay=0.1)
    made, world = stage(method, 1)
    round = made.context.round("train", "train", 0)
    batches = [Batch(x, y, None, torch.tensor(0)) for x, y in world.epoch(1, 0, 0)]
    body, head = made.server.task.divide(1)
    work = {"body": body, "head": head}
    stages = method.plan(made.server.task, round)
    assert [step.name for step in stages] == ["head", "body"]
    for step in stages:
        before, work = work, step.prepare(work, round)
        for batch in batches:
            work = step.step(work, batch, round)
        other = {"head": "body", "body": "head"}[step.name]
        assert all(torch.equal(work[other][name], value) for name, value in before[other].items())
        assert not any(
            torch.equal(work[step.name][name], value) for name, value in before[step.name].items()
        )


def test_the_final_training_leaves_no_trace_in_the_run() -> None:
    made, progress = play(FedRep(**HAND))
    before = {name: value.clone() for name, value in progress.tensors().items()}
    models(made, progress)
    assert all(torch.equal(value, before[name]) for name, value in progress.tensors().items())
