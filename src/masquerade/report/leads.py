"""Who is ahead in a table, as far as paired intervals can tell."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from masquerade.report import blocks
from masquerade.report.intervals import Interval, Trained, of_difference
from masquerade.report.tables import (
    Pick,
    Results,
    by_row,
    columns,
    is_baseline,
    of_clients,
    trainings,
)
from masquerade.results.metric_names import metric_title


@dataclass(frozen=True)
class Ahead:
    """How far the best row of a block is ahead of another one."""

    best: int
    of: int
    """The next best row; of rows that it is not separated from, the best."""
    gap: Interval
    """Above 0 where the best one is ahead, also where less is better."""


@dataclass(frozen=True)
class Lead:
    """Whether a row of a column is better than all others of its block."""

    rows: frozenset[int]
    """The rows that a paired 95 % interval separates from every other one of their block."""
    by: frozenset[str]
    """What was paired: "seeds", "clients"; empty where there was nothing to compare."""
    ahead: tuple[Ahead, ...] = ()
    """For every block whose best row was compared: how far it is ahead."""


def leads(results: Results) -> dict[str, Lead]:
    """Return for each column of the metric who is ahead, as far as intervals can tell.

    Rows are compared within their block alone: rules may look at what methods cannot. The majority
    class is no method, and not compared.
    """
    groups = list(by_row(results).values())
    lower, behind = lower_is_better(results), of_clients(results)
    parts = blocks.parted(range(len(groups)), groups).values()

    def lead(name: str, pick: Pick) -> Lead:
        found = [trainings(seeds, pick, behind.get(name)) for seeds in groups]
        sign = -1 if name in lower else 1
        each = [
            _lead({row: found[row] for row in part if not is_baseline(groups[row])}, sign)
            for part in parts
        ]
        rows = frozenset(row for row, _, _ in each if row is not None)
        by = frozenset(by for _, pairs, _ in each for by in pairs)
        return Lead(rows, by, tuple(ahead for _, _, ahead in each if ahead))

    return {name: lead(name, pick) for name, pick in columns(results).items()}


def _lead(
    rows: Mapping[int, Mapping[int, Trained]], sign: int
) -> tuple[int | None, set[str], Ahead | None]:
    """Return the row that is ahead of all others, if there is one, what was paired, how far."""
    means = {
        row: sign * statistics.fmean(each.figure for each in found.values())
        for row, found in rows.items()
        if found
    }
    ranked = sorted(means, key=lambda row: -means[row])
    by: set[str] = set()
    next_best: Ahead | None = None
    # The next best first: it is the one that a lead most often fails against.
    for row in ranked[1:]:
        gap = of_difference(rows[ranked[0]], rows[row])
        if gap is None:
            return None, by, None
        by |= {gap.by}
        ahead = Ahead(ranked[0], row, gap if sign > 0 else gap.turned())
        if gap.sign != sign:
            return None, by, ahead
        next_best = next_best or ahead
    return (ranked[0] if by else None), by, next_best


def lower_is_better(results: Results) -> set[str]:
    """Return the columns in which a smaller figure is the better one."""
    others = {metric_title(n): m for each in results for n, m in each.metrics.items()}
    own = columns(results).keys() - others.keys() if results[0].better == "lower" else set()
    return own | {heading for heading, metric in others.items() if metric.better == "lower"}
