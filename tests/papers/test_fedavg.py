"""FedAvg, FedAvg+FT, FedProx and Local: by hand, and against a second text of each."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from masquerade.core import Batch, Cohort, Message, Method, Round, Stage, State, Task, Tree, tree
from masquerade.methods import FedAvg, FedProx, Local
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests.papers import replay
from tests.papers.reference import Plain
from tests.papers.replay import Weights, assert_same, line, stage
from tests.support import advance, measure

ROUNDS = 4
SGD: dict[str, Any] = {"lr": 0.2, "local_epochs": 2, "momentum": 0.5, "weight_decay": 0.01}


def played(method: Method) -> tuple[Simulation, Plain]:
    """Return a simulation of a method, and the reference that is to follow it."""
    made, world = stage(method, ROUNDS)
    return made, Plain(world, method.lr, method.local_epochs, method.momentum, method.weight_decay)


def follow(made: Simulation, plain: Plain) -> RunState:
    """Advance a simulation to its end and compare the server with the reference in every round."""
    progress, weights = made.begin(), replay.weights_of(plain.world.network)
    for number in range(ROUNDS):
        advance(made, progress)
        weights = plain.average(weights, number)
        assert_same(progress.server["params"], weights)
    return progress


def test_fedavg_equals_its_reference() -> None:
    follow(*played(FedAvg(**SGD)))


def test_a_tuned_copy_equals_its_reference_and_never_feeds_back() -> None:
    made, plain = played(FedAvg(**SGD, tune_lr=0.05, tune_epochs=3))
    tune = Plain(plain.world, 0.05, 3, plain.momentum, plain.decay)
    progress, weights = made.begin(), replay.weights_of(plain.world.network)
    for number in range(ROUNDS):
        advance(made, progress)
        weights = plain.average(weights, number)
        models = measure(made, progress, "tuned", list(made.federation.test)).models
        for client, model in enumerate(models):
            copy = tune.train(weights, client, number + 1, "adapt")
            assert_same(model["params"].values, copy)
            assert not torch.equal(copy["0.weight"], weights["0.weight"])
        # Were a tuned copy averaged or kept, the next round would show it.
        assert_same(progress.server["params"], weights)
        shared = measure(made, progress, "global", list(made.federation.test)).models
        assert all(
            torch.equal(value, model["params"].values[name])
            for model in shared
            for name, value in progress.server["params"].items()
        )


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
        def pulled(work: State, batch: Batch, round: Round) -> tuple[Tensor, Tree]:
            loss, buffers = task.loss(work["params"], batch)
            apart = [work["params"][name] - value for name, value in work["anchor"].items()]
            norm = torch.linalg.vector_norm(torch.cat([value.flatten() for value in apart]))
            return loss + self.mu / 2 * norm, buffers

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


@dataclass(frozen=True, kw_only=True)
class WeightedByAll(FedAvg):
    """The mistake of weighting by everybody's data: unsampled clients count as the old model."""

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        mean, rows = super().aggregate(task, server, rows, uploads, cohort, round)
        share = float(cohort.samples.sum()) / sum(replay.SIZES)
        params = tree.blend(server["params"], mean["params"], share, task.trainable)
        return {"params": params}, rows


def test_weighting_by_all_clients_data_is_noticed() -> None:
    with pytest.raises(AssertionError):
        follow(*played(WeightedByAll(**SGD)))


@dataclass(frozen=True, kw_only=True)
class FedBack(FedAvg):
    """The mistake of fine-tuning inside the round, so that the tuned copy is sent."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        tune = self.sgd_step(task, lr=self.tune_lr)
        return (*super().plan(task, round), Stage("tune", tune, self.tune_epochs))


def test_a_fine_tuned_copy_that_is_fed_back_is_noticed() -> None:
    with pytest.raises(AssertionError):
        follow(*played(FedBack(**SGD)))


def test_local_equals_its_reference() -> None:
    made, plain = played(Local(**SGD))
    progress = made.begin()
    own = [replay.weights_of(plain.world.network) for _ in replay.SIZES]
    for number in range(ROUNDS):
        advance(made, progress)
        for client in plain.world.cohorts[number]:
            own[client] = plain.train(own[client], client, number)
        models = measure(made, progress, "personal", list(made.federation.test)).models
        for model, weights in zip(models, own, strict=True):
            assert_same(model["params"].values, weights)
    assert progress.server == {}
    assert progress.costs["train"]["values_up"] == progress.costs["train"]["values_down"] == 0


def one_weight(method: Method, samples: list[list[tuple[float, float]]]) -> float:
    """Play one round of the model y = w · x; return the server's w."""
    return float(line(method, samples)[1].server["params"]["weight"])


def test_fedavg_by_hand() -> None:
    # x = 1 everywhere, loss (w − y)², slope 2(w − y), rate 1/4, one step from w = 0: w becomes y/2.
    # Client A has one sample with y = 2, so 1; client B has three with y = −2, so −1.
    # Weighted by samples: (1 · 1 + 3 · (−1)) / 4 = −1/2; an unweighted mean would be 0.
    samples = [[(1.0, 2.0)], [(1.0, -2.0)] * 3]
    assert one_weight(FedAvg(lr=0.25, local_epochs=1), samples) == -0.5


def test_fedprox_by_hand() -> None:
    # One client, y = 2, rate 1/4, μ = 2, two steps. From w = 0 the pull is 0: slope −4, w = 1.
    # Then the slope of the loss is 2(1 − 2) = −2 and of the pull μ(w − 0) = 2: they cancel, w = 1.
    # Without the half the pull would be 4, and w = 1/2.
    # With the norm un-squared the pull would be μ/2 · sign(w) = 1, and w = 5/4.
    samples = [[(1.0, 2.0)]]
    assert one_weight(FedProx(lr=0.25, local_epochs=2, mu=2.0), samples) == 1.0
    # Without a pull: 1 + 1/4 · 2 = 3/2.
    assert one_weight(FedProx(lr=0.25, local_epochs=2, mu=0.0), samples) == 1.5
