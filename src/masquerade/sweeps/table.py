"""The table of a sweep: a row per trial, its settings, what it reached, how it stands."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from masquerade.report.footnotes import UNTESTED as WHY
from masquerade.report.listing import Listing
from masquerade.sweeps.choice import BEST, CLOSE, LOST, UNTESTED, Row
from masquerade.sweeps.space import written

if TYPE_CHECKING:
    from rich.table import Table

ABSENT = "–"
HEADINGS = ("Method", "Trial", "Validation", "Behind the best", "")


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table as texts."""
    return [
        [row.title, written(row.settings), _figure(row), _difference(row), _standing(row)]
        for row in rows
    ]


def _figure(row: Row) -> str:
    if row.standing == LOST:
        return LOST
    return f"{row.mean:.2f}" + ("" if row.half is None else f" ± {row.half:.2f}")


def _difference(row: Row) -> str:
    found = row.difference
    if found is None:
        return ABSENT if row.behind is None else f"{row.behind:.2f}"
    return f"{found.value:.2f} ({found.low:.2f} … {found.high:.2f})"


def _standing(row: Row) -> str:
    return row.standing if row.standing in (BEST, CLOSE, UNTESTED) else ""


def notes(rows: Sequence[Row], metric: str) -> list[str]:
    """Say what the figures are."""
    kinds = sorted({row.by for row in rows if row.by})
    lines = [f"Validation: `{metric}` on clients' own validation data, mean over seeds."]
    if kinds:
        over = " or ".join(kinds)
        lines.append(f"± and the paired differences in parentheses: 95 % intervals over {over}.")
    close = sum(row.standing == CLOSE for row in rows)
    if close:
        lines.append("Not separated: no paired interval tells the trial from the best.")
    if any(row.standing == UNTESTED for row in rows):
        lines.append(f"Cannot be tested: {WHY}.")
    return lines


def listing(rows: Sequence[Row], metric: str) -> Listing:
    """Return the table as texts."""
    return Listing("", HEADINGS, cells(rows), "\n".join(notes(rows, metric)))


def terminal(rows: Sequence[Row], metric: str) -> "Table":
    """Return the table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    caption = Text("\n".join(notes(rows, metric)), justify="left")
    table = Table(caption=caption, box=box.SIMPLE_HEAD, show_edge=False)
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if place in (2, 3) else "left")
    for number, (row, texts) in enumerate(zip(rows, cells(rows), strict=True), 1):
        last = number == len(rows) or rows[number].method != row.method
        style = "bold" if row.standing == BEST else ""
        table.add_row(*texts, style=style, end_section=last)
    return table
