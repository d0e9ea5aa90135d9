"""Everything that changes from round to round, and how it is written down."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.tree import State
from masquerade.engine.setting import Outcome
from masquerade.engine.store import Store

Record = dict[str, Any]

COSTS = ("down", "up", "values_down", "values_up", "dense", "masked", "paper")


_stream: Callable[[], Any] = torch.cuda.Stream


def totals(outcome: Outcome) -> dict[str, float]:
    """Add up what a cohort's rounds cost."""
    t, f = outcome.traffic, outcome.flops
    columns = (t.down, t.up, t.values_down, t.values_up, f.dense, f.masked, f.paper)
    return {name: float(column.sum()) for name, column in zip(COSTS, columns, strict=True)}


@dataclass
class Progress:
    """Everything that changes from round to round."""

    number: int
    """Rounds completed."""
    server: State
    rows: Store
    clients: Store
    known: dict[str, Tensor]
    costs: dict[str, dict[str, float]]
    """Sums over clients, by kind of round: "train", "hello"."""
    history: list[Record]
    seconds: float = 0.0
    diverged: int | None = None
    """The first round that left values which are not finite."""

    def snapshot(self) -> Callable[[], dict[str, Tensor]]:
        """Copy all tensors where they lie, and return what fetches the copies, by name.

        A thread may fetch them while rounds go on.
        """
        places = {
            "server": self.server,
            "rows": self.rows.state,
            "clients": self.clients.state,
            "known": {name or "any": value for name, value in self.known.items()},
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
        costs = {kind: dict(sums) for kind, sums in self.costs.items()}
        return {
            "costs": costs,
            "history": list(self.history),
            "seconds": self.seconds,
            "diverged": self.diverged,
        }
