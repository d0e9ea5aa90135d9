"""Which trial of a method is best, and which are not separated from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from masquerade.report.intervals import Interval, of_difference
from masquerade.results import Summary
from masquerade.results.json_records import Json
from masquerade.sweeps.objective import Objective

BEST, CLOSE, BEHIND, LOST = "best", "not separated", "behind", "diverged"
UNTESTED = "cannot be tested"


@dataclass(frozen=True)
class Row:
    """A trial of a method: its settings, what it reached, and how it stands to the best."""

    method: str
    title: str
    settings: Mapping[str, Json]
    runs: tuple[str, ...]
    """Run directories inside the sweep's, one per seed."""
    mean: float
    """Over seeds; NaN where one of them diverged."""
    half: float | None
    """Half of its 95 % interval, where there is one."""
    by: str
    """What the interval is taken over: "seeds" or "clients"."""
    standing: str = BEHIND
    difference: Interval | None = None
    """How far the best is ahead, paired by seeds or by clients."""
    behind: float | None = None
    """How far the mean of the best is ahead, also where it cannot be tested."""


@dataclass(frozen=True)
class Tried:
    """A trial of a method, and the summaries of its seeds."""

    method: str
    settings: Mapping[str, Json]
    runs: tuple[str, ...]
    seeds: Sequence[Summary]

    def row(self, objective: Objective) -> Row:
        """Return the row before it is compared."""
        found, title = objective.figure(self.seeds), self.seeds[0].title
        figures = (found.mean, found.half, found.by)
        standing = LOST if found.lost else BEHIND
        return Row(self.method, title, self.settings, self.runs, *figures, standing)


def score(tried: Tried, objective: Objective) -> float:
    """Return what is to be as high as possible; NaN where a seed diverged."""
    return objective.figure(tried.seeds).mean * objective.sign(tried.seeds)


def stand(trials: Sequence[Tried], objective: Objective) -> list[Row]:
    """Return the rows of one method's trials, the best of them marked: the first of equal ones.

    A trial that diverged is never the best.
    """
    scores = [score(each, objective) for each in trials]
    finite = [place for place, value in enumerate(scores) if math.isfinite(value)]
    rows = [each.row(objective) for each in trials]
    if not finite:
        return rows
    best = max(finite, key=lambda place: scores[place])
    for place in finite:
        ahead = of_difference(
            objective.trained(trials[best].seeds), objective.trained(trials[place].seeds)
        )
        behind = scores[best] - scores[place]
        rows[place] = replace(
            rows[place], standing=_standing(ahead, behind), difference=ahead, behind=behind
        )
    rows[best] = replace(rows[best], standing=BEST, difference=None, behind=None)
    return rows


def _standing(ahead: Interval | None, behind: float) -> str:
    """Say how a trial stands to the best; equal ones need no test."""
    if ahead is None:
        return UNTESTED if behind else CLOSE
    return CLOSE if ahead.sign == 0 else BEHIND
