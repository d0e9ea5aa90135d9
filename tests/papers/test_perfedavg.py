"""Per-FedAvg (Fallah et al., 2020): by hand, against a replay, and against the usual mistakes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from masquerade.core import Batch, Round, Stage, State, Task
from masquerade.data import Federation
from masquerade.methods import PerFedAvg
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests.papers import replay
from tests.papers.replay import (
    SIZES,
    Weights,
    World,
    assert_same,
    average,
    gradient,
    square,
    stage,
    used,
    weights_of,
)
from tests.support import advance

NOW = Round("train", "train", *torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64))


def batch(y: float) -> Batch:
    """One sample with x = 1."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return Batch(one, y * one, None, torch.tensor(0))


def stepped(method: PerFedAvg, *wanted: float) -> float:
    """Take one step of the model y = w · x from w = 0, on a batch for every y wanted."""
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.zero_()
    task = Task(model, loss=square, metric=square)
    (train,) = method.plan(task, NOW)
    work = train.step({"params": task.initial}, tuple(map(batch, wanted)), NOW)
    return float(work["params"]["weight"])


def assert_a_step_by_hand(method: PerFedAvg) -> None:
    """Hold a first-order step against one worked out on paper."""
    # x = 1, α = β = 1/4; the first batch wants y = 2, the second y = 4. The slope is 2(w − y).
    # w̃ = 0 + 1/4 · 4 = 1; the slope there on the second batch is 2(1 − 4) = −6; w = 1/4 · 6 = 3/2.
    # On the first batch once more the slope would be −2, and w = 1/2.
    assert stepped(method, 2, 4) == 3 / 2


FIRST = PerFedAvg(lr=0.25, inner_lr=0.25, local_epochs=1)


def test_a_first_order_step_by_hand() -> None:
    assert_a_step_by_hand(FIRST)


def test_a_hessian_free_step_by_hand() -> None:
    # As above, but the slope −6 is multiplied by 1 − α · 2, the loss having the Hessian 2
    # everywhere: −3, and w = 3/4. The third batch decides the Hessian alone.
    free = replace(FIRST, variant="hessian_free")
    assert stepped(free, 2, 4, 7) == pytest.approx(3 / 4, abs=1e-12)


@dataclass(frozen=True, kw_only=True)
class OneBatchTwice(PerFedAvg):
    """The mistake of adapting and stepping on the same samples."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        (train,) = super().plan(task, round)

        def step(work: State, batches: tuple[Batch, ...], round: Round) -> State:
            return train.step(work, (batches[0],) * len(batches), round)

        return (replace(train, step=step),)


def test_one_batch_used_twice_is_noticed() -> None:
    with pytest.raises(AssertionError):
        assert_a_step_by_hand(OneBatchTwice(lr=0.25, inner_lr=0.25, local_epochs=1))


Tuned = Callable[[Simulation, RunState], list[Any]]


def assert_test_data_are_never_read(tuned: Tuned) -> None:
    """Adapt from one server twice; only the samples that clients are tested on differ."""
    data = replay.federation()
    noise = data.x.clone()
    noise[torch.cat(data.test)] += 1
    found = []
    for given in (data, replace(data, x=noise)):
        made, _ = stage(replace(FIRST, tune_epochs=2), 1, given)
        progress = made.begin()
        advance(made, progress)
        found.append(tuned(made, progress))
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(value, other[name]) for name, value in one.items())


def as_it_is(made: Simulation, progress: RunState) -> list[Any]:
    return used(made, progress, "tuned")


def on_test_data(made: Simulation, progress: RunState) -> list[Any]:
    """The mistake of adapting to the samples that the model is then evaluated on."""
    data: Federation = replace(made.federation, train=made.federation.test)
    return used(stage(made.server.method, 1, data)[0], progress, "tuned")


def test_adapting_reads_training_data_alone() -> None:
    assert_test_data_are_never_read(as_it_is)


def test_adapting_to_test_data_is_noticed() -> None:
    with pytest.raises(AssertionError):
        assert_test_data_are_never_read(on_test_data)


def curved(world: World, weights: Weights, x: Tensor, y: Tensor, v: Weights) -> Weights:
    """Return the exact product of the Hessian with v, by differentiating twice."""
    tracked = {name: value.clone().requires_grad_() for name, value in weights.items()}
    loss = cross_entropy(torch.func.functional_call(world.network, tracked, (x,)), y)
    values = list(tracked.values())
    slopes = torch.autograd.grad(loss, values, create_graph=True)
    found = torch.autograd.grad(slopes, values, [v[name] for name in weights])
    return dict(zip(weights, found, strict=True))


def replayed(world: World, paper: PerFedAvg, rounds: int, draws: int) -> Weights:
    """Play Algorithm 1 of the paper with a true Hessian, or without one where there is no batch."""
    w = weights_of(world.network)
    for number in range(rounds):
        decay, trained = world.lr_decay**number, []
        alpha, beta = paper.inner_lr * decay, paper.lr * decay
        for client in world.cohorts[number]:
            local = dict(w)
            for epoch in range(paper.local_epochs):
                for first, second, *third in world.draws(draws, client, number, epoch):
                    g = gradient(world.network, local, *first)
                    adapted = {n: local[n] - alpha * g[n] for n in local}
                    v = gradient(world.network, adapted, *second)
                    if third:
                        h = curved(world, local, *third[0], v)
                        v = {n: v[n] - alpha * h[n] for n in v}
                    local = {n: local[n] - beta * v[n] for n in local}
            trained.append(local)
        w = average(world, number, trained)
    return w


@pytest.mark.parametrize(("variant", "draws"), [("first_order", 2), ("hessian_free", 3)])
def test_three_rounds_equal_a_replay(variant: str, draws: int) -> None:
    method = PerFedAvg(lr=0.2, local_epochs=2, inner_lr=0.3, variant=variant, difference=1e-4)
    made, world = stage(method, 3)
    progress = made.begin()
    for _ in range(3):
        advance(made, progress)
    assert_same(progress.server["params"], replayed(world, method, 3, draws), 1e-6)
    # A client adapts what it downloads by plain steps on its training batches.
    for client in range(len(SIZES)):
        copy = dict(progress.server["params"])
        for x, y in world.epoch(client, 3, 0, "adapt"):
            g = gradient(world.network, copy, x, y)
            copy = {n: copy[n] - 0.3 * world.lr_decay**3 * g[n] for n in copy}
        assert_same(used(made, progress, "tuned")[client], copy)


def test_without_adaptation_it_is_fedavg_on_the_second_batches() -> None:
    method = PerFedAvg(lr=0.2, local_epochs=2, inner_lr=0.0)
    made, world = stage(method, 2)
    progress = made.begin()
    w = weights_of(world.network)
    for number in range(2):
        advance(made, progress)
        trained = []
        for client in world.cohorts[number]:
            local = dict(w)
            for epoch in range(2):
                for _, (x, y) in world.draws(2, client, number, epoch):
                    g = gradient(world.network, local, x, y)
                    local = {n: local[n] - 0.2 * world.lr_decay**number * g[n] for n in local}
            trained.append(local)
        w = average(world, number, trained)
        assert_same(progress.server["params"], w)
