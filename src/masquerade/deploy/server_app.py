"""The server's part inside a carrier: the same whatever carries.

Its process is started by the carrier, so it writes down for whoever keeps it that it runs, and how
it ended.
"""

import json
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from masquerade.deploy.carrier import Carrier
from masquerade.deploy.layout import ServerFolder
from masquerade.deploy.nodes import Nodes
from masquerade.deploy.processes import Process, forget
from masquerade.errors import MasqueradeError
from masquerade.storage import atomic

NAME = "server-app"
LATE = 60.0
"""Seconds after a deadline in which an answer still comes, to be counted as late."""


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


def run(folder: Path, carrier: Callable[[Nodes, float], Carrier], number: str) -> None:
    """Train until all is done, or until an operator has to mend something."""
    from masquerade.deploy.federation import FederationConfig
    from masquerade.deploy.server import serve

    layout = ServerFolder(folder)
    Process.here(NAME).record(layout.state)
    try:
        config = FederationConfig.load(layout.settings)
        serve(folder, carrier(Nodes(layout.nodes), 2 * config.fleet.deadline + LATE))
        outcome = Outcome(number)
    except MasqueradeError as error:
        outcome = Outcome(number, str(error))
    except Exception:
        # The carrier takes what a process prints to itself.
        atomic.write_file(layout.state / "logs" / f"{NAME}.log", traceback.format_exc().encode())
        raise
    finally:
        forget(layout.state, NAME)
    atomic.write_file(layout.outcome, json.dumps(asdict(outcome)).encode())
