"""Who takes part in a federation: all clients that ever fitted in, and those of one round."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from masquerade.deploy.agreement import AGREED
from masquerade.deploy.facts import Facts
from masquerade.errors import MasqueradeError, listed
from masquerade.storage import sealed

CLIENTS = "clients.json"
"""The file of a server's folder that has them."""


@dataclass(frozen=True)
class Enrolled:
    """A client whose data are known and fit."""

    facts: Facts
    round: int
    """Rounds that were done when it came."""


@dataclass(frozen=True)
class Roster:
    """All clients that ever fit in, by name."""

    clients: dict[str, Enrolled] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Gathered:
    """Who takes part in one round: those who are there, seen before it begins."""

    eligible: Tensor
    chosen: Tensor

    def setup(self, number: int, done: bool) -> Tensor:
        """Return nobody: clients did their setup when they were gathered."""
        return self.eligible[:0]

    def cohort(self, number: int) -> Tensor:
        """Return those who were chosen."""
        return self.chosen

    def returning(self, number: int, ids: Tensor) -> Tensor:
        """Return all: nobody is known to be lost."""
        return torch.arange(len(ids))


NOBODY = Gathered(*[torch.empty(0, dtype=torch.int64)] * 2)


def check_whole(folder: Path) -> None:
    """Refuse the folder of a server that has rounds, and not what they were done with."""
    gone = [name for name in (AGREED, CLIENTS) if not (folder / name).is_file()]
    if gone and any((folder / "rounds").glob("[0-9]*")):
        text = f"{folder} has rounds, but {listed(gone)} is missing"
        raise MasqueradeError("E401", f"{text}. {sealed.NO_OTHER}")


def read_roster(folder: Path, run: str) -> Roster:
    """Read who ever fitted in, from the folder of a server."""
    path = folder / CLIENTS
    if not path.is_file():
        return Roster()
    return sealed.read_record(Roster, path, run, sealed.NO_OTHER)
