"""The page of a run that is under way: how far each training is, and its figures by round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from masquerade.report import plots, render
from masquerade.report.charts import Chart, titles
from masquerade.report.html_elements import cell, element, table
from masquerade.report.page import document, figure, legend
from masquerade.report.tables import ABSENT, Results

FIGURES = ("rounds", "traffic", "operations")


@dataclass(frozen=True)
class Training:
    """A row of the page."""

    title: str
    seed: int
    done: int
    rounds: int
    own: float
    """On own data, at the last evaluation; NaN before the first."""
    left: float
    """Seconds; NaN where nothing can be said."""


def page(title: str, trainings: Sequence[Training], results: Results) -> str:
    """Return the page as it is now; its script keeps it so."""
    data = "".join(f"{each.data}. " for each in results[:1])
    about = f"{data}Under way: this page keeps itself up to date, and ends as the report."
    charts = figures(results)
    lost = "The server does not answer: it was stopped. What is shown is what it said last."
    body = [
        f"<header>{element('h1', title)}{element('p', about, 'soft')}",
        f'<p class="soft" id="lost" hidden>{lost}</p></header>',
        f'<div id="progress">{progress(trainings)}</div>',
        legend(results) if charts and len(titles(results)) > 1 else "",
        f'<div class="figures">{"".join(map(figure, charts.values()))}</div>' if charts else "",
    ]
    return document(title, body, charts, live=True)


def figures(results: Results) -> dict[str, Chart]:
    """Return the figures by round, as far as there is anything to draw."""
    return plots.figures(results, only=FIGURES) if results and render.can_draw() else {}


def progress(trainings: Sequence[Training]) -> str:
    """Return the table of trainings."""
    rows = [
        [
            cell(each.title),
            cell(str(each.seed)),
            f'<progress value="{each.done}" max="{max(1, each.rounds)}"></progress>'
            + cell(f" {each.done} of {each.rounds}" if each.done else " waiting"),
            cell(ABSENT if math.isnan(each.own) else f"{each.own:.1f}"),
            cell(duration(each.left)),
        ]
        for each in trainings
    ]
    return table(["Training", "Seed", "Rounds", "Own data", "Time left"], rows)


def duration(seconds: float) -> str:
    """Write how long something takes, to a person who waits."""
    if math.isnan(seconds):
        return ABSENT
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes}:{rest:02}"
