"""Progress: callbacks that show it, as a bar in a terminal or in a notebook."""

import html
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from masquerade.experiments.callbacks import Callback, Run
from masquerade.experiments.result import Result
from masquerade.results import EvaluationRecord, RoundRecord

Show = Callable[[str, float, str], None]
"""Shows a method's name, the share of all rounds that is done, and a status."""

BETWEEN = 0.2
"""Seconds between two displays in a notebook, each of which is sent to a browser."""


class ProgressBar(Callback):
    """Shows the method, the round, and the last figure on own data."""

    def __init__(self, show: Show) -> None:
        """Take what shows it."""
        self._show_on = show
        self._latest: dict[str, str] = {}

    def on_evaluation(self, run: Run, record: EvaluationRecord) -> None:
        """Remember the figure of the first view."""
        for found in list(record.views.values())[:1]:
            self._latest[run.name] = f", {run.metric} {found.mean:.1f} on own data"

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Move the bar."""
        self._show(run, record.round)

    def on_end(self, run: Run, result: Result) -> None:
        """Show the final figure, which is that of the table."""
        own = result.summaries[0].accuracy.own.mean
        self._latest[run.name] = f", {run.metric} {own:.3g} on own data"
        self._show(run, run.rounds)

    def _show(self, run: Run, done: int) -> None:
        status = f"round {done} of {run.rounds}{self._latest.get(run.name, '')}"
        self._show_on(run.name, run.share, status)


@contextmanager
def shown(progress: bool) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks that show progress where somebody sees it: a notebook, a terminal."""
    if not progress:
        yield ()
    elif (display := _notebook()) is not None:
        yield (ProgressBar(in_notebook(display)),)
    elif sys.stderr is not None and sys.stderr.isatty() and find_spec("rich"):
        with in_terminal() as told:
            yield told
    else:
        yield ()


@contextmanager
def in_terminal() -> Iterator[Sequence[Callback]]:
    """Show a bar on stderr, with the time that is left."""
    # Training needs torch and numpy alone.
    from rich.console import Console
    from rich.errors import LiveError
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task("preparing", total=1.0, status="")
    try:
        bar.start()
    except LiveError:
        # The program has a display of its own, and there can be one at a time.
        yield ()
        return
    try:
        yield (
            ProgressBar(
                lambda name, share, status: bar.update(
                    task, description=name, completed=share, status=status
                )
            ),
        )
    finally:
        # A bar that never moved says nothing beside an error.
        bar.update(task, visible=bar.tasks[0].completed > 0)
        bar.stop()


def _notebook() -> Any:
    """Return IPython's displays where a notebook runs this program, else None."""
    # Whoever runs in a notebook has imported IPython; nobody else needs it.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return import_module("IPython.display")


def in_notebook(display: Any) -> Show:
    """Return what shows progress in the output of a cell, in one place."""
    handle = display.display(display.HTML("preparing"), display_id=True)
    shown_at = 0.0

    def show(name: str, share: float, status: str) -> None:
        nonlocal shown_at
        if share < 1 and time.monotonic() - shown_at < BETWEEN:
            return
        shown_at = time.monotonic()
        text = html.escape(f"{name}: {status}")
        handle.update(display.HTML(f'<progress value="{share:.4f}" max="1"></progress> {text}'))

    return show
