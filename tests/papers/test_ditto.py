"""Ditto (Li et al., 2021): by hand, against a replay, and against the usual mistakes."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from masquerade.core import Batch, Message, Method, Part, Round, Stage, State, Task
from masquerade.core.sgd import Losses
from masquerade.methods import Ditto, FedAvg
from tests.papers.replay import (
    SIZES,
    Weights,
    World,
    assert_same,
    average,
    gradient,
    line,
    stage,
    used,
    weights_of,
)
from tests.support import advance

HAND: dict[str, Any] = {"lr": 0.25, "local_epochs": 1, "personal_epochs": 2, "lam": 1.0}


def assert_two_rounds_by_hand(method: Method) -> None:
    """Hold a method against two rounds of the model y = w · x, worked out on paper."""
    # x = 1, rate 1/4, λ = 1. Client A wants y = 2, client B y = −2; the slope of the loss is
    # 2(v − y). One step takes the shared model of A to 1 and of B to −1: the server stays at 0.
    # Round 1, personal model of A, anchor w = 0, two steps:
    #   v = 0:  −4 + 1 · (0 − 0) = −4, v = 1;   then −2 + 1 · (1 − 0) = −1, v = 5/4.
    # Round 2, from v = 5/4, anchor again 0:
    #   −3/2 + 5/4 = −1/4, v = 21/16;   then −11/8 + 21/16 = −1/16, v = 85/64.
    samples = [[(1.0, 2.0)], [(1.0, -2.0)]]
    for rounds, expected in ((1, 5 / 4), (2, 85 / 64)):
        made, progress = line(method, samples, rounds)
        assert float(progress.server["params"]["weight"]) == 0
        own = [float(found["weight"]) for found in used(made, progress, "personal")]
        assert own == [expected, -expected]


def test_ditto_by_hand() -> None:
    assert_two_rounds_by_hand(Ditto(**HAND))


@dataclass(frozen=True, kw_only=True)
class AnchoredAtTheTrained(Ditto):
    """The mistake of pulling toward the model that was trained here, not the received one."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        shared, personal = super().plan(task, round)
        moved = replace(shared, then=lambda work, _: {**work, "anchor": work["params"]})
        return moved, personal


@dataclass(frozen=True, kw_only=True)
class Averaged(Ditto):
    """The mistake of sending the personal models and overwriting them by their mean."""

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        return super().start(task, message, {"own": message["params"].values}, round)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        return {"params": Part(work["own"])}, {"own": work["own"]}


@dataclass(frozen=True, kw_only=True)
class Unsquared(Ditto):
    """The mistake λ/2 · ‖v − w‖."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        def pulled(work: State, batch: Batch, round: Round) -> Losses:
            apart = [work["own"][name] - value for name, value in work["anchor"].items()]
            norm = torch.linalg.vector_norm(torch.cat([value.flatten() for value in apart]))
            return *task.losses(work["own"], batch), self.lam / 2 * norm

        shared, personal = super().plan(task, round)
        return shared, replace(personal, step=self.sgd_step(task, pulled, on=("own",)))


@pytest.mark.parametrize("wrong", [AnchoredAtTheTrained, Averaged, Unsquared])
def test_a_wrong_anchor_average_or_norm_is_noticed(wrong: type[Ditto]) -> None:
    with pytest.raises(AssertionError):
        assert_two_rounds_by_hand(wrong(**HAND))


def replayed(world: World, paper: Ditto, rounds: int) -> tuple[Weights, list[Weights]]:
    """Play Algorithm 1 of the paper, with UPDATE_GLOBAL of FedAvg: (w, every client's v)."""
    w = weights_of(world.network)
    own = [dict(w) for _ in SIZES]
    for number in range(rounds):
        lr, trained = paper.lr * world.lr_decay**number, []
        for client in world.cohorts[number]:
            local, v = dict(w), own[client]
            for x, y in world.batches(client, number, paper.local_epochs):
                g = gradient(world.network, local, x, y)
                local = {name: value - lr * g[name] for name, value in local.items()}
            for x, y in world.batches(client, number, paper.personal_epochs):
                g = gradient(world.network, v, x, y)
                v = {n: v[n] - lr * (g[n] + paper.lam * (v[n] - w[n])) for n in v}
            trained.append(local)
            own[client] = v
        w = average(world, number, trained)
    return w, own


def test_three_rounds_equal_a_replay() -> None:
    method = Ditto(lr=0.2, local_epochs=2, personal_epochs=3, lam=0.7)
    made, world = stage(method, 3)
    progress = made.begin()
    for _ in range(3):
        advance(made, progress)
    w, own = replayed(world, method, 3)
    assert_same(progress.server["params"], w)
    for found, v in zip(used(made, progress, "personal"), own, strict=True):
        assert_same(found, v)


def test_the_view_global_is_fedavg_and_personal_models_never_travel() -> None:
    common: dict[str, Any] = {"lr": 0.2, "local_epochs": 2, "momentum": 0.5}
    runs = []
    for method in (FedAvg(**common), Ditto(**common)):
        made, _ = stage(method, 3)
        progress = made.begin()
        for _ in range(3):
            advance(made, progress)
        runs.append((used(made, progress, "global"), progress.costs["train"]["up"]))
    (theirs, sent), (ours, also_sent) = runs
    assert sent == also_sent
    for one, other in zip(theirs, ours, strict=True):
        assert all(torch.equal(value, other[name]) for name, value in one.items())
