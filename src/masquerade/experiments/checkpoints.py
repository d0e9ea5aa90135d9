"""Commits of a run: its state goes to its directory beside the computation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from masquerade.cost import memory
from masquerade.simulation.state import Record, RunState
from masquerade.storage.run_directory import Committer, RunDirectory

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
