"""Live progress in the terminal, with the time that is left."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from masquerade.errors import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from masquerade.experiments.callbacks import Callback


@contextmanager
def live(quiet: bool) -> "Iterator[Sequence[Callback]]":
    """Show live progress, with the time that is left; yield the callbacks that show it."""
    if quiet:
        yield ()
        return
    from masquerade.experiments.progress import in_terminal

    with in_terminal() as told:
        yield told


def echo(what: "RenderableType") -> None:
    """Print a table in full, whatever it is printed to."""
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console()
    # A pipe has no width of its own: give it room instead of folding columns.
    console = console if console.is_terminal else Console(width=160)
    drawn = (Segment(printable(one.text), one.style, one.control) for one in console.render(what))
    console.print(Segments(drawn), end="")
