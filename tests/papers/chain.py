"""The smallest network with a body and a head: y = h · b · x, small enough to train by hand."""

import torch
from torch import Tensor, nn

from masquerade.core import Message, Method, Task
from masquerade.data import Federation
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests.support import advance, built, measure

BODY, HEAD = "0.weight", "1.weight"
SAMPLES = [[(1.0, 3.0)], [(1.0, -1.0)] * 3]
"""Client A has one sample (x, y) = (1, 3), client B has (1, −1) three times."""


def square(output: Tensor, y: Tensor) -> Tensor:
    """Return (ŷ − y)² of every sample: slope 2(hb − y) · b for the head, 2(hb − y) · h for b."""
    return ((output - y) ** 2).flatten()


def federation(samples: list[list[tuple[float, float]]]) -> Federation:
    """Make clients that are trained, validated and tested on the samples given."""
    flat = torch.tensor([pair for part in samples for pair in part], dtype=torch.float64)
    parts = torch.split(torch.arange(len(flat)), [len(part) for part in samples])
    return Federation("hand", flat[:, :1], flat[:, 1:], None, parts, parts, parts)


def play(
    method: Method,
    rounds: int = 1,
    samples: list[list[tuple[float, float]]] = SAMPLES,
    behind: nn.Module | None = None,
) -> tuple[Simulation, RunState]:
    """Play rounds with every client, from b = h = 1; `behind` stands in the place of the head."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), behind or nn.Linear(1, 1, bias=False))
    for value in model.parameters():
        value.data.fill_(1)
    task = Task(model.double(), loss=square, metric=square, better="lower")
    made = built(method, task, federation(samples), rounds=rounds, batch_size=8)
    progress = made.begin()
    for _ in range(rounds):
        advance(made, progress)
    return made, progress


def models(made: Simulation, progress: RunState) -> list[Message]:
    """Return what the clients use, in the method's first view."""
    return measure(made, progress, made.server.method.views[0], list(made.federation.test)).models


def used(made: Simulation, progress: RunState) -> list[tuple[float, float]]:
    """Return (b, h) of every client's model in use, without the rounding of means over three."""
    values = [model["params"].values for model in models(made, progress)]
    return [(round(float(value[BODY]), 12), round(float(value[HEAD]), 12)) for value in values]
