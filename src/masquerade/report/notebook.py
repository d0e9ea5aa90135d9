"""Results in a notebook: the table and the main figures, as HTML that needs no network."""

import html

from masquerade.cost.bandwidth import FEDMASK
from masquerade.report import footnotes, plots, render, tables
from masquerade.report.page import results_table
from masquerade.report.tables import Results
from masquerade.results.alarms import alarms
from masquerade.results.lead import led

SHOWN = ("rounds", "clients", "shift")
"""The figures that are drawn; the page has all of them."""

_CSS = """
.masquerade table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.masquerade th, .masquerade td { padding: 0.2rem 0.6rem; text-align: right; vertical-align: top; }
.masquerade th:first-child { text-align: left; }
.masquerade td small { display: block; opacity: 0.7; }
.masquerade .wide { overflow-x: auto; }
.masquerade .figures { display: flex; flex-wrap: wrap; gap: 1rem; }
.masquerade .mark { width: 0.8em; height: 0.8em; margin-right: 0.4em; }
.masquerade .figures svg { width: 28rem; max-width: 100%; height: auto; }
.masquerade p { max-width: 60rem; }
.masquerade summary { cursor: pointer; }
.masquerade details p { margin: 0.3rem 0; }
"""


def fragment(results: Results) -> str:
    """Return the table of results and the main figures, without figures where none can be drawn."""
    warned = "".join(f"<p>{html.escape(text)}.</p>\n" for text in alarms(results))
    results = tables.under_rules(led(results))
    charts = plots.figures(results, FEDMASK, SHOWN) if render.can_draw() else {}
    bold = "".join(f"<p>{html.escape(note)}</p>\n" for note in footnotes.about_bold(results))
    figures = "".join(
        f"<div><strong>{chart.title}</strong><br>{render.svg(chart.alone(), chart.title)}</div>"
        for chart in charts.values()
    )
    return (
        f'<div class="masquerade"><style>{_CSS}</style>\n'
        f"<p>{html.escape(tables.heading(results))}</p>\n{warned}{results_table(results)}\n{bold}"
        f'<div class="figures">{figures}</div>\n{_notes(results)}</div>'
    )


def _notes(results: Results) -> str:
    """Fold what a reader of the table needs once, and not under every cell."""
    above = footnotes.about_bold(results)
    folded = [note for note in footnotes.footnotes(results) if note not in above]
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in folded)
    return f"<details><summary>How to read this</summary>{notes}</details>"
