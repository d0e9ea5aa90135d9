"""Commits and resume: a run's state goes to its directory beside the computation, and back.

How a commit lies on the disk is `storage/run_directory.py`, what it holds `simulation/state.py`.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import zip_longest

import torch

from masquerade.core.part import Part
from masquerade.cost import memory
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import Record, RunState
from masquerade.storage.run_directory import Facts, Lines, RunDirectory, Tensors
from masquerade.wire import digest

Commit = Callable[[RunState, Record, bool], None]
"""Called after a round with the state, the line of metrics, and whether the round is the last."""


@contextmanager
def checkpointed(
    directory: RunDirectory | None, every: float, origin: Record, state: RunState
) -> Iterator[Commit]:
    """Give what commits rounds, `every` so many seconds; at the end all of them are committed.

    Without a directory nothing is. `origin` is written with every commit.
    """
    if directory is None:
        yield lambda state, record, last: None
        return
    committer, lines = Committer(directory, every), []

    def commit(state: RunState, record: Record, last: bool) -> None:
        lines.append(record)
        if not last and not committer.due():
            return
        state.memory = memory.most(state.memory, memory.peak(state.rows.device))
        with state.clock.measure("commits"):
            facts = state.facts() | origin
            committer.submit(state.number, state.snapshot(), facts, list(lines))
        lines.clear()

    try:
        yield commit
    finally:
        with state.clock.measure("commits"):
            committer.close()


def restore(state: RunState, directory: RunDirectory, now: Record) -> None:
    """Put a state to the newest commit of its directory, if that is one of the same run."""
    commit = directory.latest()
    if commit is not None:
        _check_origin(commit.facts, now)
        state.restore(commit.number, commit.tensors, commit.facts)


def origin(simulation: Simulation, config: str) -> Record:
    """Return the facts that have to be the same when a run is resumed."""
    data = simulation.federation.fingerprint()
    initial = int(digest(Part(simulation.server.task.initial)))
    return {"config": config, "data": data, "initial": initial, "torch": torch.__version__}


def _check_origin(began: Record, now: Record) -> None:
    """Refuse other settings or data than the run began with; warn of another torch."""
    if began["config"] != now["config"]:
        lines = (text["config"].splitlines() for text in (began, now))
        pairs = zip_longest(*lines, fillvalue="nothing")
        changes = ", ".join(f"{old} → {new}" for old, new in pairs if old != new)
        raise MasqueradeError(
            "E402", f"settings differ from the run's: {changes}; put them back, or start a new run"
        )
    if began["data"] != now["data"]:
        text = "the data differ from those this run began with; restore them, or start a new run"
        raise MasqueradeError("E402", text)
    if began.get("initial", now["initial"]) != now["initial"]:
        text = "the initial weights differ from those this run began with; restore their file"
        raise MasqueradeError("E402", text)
    if began["torch"] != now["torch"]:
        warnings.warn(
            f"W402 this run began under torch {began['torch']}, this is {now['torch']}: "
            "the last bits may differ",
            MasqueradeWarning,
            stacklevel=2,
        )


class Committer:
    """Commits beside the computation: one at a time, in one background thread."""

    def __init__(self, directory: RunDirectory, every: float = 5.0) -> None:
        """Take the directory, and the seconds between commits (0: every round)."""
        self.directory = directory
        self.every = every
        self._since = time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._running: Future[None] | None = None

    def due(self) -> bool:
        """Tell whether `every` seconds have passed and the last commit is written.

        Where a disk is slower than that, rounds do not wait for it.
        """
        idle = not self.every or self._running is None or self._running.done()
        return idle and time.monotonic() - self._since >= self.every

    def submit(
        self, number: int, fetch: Callable[[], Tensors], facts: Facts, lines: Lines = ()
    ) -> None:
        """Hand over what nobody will change any more; wait for the previous, or raise its error."""
        self._settle()
        self._since = time.monotonic()
        self._running = self._thread.submit(
            lambda: self.directory.commit(number, fetch(), facts, lines)
        )

    def close(self) -> None:
        """Wait until all that was handed over is committed, or raise why it is not."""
        self._thread.shutdown()
        self._settle()

    def _settle(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.result()
