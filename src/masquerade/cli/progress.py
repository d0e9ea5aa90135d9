"""Live progress in the terminal, with the time that is left."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def live(quiet: bool) -> Iterator[Any]:
    """Show live progress, with the time that is left; yield what the work reports to."""
    if quiet:
        yield lambda name, done, rounds, record, share=None: None
        return
    from rich.console import Console
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
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("preparing", total=1.0, status="")
        latest: dict[str, str] = {}

        def watch(
            name: str,
            done: int,
            rounds: int,
            record: dict[str, Any] | None,
            share: float | None = None,
        ) -> None:
            if record and record["views"]:
                own = next(iter(record["views"].values()))["mean"]
                latest[name] = f", {own:.1f} on own data"
            progress.update(
                bar,
                description=name,
                completed=done / rounds if share is None else share,
                status=f"round {done} of {rounds}{latest.get(name, '')}",
            )

        yield watch


def echo(what: Any) -> None:
    """Print a table in full, whatever it is printed to."""
    from rich.console import Console

    console = Console()
    # A pipe has no width of its own: give it room instead of folding columns.
    console.print(what) if console.is_terminal else Console(width=160).print(what)
