"""What a run will cost, computed from its schedule without training.

Sizes of messages and densities of masks are those of the initial state. For dense methods that is
exact. For masks that keep their number of entries bytes are exact, and FLOPs as papers count them;
what depends on how masks overlap later (the gradient of DM-PFL's personal refine) is not foreseen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.random import choose, fold
from masquerade.core.round import Round, Stage, Who, client_round
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.cost.compute import Meter, shares
from masquerade.cost.traffic import ANY, at_first
from masquerade.wire.codec import Same, digest, nbytes, values_bytes


@dataclass(frozen=True)
class Forecast:
    """Means per client over the training rounds."""

    down: float
    up: float
    values_down: float
    values_up: float
    dense: float
    masked: float
    paper_flops: float

    @property
    def paper_bytes(self) -> float:
        """Return the values alone, averaged over the two directions, as papers count."""
        return (self.values_down + self.values_up) / 2


@dataclass(frozen=True)
class _Exchange:
    """What one client's round of a phase costs."""

    first: tuple[float, float]
    """Bytes and values of a download of the initial state, parts of which both sides have."""
    full: tuple[float, float]
    """The same of a download that is new to the client."""
    again: tuple[float, float]
    """The same of a download that it already holds."""
    up: tuple[float, float]
    flops: Tensor
    """Per training sample: dense, masked, as papers count."""


def forecast(
    method: Method,
    task: Task,
    x: Tensor,
    y: Tensor,
    samples: Sequence[int],
    rounds: int,
    participation: float = 1.0,
    seed: int = 1,
) -> Forecast:
    """Compute what a run costs on average per client.

    `x` and `y` are one sample or more, `samples` the training samples of every client. A client
    that has seen the server's current version is not sent it again.
    """
    task = task.fed(x)
    meter, phases = Meter(task), dict[Any, _Exchange]()
    clients = torch.arange(len(samples))
    asked = max(1, round(participation * len(samples)))
    seen, version = [-1] * len(samples), 0
    total = torch.zeros(7, dtype=torch.float64)
    for number in range(rounds):
        phase = method.schedule(number, rounds)
        if phase not in phases:
            phases[phase] = _measure(method, task, meter, x, y, phase, rounds)
        one = phases[phase]
        for id in choose(fold(seed, "cohort", number), clients, asked).tolist():
            new = one.full if version else one.first
            down = one.again if seen[id] == version else new
            seen[id] = version
            bytes_values = torch.tensor([down[0], one.up[0], down[1], one.up[1]])
            total += torch.cat([bytes_values.double(), one.flops * samples[id]])
        version += one.up[0] > 0
    return Forecast(*(total / len(samples)).tolist())


def _round(phase: Any, rounds: int) -> Round:
    zero, one, last = (torch.tensor(value, dtype=torch.float64) for value in (0.0, 1.0, rounds))
    return Round("train", phase, zero, last, one)


def _measure(
    method: Method, task: Task, meter: Meter, x: Tensor, y: Tensor, phase: Any, rounds: int
) -> _Exchange:
    """Exchange messages with one client in a phase, without taking a step."""
    round = _round(phase, rounds)
    flops = torch.zeros(3, dtype=torch.float64)

    def observe(stage: Stage, work: State) -> None:
        per_sample = meter.step(stage, work, x, y, round)
        seen = torch.tensor([float(stage.epochs)], dtype=torch.float64)
        found = meter.stage(stage, per_sample, seen, shares(stage, work, lead=0), x[:1])
        flops.add_(torch.cat([found.dense, found.masked, found.paper]))

    row = method.row_init(task, Who(0, 1, 0))
    download = method.download(task, method.server_init(task), row, round)
    client = method.client_init(task, Who(0, 1, 0))
    upload, _ = client_round(method, task, download, client, lambda stage: (), round, observe)
    known = at_first(task.initial, 1, download)
    had = {name: digest(part) == known.get(name, known[ANY]) for name, part in download.items()}
    first, again = (_sizes(download, held) for held in (had, dict.fromkeys(download, True)))
    return _Exchange(first, _sizes(download), again, _sizes(upload), flops)


def _sizes(message: Message, same: Same | None = None) -> tuple[float, float]:
    return float(nbytes(message, same)), float(values_bytes(message, same))
