"""FedAvg, FedAvg+FT and Local: by hand, and against a second text of each."""

from dataclasses import dataclass

import pytest
import torch

from masquerade.core import Cohort, Message, Round, Stage, State, Task, tree
from masquerade.methods import FedAvg, Local
from tests.papers import replay
from tests.papers.plain import ROUNDS, SGD, follow, one_weight, played
from tests.papers.reference import Plain
from tests.papers.replay import assert_same
from tests.support import advance, measure


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


def test_fedavg_by_hand() -> None:
    # x = 1 everywhere, loss (w − y)², slope 2(w − y), rate 1/4, one step from w = 0: w becomes y/2.
    # Client A has one sample with y = 2, so 1; client B has three with y = −2, so −1.
    # Weighted by samples: (1 · 1 + 3 · (−1)) / 4 = −1/2; an unweighted mean would be 0.
    samples = [[(1.0, 2.0)], [(1.0, -2.0)] * 3]
    assert one_weight(FedAvg(lr=0.25, local_epochs=1), samples) == -0.5
