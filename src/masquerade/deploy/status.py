"""Where a federation or a client stands: a small file, written anew when something happens."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from masquerade.results.json_records import from_json, to_json
from masquerade.storage import atomic

FILE = "status.json"


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where a federation stands."""

    doing: str
    """"gathering" clients, "waiting" for a quorum, "preparing" clients, "training", "evaluating",
    "finished", "stopped" by somebody, or "failed"."""
    run: str = ""
    round: int = 0
    """Rounds done."""
    rounds: int = 0
    clients: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    quorum: int = 0
    connected: tuple[str, ...] = ()
    enrolled: tuple[str, ...] = ()
    """Clients whose data are known and fit."""
    asked: tuple[str, ...] = ()
    """Who is being asked now."""
    outstanding: tuple[str, ...] = ()
    """Those of them that have not answered yet."""
    waiting_since: float = 0.0
    """Seconds since 1970, while there is no quorum; else 0."""
    lost: int = 0
    """Answers that did not come, or not in time, in all rounds."""
    refused: int = 0
    """Updates that were not taken."""
    below_quorum: int = 0
    """Rounds that changed nothing because too few answered."""
    faults: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By code and client: how often, since this process began."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Clients that cannot take part, and why, until they can."""
    problem: str = ""
    """Why it stopped."""
    updated: float = 0.0
    """Seconds since 1970."""

    @classmethod
    def read(cls, folder: Path) -> "Status | None":
        """Read that of a server's folder; None where there is none yet."""
        return _read(cls, folder)


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """Where a client stands, as its worker sees it."""

    doing: str = "waiting"
    """What it does: "waiting" for the server, "preparing", "training" or "measuring"."""
    since: float = 0.0
    """Of that; in seconds since 1970, as all times here."""
    run: str = ""
    """The last run that it took part in."""
    rounds: int = 0
    """How many that has."""
    round: int = 0
    """The last one that this client did, counted from 1; 0 is none."""
    trained: float = 0.0
    """When it did that."""
    measured: float = 0.0
    """When it measured its models at the end of training; 0 where it did not yet."""
    samples: tuple[int, ...] = ()
    """How many it trains, validates and tests on."""
    refused: str = ""
    """Why it does not take part, or what it could not do, until it does something again."""
    updated: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> "ClientStatus | None":
        """Read that of a member's folder; None where there is none yet."""
        return _read(cls, folder)


Kept = TypeVar("Kept", Status, ClientStatus)


def _read(cls: type[Kept], folder: Path) -> Kept | None:
    try:
        return from_json(cls, json.loads((folder / FILE).read_text("utf-8")))
    except (FileNotFoundError, ValueError):
        return None


@dataclass
class StatusFile(Generic[Kept]):
    """Keeps the file up to date."""

    folder: Path
    status: Kept

    def update(self, **changes: Any) -> None:
        """Change some of it, and write it if anything changed."""
        changed = replace(self.status, **changes)
        if changed != self.status or not (self.folder / FILE).exists():
            self.status = changed
            stamped = replace(changed, updated=time.time())
            atomic.write_file(self.folder / FILE, json.dumps(to_json(stamped), indent=1).encode())
