"""A small federation to replay a method on: the same clients, cohorts and batches for both sides.

`stage(method, rounds)` returns a simulation, and a `World` from which a second text of the paper,
in plain PyTorch, takes the initial network, who is sampled, and every batch.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from masquerade.core import Method, Round, Stage, Task
from masquerade.data import Federation
from masquerade.data.loader import BatchLoader
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests.support import advance, built, measure

Weights = dict[str, Tensor]

SIZES = (7, 12, 3, 9, 16, 5)
"""Training samples per client: ragged, one smaller than a batch of 4."""


def federation(validation: bool = True) -> Federation:
    """Make six ragged clients with three features and three classes."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(3 * sum(SIZES), 3, generator=generator, dtype=torch.float64)
    y = (x @ torch.randn(3, 3, generator=generator, dtype=torch.float64)).argmax(1)
    parts = torch.split(torch.arange(len(x)), [*SIZES] * 3)
    none = (torch.empty(0, dtype=torch.int64),) * len(SIZES)
    return Federation("toy", x, y, 3, parts[:6], parts[6:12] if validation else none, parts[12:])


def network() -> nn.Module:
    """Make a network of three layers, in float64, whose weights depend on nothing but this text."""
    layers = [nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)]
    module = nn.Sequential(*layers).double()
    generator = torch.Generator().manual_seed(12)
    for value in module.parameters():
        value.data = torch.randn(value.shape, generator=generator, dtype=torch.float64) / 2
    return module


def weights_of(module: nn.Module) -> Weights:
    """Copy the weights out of a module."""
    return {name: value.detach().clone() for name, value in module.named_parameters()}


@dataclass(frozen=True)
class World:
    """What a run is played on, and who is sampled in which round."""

    federation: Federation
    network: nn.Module
    cohorts: list[list[int]]
    seed: int
    batch: int
    lr_decay: float

    def epoch(
        self, client: int, number: int, epoch: int, kind: str = "train", stream: int = 0
    ) -> list[tuple[Tensor, Tensor]]:
        """List the training batches of one epoch."""
        return [batch for (batch,) in self.draws(1, client, number, epoch, kind, stream)]

    def draws(
        self, draws: int, client: int, number: int, epoch: int, kind: str = "train", stream: int = 0
    ) -> list[tuple[tuple[Tensor, Tensor], ...]]:
        """List the disjoint batches of every step of one epoch."""
        stage = Stage(
            "any", lambda work, batch, round: work, epoch=epoch, stream=stream, draws=draws
        )
        here = Round(kind, None, *[torch.zeros(())] * 3)
        loader = BatchLoader(self.federation, self.seed, self.batch)
        orders = loader.shuffle(torch.tensor([client]), stage, here, number)
        given = (b if isinstance(b, tuple) else (b,) for b in loader.batches(orders, 0))
        return [tuple((batch.x, batch.y) for batch in batches) for batches in given]

    def batches(self, client: int, number: int, epochs: int) -> list[tuple[Tensor, Tensor]]:
        """List the training batches of a round, epoch after epoch."""
        return [pair for epoch in range(epochs) for pair in self.epoch(client, number, epoch)]

    def share(self, client: int) -> int:
        """Return |D_c|."""
        return len(self.federation.train[client])

    def output(self, weights: Weights, x: Tensor) -> Tensor:
        """Run the network with some weights."""
        module = copy.deepcopy(self.network)
        module.load_state_dict(weights)
        with torch.no_grad():
            output: Tensor = module(x)
        return output


def stage(
    method: Method, rounds: int, data: Federation | None = None, lr_decay: float = 0.9
) -> tuple[Simulation, World]:
    """Return a simulation of a method, and the world in which the reference is to follow it."""
    data, module = data or federation(), network()
    made = built(
        method,
        Task(module),
        data,
        rounds=rounds,
        batch_size=4,
        participation=0.67,
        lr_decay=lr_decay,
        seed=5,
    )
    cohorts = [made.server.participation.cohort(number).tolist() for number in range(rounds)]
    return made, World(data, module, cohorts, 5, 4, lr_decay)


def assert_same(found: Mapping[str, Tensor], expected: Weights, tolerance: float = 1e-9) -> None:
    """Hold a tree against the reference."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance)


def average(world: World, number: int, trained: list[Weights]) -> Weights:
    """Return the mean of what the cohort of a round trained, by the size of its data."""
    sizes = [world.share(client) for client in world.cohorts[number]]
    return {
        name: sum((n * one[name] for n, one in zip(sizes, trained, strict=True)), 0 * value)
        / sum(sizes)
        for name, value in trained[0].items()
    }


def gradient(module: nn.Module, weights: Weights, x: Tensor, y: Tensor) -> Weights:
    """Return the gradient of the cross entropy of some weights."""
    tracked = {name: value.clone().requires_grad_() for name, value in weights.items()}
    loss = cross_entropy(torch.func.functional_call(module, tracked, (x,)), y)
    return dict(zip(weights, torch.autograd.grad(loss, list(tracked.values())), strict=True))


def square(output: Tensor, y: Tensor) -> Tensor:
    """Return the squared error of every sample."""
    return ((output - y) ** 2).flatten()


def line(
    method: Method,
    samples: list[list[tuple[float, float]]],
    rounds: int = 1,
    participation: float = 1.0,
) -> tuple[Simulation, RunState]:
    """Play rounds of the model y = w · x from w = 0 with squared loss, on (x, y) of every client.

    With x = 1 the slope is 2 (w − y), and everything can be worked out by hand.
    """
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.zero_()
    flat = torch.tensor([pair for part in samples for pair in part], dtype=torch.float64)
    parts = torch.split(torch.arange(len(flat)), [len(part) for part in samples])
    data = Federation("hand", flat[:, :1], flat[:, 1:], None, parts, parts, parts)
    task = Task(model, loss=square, metric=square)
    made = built(method, task, data, rounds=rounds, batch_size=4, participation=participation)
    progress = made.begin()
    for _ in range(rounds):
        advance(made, progress)
    return made, progress


def used(made: Simulation, progress: RunState, view: str) -> list[Mapping[str, Tensor]]:
    """Return the weights that every client uses in a view."""
    models = measure(made, progress, view, list(made.federation.test)).models
    return [model["params"].values for model in models]
