"""Pieces of HTML, whose texts are escaped: elements, tables, marks of methods."""

import html
import json
import re
from collections.abc import Iterable, Sequence
from itertools import repeat

from masquerade.report.charts import color_of, shape_of
from masquerade.report.tables import Figure, show, split

_OUTLINES = {
    "circle": "M8 3a5 5 0 1 1 0 10a5 5 0 1 1 0-10Z",
    "square": "M3.5 3.5h9v9h-9Z",
    "diamond": "M8 1.8l5 6.2l-5 6.2l-5-6.2Z",
    "triangle-up": "M8 3l5.6 9.6H2.4Z",
    "triangle-down": "M8 13L2.4 3.4h11.2Z",
    "triangle-right": "M13 8L3.4 13.6V2.4Z",
    "cross": "M6.2 2.5h3.6v3.7h3.7v3.6H9.8v3.7H6.2V9.8H2.5V6.2h3.7Z",
}
"""The shapes of Vega, in a square of 16."""


def element(tag: str, text: str, kind: str = "") -> str:
    """Return an element around a text."""
    return f"<{tag}{f' class={kind!r}' if kind else ''}>{html.escape(text)}</{tag}>"


def section(name: str, content: str) -> str:
    """Return a section under its heading; nothing where it has no content."""
    if not content:
        return ""
    return f'<section id="{anchor(name)}">\n<h2>{name}</h2>\n{content}\n</section>'


def anchor(name: str) -> str:
    """Return what a section is linked by."""
    return name.lower().replace(" ", "-")


def folded(title: str, content: str) -> str:
    """Return content that a reader unfolds."""
    return f"<details>{element('summary', title)}{content}</details>"


def paragraphs(texts: Iterable[str]) -> str:
    """Return soft paragraphs."""
    return "".join(element("p", text, "soft") for text in texts)


def data(id: str, value: object) -> str:
    """Return data that a script reads; no text in it can end the element that it stands in."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{id}">{text}</script>'


def mark(place: int) -> str:
    """Return a method's marker, as it is in figures."""
    return (
        f'<svg class="mark" viewBox="0 0 16 16" aria-hidden="true">'
        f'<path fill="{color_of(place)}" d="{_OUTLINES[shape_of(place)]}"/></svg>'
    )


def figure_cell(found: Figure | None, form: str, heat: float | None = None) -> str:
    """Return the inside of a cell: a figure, its spread below it, shaded where that is asked."""
    text = cell(*split(show(found, form)))
    return text if heat is None else f'<span class="heat" style="--heat: {heat:.2f}">{text}</span>'


def cell(value: str, rest: str = "", best: bool = False) -> str:
    """Return the inside of a cell: a value, bold where it leads, and what stands below it."""
    shown = element("strong", value) if best else html.escape(value)
    return shown + (element("small", rest) if rest else "")


_NUMBER = re.compile(r"(<[^>]*>)*\s*([-+−–±]|\d)")
"""How a cell begins that has a number, or a dash for one."""
_WORDS = ' class="words"'


def table(headings: Iterable[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table; rows are insides of cells, and their first names them.

    Columns of numbers stand to the right, those of words to the left.
    """
    body_rows = list(rows)
    wordy = [
        place > 0 and not any(map(_NUMBER.match, column))
        for place, column in enumerate(zip(*body_rows, strict=True))
    ]
    top = "".join(
        f'<th scope="col"{_WORDS if is_words else ""}>{html.escape(heading)}</th>'
        for heading, is_words in zip(headings, wordy or repeat(False), strict=False)
    )
    top = top.replace(" %", "&nbsp;%")
    body = "\n".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(
            f"<td{_WORDS if is_words else ''}>{inside}</td>"
            for inside, is_words in zip(row[1:], wordy[1:], strict=True)
        )
        + "</tr>"
        for row in body_rows
    )
    return (
        f'<div class="wide{f" {kind}" if kind else ""}" tabindex="0"><table>\n'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )
