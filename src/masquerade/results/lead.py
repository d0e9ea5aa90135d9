"""Which metric leads: the one that tables, pages, cards and comparisons put first.

Summaries hold the task's own metric first, and further ones beside it. Reports read them through
`led`, so that whatever they say of the metric is said of the one that was asked for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from masquerade.errors import MasqueradeError, nearest
from masquerade.results.accuracy import Accuracy, Statistics
from masquerade.results.summary import (
    Baseline,
    ClientFigures,
    ClientMetric,
    Novel,
    RuleFigures,
    Summary,
)


def with_lead(results: Sequence[Summary], metric: str) -> list[Summary]:
    """Return results whose reports put a metric first; E201 where one of them does not have it."""
    for each in results:
        known = (each.metric, *each.metrics)
        if metric not in known:
            text = (
                f"`{metric}` was not measured for `{each.method}`{nearest(metric, known)}; choose"
            )
            text += f" from {', '.join(known)}, or name it in `evaluate.metrics` and train"
            raise MasqueradeError("E201", text)
    return [replace(each, lead=metric) for each in results]


def led(results: Sequence[Summary]) -> list[Summary]:
    """Return results with the metric that leads in the first place, and the task's own beside it.

    What was led before comes out as it is.
    """
    return [_led(each) for each in results]


def _led(summary: Summary) -> Summary:
    name, own = summary.lead, summary.metric
    if name in ("", own):
        return summary
    accuracy, metrics = _swapped(summary, summary.accuracy, summary.metrics)
    novel = summary.novel and _novel(summary, summary.novel, accuracy)
    view, further = summary.global_view, summary.global_metrics
    if view is not None:
        view, further = _swapped(summary, view, further)
    task = summary.measured or own
    return replace(
        summary,
        metric=name,
        better=accuracy.better,
        accuracy=accuracy,
        metrics=metrics,
        per_client=summary.per_client and _clients(summary, summary.per_client),
        global_view=view,
        global_metrics=further,
        rules={rule: _rule(summary, found) for rule, found in summary.rules.items()},
        majority=summary.majority and _majority(summary, summary.majority),
        novel=novel,
        measured="" if name == task else task,
    )


def _swapped(
    summary: Summary, accuracy: Accuracy, metrics: Mapping[str, Accuracy]
) -> tuple[Accuracy, dict[str, Accuracy]]:
    """Return the figures of the metric that leads, and all others by name, the former first."""
    before = replace(accuracy, percent=summary.percent)
    rest = {name: each for name, each in metrics.items() if name != summary.lead}
    nothing = Statistics(math.nan, math.nan, defined=0)
    given = summary.metrics[summary.lead]
    absent = Accuracy(nothing, better=given.better, percent=given.percent)
    return metrics.get(summary.lead, absent), {summary.metric: before} | rest


def _rule(summary: Summary, found: RuleFigures) -> RuleFigures:
    """Put the metric first in the figures of a rule."""
    accuracy, metrics = _swapped(summary, found.accuracy, found.metrics)
    clients = found.per_client and _clients(summary, found.per_client)
    return replace(found, accuracy=accuracy, metrics=metrics, per_client=clients)


def _majority(summary: Summary, found: Baseline) -> Baseline:
    """Put the metric first in the figures of the majority class."""
    accuracy, metrics = _swapped(summary, found.accuracy, found.metrics)
    clients = found.per_client and _clients(summary, found.per_client)
    novel = found.novel and _novel(summary, found.novel, accuracy)
    return replace(found, accuracy=accuracy, metrics=metrics, per_client=clients, novel=novel)


def _novel(summary: Summary, found: Novel, others: Accuracy) -> Novel:
    """Put the metric first in the figures of novel clients, behind which `others` may be."""
    accuracy, metrics = _swapped(summary, found.accuracy, found.metrics)
    clients = _clients(summary, found.clients)
    gap = others.own.mean - accuracy.own.mean
    return replace(found, clients=clients, accuracy=accuracy, metrics=metrics, gap=gap)


def _clients(summary: Summary, found: ClientFigures) -> ClientFigures:
    """Put the metric first in the figures of clients; files of older versions have none of it."""
    nothing = ClientMetric((None,) * len(found.ids))
    mine = found.metrics.get(summary.lead, nothing)
    rest = {name: each for name, each in found.metrics.items() if name != summary.lead}
    before = ClientMetric(found.own, found.shift, found.pooled)
    return replace(
        found,
        own=mine.own,
        shift=mine.shift,
        pooled=mine.pooled,
        metrics={summary.metric: before} | rest,
    )
