"""FedAvg, FedAvg+FT, FedProx and Local: by hand, and against a second text of each."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.config import Compute, Evaluate, Train
from masquerade.core import Method, Task
from masquerade.data import Federation
from masquerade.methods import FedAvg, FedProx, Local
from masquerade.simulation import Progress, Simulation
from tests.papers import reference
from tests.papers.reference import Plain, Weights, assert_same, stage

ROUNDS = 4
SGD: dict[str, Any] = {"rate": 0.2, "epochs": 2, "momentum": 0.5, "weight_decay": 0.01}


def played(method: Method) -> tuple[Simulation, Plain]:
    """Return a simulation of a method, and the reference that is to follow it."""
    made, world = stage(method, ROUNDS)
    return made, Plain(world, method.rate, method.epochs, method.momentum, method.weight_decay)


def follow(made: Simulation, plain: Plain) -> Progress:
    """Advance a simulation to its end and compare the server with the reference in every round."""
    progress, weights = made.begin(), reference.weights_of(plain.world.network)
    for number in range(ROUNDS):
        made.advance(progress)
        weights = plain.average(weights, number)
        assert_same(progress.server["params"], weights)
    return progress


def test_fedavg_equals_its_reference() -> None:
    follow(*played(FedAvg(**SGD)))


def test_a_tuned_copy_equals_its_reference_and_never_feeds_back() -> None:
    made, plain = played(FedAvg(**SGD, tune_rate=0.05, tune_epochs=3))
    tune = Plain(plain.world, 0.05, 3, plain.momentum, plain.decay)
    progress, weights = made.begin(), reference.weights_of(plain.world.network)
    for number in range(ROUNDS):
        made.advance(progress)
        weights = plain.average(weights, number)
        models = made.judge(progress, "tuned", list(made.federation.test)).models
        for client, model in enumerate(models):
            copy = tune.train(weights, client, number + 1, "adapt")
            assert_same(model["params"].values, copy)
            assert not torch.equal(copy["0.weight"], weights["0.weight"])
        # Were a tuned copy averaged or kept, the next round would show it.
        assert_same(progress.server["params"], weights)
        shared = made.judge(progress, "global", list(made.federation.test)).models
        assert all(
            torch.equal(value, model["params"].values[name])
            for model in shared
            for name, value in progress.server["params"].items()
        )


PULL = 0.7


def squared(here: Weights, received: Weights) -> Tensor:
    """Return μ/2 · ‖w − w_t‖²."""
    return (
        PULL
        / 2
        * torch.stack([(here[name] - received[name]).square().sum() for name in here]).sum()
    )


def unsquared(here: Weights, received: Weights) -> Tensor:
    """Return μ/2 · ‖w − w_t‖, a common mistake."""
    apart = torch.cat([(here[name] - received[name]).flatten() for name in here])
    norm: Tensor = torch.linalg.vector_norm(apart)
    return PULL / 2 * norm


def whole(here: Weights, received: Weights) -> Tensor:
    """Return μ · ‖w − w_t‖²: the half is forgotten."""
    return 2 * squared(here, received)


def test_fedprox_equals_its_reference() -> None:
    made, plain = played(FedProx(**SGD, pull=PULL))
    follow(made, Plain(plain.world, 0.2, 2, 0.5, 0.01, squared))


@pytest.mark.parametrize("wrong", [unsquared, whole, None])
def test_wrong_pulls_are_rejected_by_the_same_comparison(wrong: reference.Penalty | None) -> None:
    made, plain = played(FedProx(**SGD, pull=PULL))
    with pytest.raises(AssertionError):
        follow(made, Plain(plain.world, 0.2, 2, 0.5, 0.01, wrong))


def test_local_equals_its_reference() -> None:
    made, plain = played(Local(**SGD))
    progress = made.begin()
    own = [reference.weights_of(plain.world.network) for _ in reference.SIZES]
    for number in range(ROUNDS):
        made.advance(progress)
        for client in plain.world.cohorts[number]:
            own[client] = plain.train(own[client], client, number)
        models = made.judge(progress, "personal", list(made.federation.test)).models
        for model, weights in zip(models, own, strict=True):
            assert_same(model["params"].values, weights)
    assert progress.server == {}
    assert progress.costs["train"]["values_up"] == progress.costs["train"]["values_down"] == 0


def one_weight(method: Method, samples: list[list[tuple[float, float]]]) -> float:
    """Play one round of the model y = w · x from w = 0 with squared loss; return the server's w."""
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.zero_()
    flat = torch.tensor([pair for part in samples for pair in part], dtype=torch.float64)
    parts = torch.split(torch.arange(len(flat)), [len(part) for part in samples])
    data = Federation("hand", flat[:, :1], flat[:, 1:], None, parts, parts, parts)

    def square(output: Tensor, y: Tensor) -> Tensor:
        return ((output - y) ** 2).flatten()

    task = Task(model, loss=square, metric=square)
    train = Train("", 1, 4, 1.0)
    made = Simulation(
        method, task, data, train, Evaluate(0), Compute("loop", "cpu"), 1, method.views
    )
    progress = made.begin()
    made.advance(progress)
    return float(progress.server["params"]["weight"])


def test_fedavg_by_hand() -> None:
    # x = 1 everywhere, loss (w − y)², slope 2(w − y), rate 1/4, one step from w = 0: w becomes y/2.
    # Client A has one sample with y = 2, so 1; client B has three with y = −2, so −1.
    # Weighted by samples: (1 · 1 + 3 · (−1)) / 4 = −1/2; an unweighted mean would be 0.
    samples = [[(1.0, 2.0)], [(1.0, -2.0)] * 3]
    assert one_weight(FedAvg(rate=0.25, epochs=1), samples) == -0.5


def test_fedprox_by_hand() -> None:
    # One client, y = 2, rate 1/4, μ = 2, two steps. From w = 0 the pull is 0: slope −4, w = 1.
    # Then the slope of the loss is 2(1 − 2) = −2 and of the pull μ(w − 0) = 2: they cancel, w = 1.
    # Without the half the pull would be 4, and w = 1/2.
    # With the norm un-squared the pull would be μ/2 · sign(w) = 1, and w = 5/4.
    samples = [[(1.0, 2.0)]]
    assert one_weight(FedProx(rate=0.25, epochs=2, pull=2.0), samples) == 1.0
    # Without a pull: 1 + 1/4 · 2 = 3/2.
    assert one_weight(FedProx(rate=0.25, epochs=2, pull=0.0), samples) == 1.5
