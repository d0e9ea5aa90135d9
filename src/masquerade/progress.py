"""Everything that changes from round to round, and how it is written down."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from masquerade.core import tree
from masquerade.core.tree import State
from masquerade.engine.setting import Outcome
from masquerade.engine.store import Store
from masquerade.wire.session import Session

Record = dict[str, Any]

COSTS = ("down", "up", "values_down", "values_up", "dense", "masked", "paper")


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
    session: Session
    costs: dict[str, dict[str, float]]
    """Sums over clients, by kind of round: "train", "hello"."""
    history: list[Record]
    seconds: float = 0.0
    diverged: int | None = None
    """The first round that left values which are not finite."""
    refused: int = 0
    """Updates that were not taken."""

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of all tensors, by name, for a commit."""
        places = {
            "server": self.server,
            "rows": self.rows.state,
            "clients": self.clients.state,
            "session": self.session,
        }
        return {
            name: value.detach().to("cpu", copy=True).contiguous()
            for name, value in tree.named(places).items()
        }

    def facts(self) -> Record:
        """Return a copy of the rest, as JSON."""
        costs = {kind: dict(sums) for kind, sums in self.costs.items()}
        return {
            "costs": costs,
            "history": list(self.history),
            "seconds": self.seconds,
            "diverged": self.diverged,
            "refused": self.refused,
        }
