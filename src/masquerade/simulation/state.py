"""Everything that changes from round to round, and how it is written down."""

import copy
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.tree import State
from masquerade.engine.base import Outcome, astuple
from masquerade.engine.store import Store
from masquerade.wire.session import Session

Record = dict[str, Any]

COSTS = ("down", "up", "values_down", "values_up", "dense", "masked", "executed", "paper")
WAYS = ("dense", "masked", "executed")
CLOCK = ("start-up", "training", "evaluation", "commits")
"""What wall time goes to; commits are what the work waits for, most of each is done beside it."""


_stream: Callable[[], Any] = torch.cuda.Stream


def totals(outcome: Outcome) -> dict[str, float]:
    """Add up what a cohort's rounds cost; bytes also by direction and part."""
    *sent, parts = astuple(outcome.traffic)
    columns = dict(zip(COSTS, (*sent, *astuple(outcome.flops)), strict=True)) | parts
    return {name: float(column.sum()) for name, column in columns.items()}


def by_layer(outcome: Outcome, layers: list[str]) -> dict[str, dict[str, float]]:
    """Add up a cohort's FLOPs by layer: weight name → dense, masked, executed."""
    sums = [getattr(outcome.flops, way).sum(0).expand(len(layers)).tolist() for way in WAYS]
    named = zip(layers, zip(*sums, strict=True), strict=True)
    return {layer: dict(zip(WAYS, counts, strict=True)) for layer, counts in named}


def label(phase: Hashable) -> str:
    """Name a phase by its first word: ("dual", True) is a round of "dual"."""
    return str(phase[0] if isinstance(phase, tuple) else phase)


@contextmanager
def timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    """Add the time that something takes."""
    begun = time.monotonic()
    try:
        yield
    finally:
        seconds[what] += time.monotonic() - begun


def set_apart(seconds: dict[str, float], laps: list[float]) -> None:
    """Count as start-up what the first round of a process took longer than its second.

    The first loads, compiles and captures what all others use.
    """
    late = max(0.0, laps[0] - laps[1])
    seconds["training"] -= late
    seconds["start-up"] += late


@dataclass
class Progress:
    """Everything that changes from round to round."""

    number: int
    """Rounds completed."""
    server: State
    rows: Store
    clients: Store
    session: Session
    costs: dict[str, dict[str, float]]
    """Sums over clients by kind of round ("train", "setup"): `COSTS`, and parts as "up/params"."""
    history: list[Record]
    layers: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """FLOPs over clients, by phase and layer: dense, masked, executed."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLOCK, 0.0))
    memory: dict[str, float] = field(default_factory=dict)
    """The most bytes held at a time, of the process and on a CUDA device."""
    diverged: int | None = None
    """The first round that left values which are not finite."""
    refused: int = 0
    """Updates that were not taken."""
    turned_away: dict[int, str] = field(default_factory=dict)
    """Clients that came after training and were refused, and the code that says why."""

    def snapshot(self) -> Callable[[], dict[str, Tensor]]:
        """Copy all tensors where they lie, and return what fetches the copies, by name.

        A thread may fetch them while rounds go on.
        """
        places = {
            "server": self.server,
            "rows": self.rows.state,
            "clients": self.clients.state,
            "session": self.session,
        }
        copies = {name: value.detach().clone() for name, value in tree.named(places).items()}
        on_cuda = any(value.is_cuda for value in copies.values())
        ready = torch.cuda.current_stream().record_event() if on_cuda else None

        def fetch() -> dict[str, Tensor]:
            if ready is None:
                return {name: value.contiguous() for name, value in copies.items()}
            beside = _stream()
            beside.wait_event(ready)
            with torch.cuda.stream(beside):
                return {name: value.cpu().contiguous() for name, value in copies.items()}

        return fetch

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of all tensors, by name, in host memory."""
        return self.snapshot()()

    def facts(self) -> Record:
        """Return a copy of the rest, as JSON."""
        return {
            "costs": copy.deepcopy(self.costs),
            "layers": copy.deepcopy(self.layers),
            "history": list(self.history),
            "seconds": dict(self.seconds),
            "memory": dict(self.memory),
            "diverged": self.diverged,
            "refused": self.refused,
        }
