"""The table of results as it is set: a row per method, who leads in bold, footnotes."""

from masquerade.report import blocks, listing
from masquerade.report.footnotes import footnotes
from masquerade.report.leads import leads
from masquerade.report.listing import Cell, Listing
from masquerade.report.tables import (
    Results,
    by_kind,
    by_row,
    heading,
    kind_name,
    number_format,
    rows,
    show,
    split,
    title_of,
)
from masquerade.results.alarms import alarms
from masquerade.results.lead import led


def markdown(results: Results) -> str:
    """Return the table in Markdown, values that lead bold, with its footnotes."""
    return listing.markdown(listings(results))


def listings(results: Results) -> list[Listing]:
    """Return the table with its footnotes, and that of corruptions where there are some."""
    results = led(results)
    headings, body = cells(results)
    parts = blocks.parted(range(len(body)), by_row(results).values())
    begins = {rows[0]: title for title, rows in parts.items()} if len(parts) > 1 else None
    warned = [f"{text}." for text in alarms(results)]
    notes = " ".join([f"{heading(results)}.", *warned, *footnotes(results)])
    return [Listing("", headings, body, notes, begins), *_kinds(results)]


def cells(results: Results) -> tuple[list[str], list[list[Cell]]]:
    """Return the headings and the rows of the table in a form that is easy to set."""
    body, ahead = rows(results), leads(results)
    table = []
    for number, row in enumerate(body):
        parts = {name: split(text) for name, text in row.items()} | {"Method": (row["Method"], "")}
        table.append(
            [
                Cell(*part, name in ahead and number in ahead[name].rows)
                for name, part in parts.items()
            ]
        )
    return [title_of(results, heading) for heading in body[0]], table


def _kinds(results: Results) -> list[Listing]:
    table, form = by_kind(results), number_format(results)
    titles = [seeds[0].title for seeds in by_row(results).values()]
    rows = [
        [kind_name(kind), *(show(each, form) for each in found)] for kind, found in table.items()
    ]
    return [Listing("", ["Corruption", *titles], rows)] if rows else []
