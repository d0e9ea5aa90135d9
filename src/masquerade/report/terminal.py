"""The table of results in a terminal: as many columns as there is room for."""

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from masquerade.report import blocks, footnotes, main_table, tables
from masquerade.report.listing import Cell
from masquerade.report.tables import Results
from masquerade.results.alarms import alarms
from masquerade.results.lead import led

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

SPARED = ("Density", "Gap", "Pooled shifts", "Novel clients", "GFLOP", "Bottom decile")
"""What is left out for want of room in this order, after the mean by samples and all degrees of
shift but the last, and before the recall of classes."""


@dataclass(frozen=True)
class Fitted:
    """A table of results that is drawn when the width of the terminal is known."""

    title: str
    notes: list[str]
    headings: list[str]
    body: list[list[Cell]]
    blocks: dict[str, int]
    """Blocks of the table, and how many rows each has."""

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Draw the table for a console."""
        yield self.table(options.max_width)

    def table(self, width: int) -> "Table":
        """Return the table for so many columns of text: spreads below values, leads bold."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        shown = self.shown(width)
        left = [name for name in self.headings if name not in shown]
        notes = [*self.notes, *([f"For want of room without: {', '.join(left)}."] if left else [])]
        table = Table(
            title=Text(self.title),
            caption=Text("\n".join(notes), justify="left"),
            box=box.SIMPLE_HEAD,
            # A blank on either side of a column, where all of them have room for it.
            padding=(0, 1) if sum(shown.values()) + 3 * len(shown) <= width else 0,
            show_edge=False,
        )
        for name in shown:
            first = name == self.headings[0]
            table.add_column(
                _two_lines(name), justify="left" if first else "right", overflow="fold"
            )
        ends = set(accumulate(self.blocks.values()))
        for number, row in enumerate(self.body, 1):
            by_name = dict(zip(self.headings, row, strict=True))
            cells = [by_name[name] for name in shown]
            texts = [
                Text.assemble((cell.value, "bold" if cell.best else ""), (_below(cell), "dim"))
                for cell in cells
            ]
            table.add_row(*texts, end_section=number in ends)
        return table

    def shown(self, width: int) -> dict[str, int]:
        """Return the columns that so many columns of text have room for, and their widths."""
        widths = {}
        for place, name in enumerate(self.headings):
            texts = [row[place].value + _below(row[place]) for row in self.body]
            widths[name] = max(map(len, "\n".join([_two_lines(name), *texts]).splitlines()))
        first = ([tables.BY_SAMPLES], tables.between(self.headings))
        by_class = [name for name in self.headings if name.startswith("Recall, ")]
        for names in (*first, *([name] for name in SPARED), by_class):
            # Columns are one blank apart.
            if sum(widths.values()) + len(widths) - 1 <= width:
                break
            widths = {name: found for name, found in widths.items() if name not in names}
        return widths


def _two_lines(name: str) -> str:
    return "\n".join(name.rsplit(" ", 1))


def _below(cell: Cell) -> str:
    return "\n" + cell.rest.replace("± ", "±").replace(" (", "\n(") if cell.rest else ""


def terminal(results: Results) -> Fitted:
    """Return the table for a terminal of any width."""
    results = led(results)
    headings, body = main_table.cells(results)
    parts = blocks.parted(body, tables.by_row(results).values())
    sizes = {title: len(part) for title, part in parts.items()}
    warned = [f"{text}." for text in alarms(results)]
    notes = [*warned, *footnotes.footnotes(results)]
    return Fitted(tables.heading(results), notes, headings, body, sizes)
