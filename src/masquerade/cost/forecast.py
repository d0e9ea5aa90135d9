"""What a run will cost, computed from its schedule without training.

Sizes of messages and densities of masks are those of a client's first round, after one step of each
stage. For dense methods that is exact. For masks that keep their number of entries values and FLOPs
are exact, as papers count them; bytes are those of new masks, and a run that sends what changed of
them costs less. Masks that shrink or grow are not foreseen (`Method.foreseen` tells of them), nor
how they overlap later (the gradient of DM-PFL's personal refine).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.random import Label, choose, fold
from masquerade.core.round import Batch, ClientInfo, Cohort, Round, Stage, client_round
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.cost.before_use import needed
from masquerade.cost.flops import Meter, shares
from masquerade.wire import session
from masquerade.wire.message_size import count


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
    setup: float
    """Masked FLOPs of the setup, which no other figure has."""
    before_use: Mapping[str, float] = field(kw_only=True)
    """Bytes of the download that a view needs before use, by view; no other figure has them."""

    @property
    def paper_bytes(self) -> float:
        """Return the values alone, averaged over the two directions, as papers count."""
        return (self.values_down + self.values_up) / 2


@dataclass(frozen=True)
class _Exchange:
    """What one client's round of a phase costs; pairs are bytes, and bytes of values alone."""

    first: tuple[float, float]
    """A download of the initial state, parts of which both sides have."""
    entry: tuple[float, float]
    """A download to a client that is in this phase for the first time."""
    full: tuple[float, float]
    """Any later one that is new to the client."""
    again: tuple[float, float]
    """One that it already holds."""
    up: tuple[float, float]
    flops: dict[str, Tensor]
    """Per sample of "train" and "validation" data: dense, masked, as papers count."""
    setup: dict[str, Tensor]
    use: dict[str, tuple[float, float]]
    """Bytes of the download before use, by view: of one that is new to the client, and of one that
    it already holds."""


def forecast(
    method: Method,
    task: Task,
    x: Tensor,
    y: Tensor,
    samples: Sequence[int],
    rounds: int,
    participation: float = 1.0,
    seed: int = 1,
    validation: Sequence[int] | None = None,
) -> Forecast:
    """Compute what a run costs on average per client.

    `x` and `y` are one sample or more, best of all classes; `samples` the training samples of every
    client, and `validation` its validation samples, where it has any. A client that has seen the
    server's current version is not sent it again.
    """
    task = task.with_example(x)
    meter, measured = Meter(task), dict[Any, _Exchange]()
    clients = torch.arange(len(samples))
    asked = max(1, round(participation * len(samples)))
    infos = [
        ClientInfo(id, count, fold(seed, Label.CLIENT, id)) for id, count in enumerate(samples)
    ]
    # Clients that may hold as much are alike: each kind is measured once.
    kinds = [str(method.limit(task, info)) for info in infos]
    held = [count or samples[id] for id, count in enumerate(validation or samples)]
    seen, entered, version = [-1] * len(samples), set(), 0
    total = torch.zeros(7, dtype=torch.float64)

    def cost(id: int, phase: Any) -> _Exchange:
        kind = phase, kinds[id]
        if kind not in measured:
            measured[kind] = _measure(method, task, meter, x, y, _round(phase, rounds), infos[id])
        return measured[kind]

    for number in range(rounds):
        phase = method.schedule(number, rounds)
        sent = False
        for id in choose(fold(seed, Label.COHORT, number), clients, asked).tolist():
            one = cost(id, phase)
            new = one.full if (id, phase) in entered else one.entry
            new = new if version else one.first
            down = one.again if seen[id] == version else new
            seen[id] = version
            entered.add((id, phase))
            bytes_values = torch.tensor([down[0], one.up[0], down[1], one.up[1]])
            spent = one.flops["train"] * samples[id] + one.flops["validation"] * held[id]
            total += torch.cat([bytes_values.double(), spent])
            sent |= one.up[0] > 0
        version += sent
    at_setup = sum(
        float((one.setup["train"] * samples[id] + one.setup["validation"] * held[id])[1])
        for id, one in enumerate(cost(id, method.schedule(0, rounds)) for id in range(len(infos)))
    )
    last = [cost(id, method.schedule(max(0, rounds - 1), rounds)).use for id in range(len(infos))]
    before_use = {
        view: sum(one[view][seen[id] == version] for id, one in enumerate(last)) / len(samples)
        for view in method.views
    }
    figures = [*total.tolist(), at_setup]
    return Forecast(*(figure / len(samples) for figure in figures), before_use=before_use)


def _round(phase: Any, rounds: int) -> Round:
    zero, one, last = (torch.tensor(value, dtype=torch.float64) for value in (0.0, 1.0, rounds))
    return Round("train", phase, zero, last, one)


def _measure(
    method: Method, task: Task, meter: Meter, x: Tensor, y: Tensor, round: Round, info: ClientInfo
) -> _Exchange:
    """Exchange messages with one client in a phase, after one step of every stage."""
    # Twice, so that a norm has two samples where one was given.
    batch = Batch(torch.cat([x, x]), torch.cat([y, y]), None, torch.tensor(0, device=x.device))

    def batches(stage: Stage) -> list[Any]:
        return [batch if stage.draws == 1 else (batch,) * stage.draws]

    def exchange(
        row: State, client: State, round: Round
    ) -> tuple[Message, Message, State, State, dict[str, Tensor]]:
        flops = {data: torch.zeros(3, dtype=torch.float64) for data in ("train", "validation")}

        def observe(stage: Stage, work: State) -> None:
            per_sample = meter.step(stage, work, x, y, round)
            seen = torch.tensor([float(stage.epochs)], dtype=torch.float64)
            keep = shares(stage, work, lead=0)
            found = meter.stage(stage, per_sample, seen, keep, x[:1]).summed()
            flops[stage.data].add_(torch.cat([found.dense, found.masked, found.paper]))

        download = method.download(task, server, row, round)
        upload, client = client_round(method, task, download, client, batches, round, observe)
        rows, uploads = tree.stack([row]), tree.stack([upload])
        _, rows = method.aggregate(task, server, rows, uploads, cohort, round)
        return download, upload, tree.take(rows, 0), client, flops

    server = method.server_init(task)
    row, client = method.row_init(task, info), method.client_init(task, info)
    cohort = Cohort(torch.tensor([info.id]), torch.tensor([info.samples]), 1, 1)
    setup = replace(round, kind="setup", phase=None)
    spent = {data: torch.zeros(3, dtype=torch.float64) for data in ("train", "validation")}
    if method.setup(task, setup):
        _, _, row, client, spent = exchange(row, client, setup)
    download, upload, row, client, flops = exchange(row, client, round)
    known = session.begin(task.initial, 1, download)
    had = session.unchanged(known, download, session.versions(download, lead=0))
    later = method.download(task, server, row, round)
    return _Exchange(
        _sizes(download, had),
        _sizes(download),
        _sizes(later),
        _sizes(later, dict.fromkeys(later, True)),
        _sizes(upload),
        flops,
        spent,
        {
            view: _before_use(method, task, server, row, client, round, view)
            for view in method.views
        },
    )


def _before_use(
    method: Method, task: Task, server: State, row: State, client: State, round: Round, view: str
) -> tuple[float, float]:
    use = replace(round, kind="adapt", phase=(view, False))
    message = needed(method, task, method.download(task, server, row, use), client, use)
    return _sizes(message)[0], _sizes(message, dict.fromkeys(message, True))[0]


def _sizes(message: Message, same: session.Same | None = None) -> tuple[float, float]:
    found = count(message, {}, same)
    return float(found.bytes), float(found.values)
