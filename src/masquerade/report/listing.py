"""Tables of texts, and how they are written: Markdown, LaTeX, CSV, in a terminal."""

import io
from collections.abc import Iterable, Mapping, Sequence
from csv import DictWriter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Group


class Cell(NamedTuple):
    """A cell: its value, what follows it, and whether it is separated as the best."""

    value: str
    rest: str = ""
    best: bool = False


Row = Sequence[Cell | str]


@dataclass(frozen=True)
class Listing:
    """A table: its title, its headings, its rows, and what stands below."""

    title: str
    headings: Sequence[str]
    body: Sequence[Row]
    note: str = ""
    blocks: Mapping[int, str] | None = None
    """What stands above a row where a block begins, by the place of the row."""


def csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Write records as CSV: a column for every key that any has, empty where one has none."""
    text = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def records(listings: Iterable[Listing]) -> list[dict[str, object]]:
    """Return the rows of tables as records, by their headings."""
    return [
        {heading: _joined(cell, "{}") for heading, cell in zip(each.headings, row, strict=True)}
        for each in listings
        for row in each.body
    ]


def markdown(listings: Iterable[Listing]) -> str:
    """Write tables in Markdown, values that lead bold."""
    parts = []
    for each in listings:
        above = f"{each.title}:\n\n" if each.title else ""
        below = f"\n{each.note.replace(chr(10), ' ')}\n" if each.note else ""
        parts.append(f"{above}{markdown_table(each)}\n{below}")
    return "\n".join(parts)


def markdown_table(listing: Listing) -> str:
    """Write a table in Markdown without what stands around it, its first column to the left."""
    width = len(listing.headings)
    lines = [_piped(listing.headings), "|---" + "|--:" * (width - 1) + "|"]
    for place, row in enumerate(listing.body):
        if title := (listing.blocks or {}).get(place):
            lines.append(f"| *{title}* |" + " |" * (width - 1))
        lines.append(_piped([_joined(each, "**{}**") for each in row]))
    return "\n".join(lines)


def _piped(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", r"\|") for text in texts) + " |"


def _joined(cell: Cell | str, bold: str) -> str:
    """Write a cell, its value in a form where it leads."""
    if isinstance(cell, str):
        return cell
    return f"{bold.format(cell.value) if cell.best else cell.value} {cell.rest}".strip()


_LATEX = {
    "\\": r"\textbackslash{}",
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "⁶": "$^6$",
    "\u00a0": "~",
}
"""What LaTeX reads otherwise, or may have no letter for."""


def latex(listings: Iterable[Listing]) -> str:
    r"""Write tables in LaTeX, with the rules of `\usepackage{booktabs}`."""
    return "\n".join(map(_tabular, listings))


def _tabular(listing: Listing) -> str:
    width = len(listing.headings)
    lines = [f"% {line}" for line in (listing.title, *listing.note.splitlines()) if line]
    lines += [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    lines += [_line(map(_escaped, listing.headings)), r"\midrule"]
    for place, row in enumerate(listing.body):
        if title := (listing.blocks or {}).get(place):
            lines += [r"\midrule"] * bool(place)
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{_escaped(title)}}}}} \\")
        lines.append(_line(_set(each) for each in row))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _line(texts: Iterable[str]) -> str:
    return " & ".join(texts) + r" \\"


def _set(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return _escaped(cell)
    value = _escaped(cell.value)
    return f"{_bold(value) if cell.best else value} {_escaped(cell.rest)}".strip()


def _bold(text: str) -> str:
    return rf"\textbf{{{text}}}"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def terminal(listings: Iterable[Listing]) -> "Group":
    """Return tables for a terminal."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    drawn: list[Table | Text] = []
    for each in listings:
        table = Table(
            title=Text(each.title),
            caption=Text(each.note, justify="left"),
            box=box.SIMPLE_HEAD,
            show_edge=False,
        )
        for place, heading in enumerate(each.headings):
            table.add_column(heading, justify="right" if heading or place else "left")
        for row in each.body:
            table.add_row(*(Text(_joined(cell, "{}")) for cell in row))
        drawn += [table, Text()]
    return Group(*drawn)
