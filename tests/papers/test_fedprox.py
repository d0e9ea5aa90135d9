"""FedProx: by hand, and against a second text of it."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from masquerade.core import Batch, Method, Round, Stage, State, Task
from masquerade.core.sgd import Losses
from masquerade.methods import FedAvg, FedProx
from tests.papers.plain import SGD, follow, one_weight, played
from tests.papers.replay import Weights

PULL = 0.7


def squared(here: Weights, received: Weights) -> Tensor:
    """Return μ/2 · ‖w − w_t‖²."""
    apart = [(here[name] - received[name]).square().sum() for name in here]
    return PULL / 2 * torch.stack(apart).sum()


def assert_half_the_squared_pull(method: Method) -> None:
    """Hold FedProx against F(w) + μ/2 · ‖w − w_t‖²."""
    made, plain = played(method)
    follow(made, replace(plain, penalty=squared))


@dataclass(frozen=True, kw_only=True)
class Unsquared(FedProx):
    """The mistake μ/2 · ‖w − w_t‖."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        def pulled(work: State, batch: Batch, round: Round) -> Losses:
            apart = [work["params"][name] - value for name, value in work["anchor"].items()]
            norm = torch.linalg.vector_norm(torch.cat([value.flatten() for value in apart]))
            return *task.losses(work["params"], batch), self.mu / 2 * norm

        return (Stage("train", self.sgd_step(task, pulled), self.local_epochs),)


@dataclass(frozen=True, kw_only=True)
class WithoutHalf(FedProx):
    """The mistake μ · ‖w − w_t‖²."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return replace(FedProx(**SGD), mu=2 * self.mu).plan(task, round)


def test_fedprox_equals_its_reference() -> None:
    assert_half_the_squared_pull(FedProx(**SGD, mu=PULL))


@pytest.mark.parametrize("wrong", [Unsquared, WithoutHalf, FedAvg])
def test_another_pull_than_half_the_squared_distance_is_noticed(wrong: type[Method]) -> None:
    settings: dict[str, Any] = {"mu": PULL} if issubclass(wrong, FedProx) else {}
    with pytest.raises(AssertionError):
        assert_half_the_squared_pull(wrong(**SGD, **settings))


def test_fedprox_by_hand() -> None:
    # One client, y = 2, rate 1/4, μ = 2, two steps. From w = 0 the pull is 0: slope −4, w = 1.
    # Then the slope of the loss is 2(1 − 2) = −2 and of the pull μ(w − 0) = 2: they cancel, w = 1.
    # Without the half the pull would be 4, and w = 1/2.
    # With the norm un-squared the pull would be μ/2 · sign(w) = 1, and w = 5/4.
    samples = [[(1.0, 2.0)]]
    assert one_weight(FedProx(lr=0.25, local_epochs=2, mu=2.0), samples) == 1.0
    # Without a pull: 1 + 1/4 · 2 = 3/2.
    assert one_weight(FedProx(lr=0.25, local_epochs=2, mu=0.0), samples) == 1.5
