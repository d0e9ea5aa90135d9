"""pFedMe (Dinh et al., 2020): by hand, against a replay, and against the usual mistakes."""

from dataclasses import dataclass
from typing import Any

import pytest

from masquerade.core import Message, Round, State, Task
from masquerade.core.sgd import Loss, SGDStep
from masquerade.methods import PFedMe
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

HAND: dict[str, Any] = {
    "lr": 0.25,
    "local_epochs": 2,
    "lam": 2.0,
    "inner_steps": 2,
    "personal_lr": 0.125,
    "server_mix": 0.5,
}


def assert_a_round_by_hand(method: PFedMe) -> None:
    """Hold a method against a round of the model y = w · x, worked out on paper."""
    # One client, x = 1, y = 2: the slope of the loss is 2(θ − 2). λ = 2, η λ = 1/2, K = 2 steps of
    # 1/8, and two batches of one sample (two epochs).
    # Batch 1, w = 0.    θ = 0:     −4 + 2 · 0 = −4, θ = 1/2
    #                    θ = 1/2:   −3 + 2 · (1/2 − 0) = −2, θ = 3/4
    #                    w = 0 + 1/2 · 3/4 = 3/8
    # Batch 2, w = 3/8.  θ = 3/8:   −13/4 + 2 · 0 = −13/4, θ = 25/32
    #                    θ = 25/32: −39/16 + 2 · (25/32 − 3/8) = −13/8, θ = 63/64
    #                    w = 3/8 + 1/2 · (63/64 − 3/8) = 87/128
    # The server goes half the way (β = 1/2) from 0 to w = 87/128.
    made, progress = line(method, [[(1.0, 2.0)]])
    assert float(progress.server["params"]["weight"]) == 87 / 256
    assert float(used(made, progress, "global")[0]["weight"]) == 87 / 256
    assert float(used(made, progress, "personal")[0]["weight"]) == 63 / 64


def test_pfedme_by_hand() -> None:
    assert_a_round_by_hand(PFedMe(**HAND))


@dataclass(frozen=True, kw_only=True)
class NeverWrittenBack(PFedMe):
    """The mistake of forgetting θ, so that the initial weights are what is used."""

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        return super().finish(task, work, message, client, round)[0], client


@dataclass(frozen=True, kw_only=True)
class OwnCenter(PFedMe):
    """The mistake of pulling θ toward itself, which is no pull."""

    def sgd_step(self, task: Task, loss: Loss | None = None, **changes: Any) -> SGDStep:
        return super().sgd_step(task, loss, **changes | {"toward": "own"})


@pytest.mark.parametrize("wrong", [NeverWrittenBack, OwnCenter])
def test_a_theta_that_is_forgotten_or_pulled_toward_itself_is_noticed(wrong: type[PFedMe]) -> None:
    with pytest.raises(AssertionError):
        assert_a_round_by_hand(wrong(**HAND))


def replayed(world: World, paper: PFedMe, rounds: int) -> tuple[Weights, list[Weights]]:
    """Play Algorithm 1 of the paper at the sampled clients: (w, every client's θ)."""
    w = weights_of(world.network)
    own = [dict(w) for _ in SIZES]
    for number in range(rounds):
        lr, trained = paper.lr * world.lr_decay**number, []
        for client in world.cohorts[number]:
            local = dict(w)
            for x, y in world.batches(client, number, paper.local_epochs):
                theta = dict(local)
                for _ in range(paper.inner_steps):
                    g = gradient(world.network, theta, x, y)
                    slope = {n: g[n] + paper.lam * (theta[n] - local[n]) for n in theta}
                    theta = {n: theta[n] - paper.personal_lr * slope[n] for n in theta}
                local = {n: local[n] - lr * paper.lam * (local[n] - theta[n]) for n in local}
            own[client] = theta
            trained.append(local)
        mean = average(world, number, trained)
        w = {n: (1 - paper.server_mix) * w[n] + paper.server_mix * mean[n] for n in w}
    return w, own


def test_three_rounds_equal_a_replay() -> None:
    method = PFedMe(
        lr=0.1, local_epochs=2, lam=4.0, inner_steps=3, personal_lr=0.15, server_mix=1.5
    )
    made, world = stage(method, 3)
    progress = made.begin()
    for _ in range(3):
        advance(made, progress)
    w, own = replayed(world, method, 3)
    assert_same(progress.server["params"], w)
    for found, theta in zip(used(made, progress, "personal"), own, strict=True):
        assert_same(found, theta)
