"""The server's part inside a carrier: the same whatever carries.

Its process is started by the carrier, so it writes down for whoever keeps it that it runs, and how
it ended.
"""

import json
import logging
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from masquerade.deploy.carrier import Carrier
from masquerade.deploy.layout import ServerFolder
from masquerade.deploy.nodes import Nodes
from masquerade.deploy.processes import Process, end, forget, recorded, rotating, running
from masquerade.deploy.status import Status
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.storage import atomic

NAME = "server-app"
LATE = 60.0
"""Seconds after a deadline in which an answer still comes, to be counted as late."""
IN_USE = "E404"
"""What is said where another process has a run open."""
MOST_DOUBLED = 5
"""How often the wait before a start is doubled: half a minute at most."""


@dataclass(frozen=True)
class Outcome:
    """How a run of the server's part ended."""

    run: str
    """The carrier's number of it."""
    error: str = ""
    """What an operator has to mend; empty where training is done."""

    @staticmethod
    def read(path: Path) -> "Outcome | None":
        """Return the last one; None where there is none."""
        try:
            return Outcome(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Starts:
    """How often the server's part was started again, and no round was done since."""

    in_vain: int = 0
    round: int = -1

    def after(self, status: Status | None) -> "Starts":
        """Return them after one more start."""
        done = status.round if status else 0
        return Starts(self.in_vain + 1 if done == self.round else 0, done)

    @property
    def wait(self) -> float:
        """Return the seconds until the next start; they grow as long as no round is done."""
        return 2.0 ** min(self.in_vain, MOST_DOUBLED)

    def write(self, path: Path) -> None:
        """Write them, for whoever wants to know how the server is."""
        atomic.write_file(path, json.dumps(asdict(self)).encode())

    @staticmethod
    def read(path: Path) -> "Starts":
        """Read them."""
        try:
            return Starts(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return Starts()


def run(folder: Path, carrier: Callable[[Nodes, float], Carrier], number: str) -> None:
    """Train until all is done, or until an operator has to mend something."""
    from masquerade.deploy.federation import FederationConfig
    from masquerade.deploy.server import serve

    layout = ServerFolder(folder)
    # Whoever was so slow to come that another was started would hold the run for itself.
    before = running(layout.state).get(NAME)
    end([before] if before is not None else [])
    here = Process.here(NAME)
    here.record(layout.state)
    log = _log(layout.state)
    try:
        config = FederationConfig.load(layout.settings)
        serve(folder, carrier(Nodes(layout.nodes), 2 * config.fleet.deadline + LATE))
        outcome = Outcome(number)
    except MasqueradeError as error:
        log.error("%s", error)
        if error.code == IN_USE:
            # Nothing to mend: the next start ends whoever uses it, or finds that it is free.
            raise
        outcome = Outcome(number, str(error))
    except Exception:
        log.error("%s", traceback.format_exc())
        raise
    finally:
        if recorded(layout.state).get(NAME) == here:
            forget(layout.state, NAME)
    atomic.write_file(layout.outcome, json.dumps(asdict(outcome)).encode())


def _log(folder: Path) -> logging.Logger:
    """Have every warning in the log: the carrier takes what a process prints to itself."""
    log = logging.getLogger(NAME)
    log.addHandler(rotating(folder, NAME))

    def told(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        log.warning("%s", message)

    warnings.showwarning = told
    warnings.simplefilter("always", MasqueradeWarning)
    return log
