"""What every tracker logs of a run, and under which names."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from masquerade.experiments.callbacks import Callback, Run
from masquerade.experiments.result import Result
from masquerade.results import AVERAGED, Accuracy, EvaluationRecord, RoundRecord, Summary

Values = Mapping[str, float]
"""Numbers by name; a name is made of letters, digits, `_`, `.`, `-` and `/`."""


class Tracker(Callback, ABC):
    """Logs settings, rounds, evaluations and the final summary; every training is a run of its own.

    A subclass says how a run begins, how numbers are logged, and how it ends, well or not.
    """

    def __init__(self) -> None:
        self._run: Run | None = None

    @abstractmethod
    def begin(self, name: str, settings: Mapping[str, Any], step: int) -> None:
        """Begin the run of one training, whose first round here is `step`."""

    @abstractmethod
    def log(self, values: Values, step: int) -> None:
        """Log numbers after a round."""

    @abstractmethod
    def end(self, values: Values, step: int) -> None:
        """Log the final summary, and end the run."""

    def fail(self) -> None:
        """End the run of a training that has no end: an error was raised, or it was stopped."""

    def on_evaluation(self, run: Run, record: EvaluationRecord) -> None:
        """Log what was measured between rounds."""
        self._enter(run, record.round)
        self.log(of_evaluation(record), record.round)

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Log what a round had and cost."""
        self._enter(run, record.round)
        self.log(of_round(record), record.round)

    def on_end(self, run: Run, result: Result) -> None:
        """Log the last point of every curve, and the summary."""
        self._enter(run, run.rounds)
        last = {each.view: each.accuracy.own.mean for each in result.summaries}
        self.log({f"own/{view}": mean for view, mean in last.items()}, run.rounds)
        self.end(plainly_named(of_summaries(result.summaries)), run.rounds)
        self._run = None

    def on_error(self, run: Run, error: BaseException) -> None:
        """End the run, so that nothing is left open and nobody takes it for finished."""
        if run is self._run:
            self._run = None
            self.fail()

    def _enter(self, run: Run, step: int) -> None:
        """Begin a run where this is the first that is heard of it."""
        if run is not self._run:
            self._run = run
            self.begin(name_of(run), settings_of(run), step)


def name_of(run: Run) -> str:
    """Name a run by method and seed, with what a folder can be called."""
    return f"{re.sub('[^a-zA-Z0-9._=-]+', '_', run.name)}-seed{run.seed}"


def plainly_named(values: Values) -> dict[str, float]:
    """Name numbers without what trackers refuse: names of classes may have any characters.

    Classes whose names are the same then, as those of "<50" and ">50", are told apart.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        called = re.sub(r"[^\w./-]", "_", name.replace(":", "/"))
        while called in found:
            called += "_"
        found[called] = value
    return found


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings of a run, one by one."""
    flat = {
        f"{section}.{key}": value
        for section, settings in run.settings.items()
        for key, value in settings.items()
    }
    return {"method": run.name, "seed": run.seed, **flat}


def of_evaluation(record: EvaluationRecord) -> dict[str, float]:
    """Return the metric on own data by view, and the costs of a client so far."""
    found = {"cost/down": record.down, "cost/up": record.up, "cost/flops": record.flops}
    for view, own in record.views.items():
        found |= {f"own/{view}": own.mean, f"own_std/{view}": own.std}
    return found


def of_round(record: RoundRecord) -> dict[str, float]:
    """Return how many clients took part in a round, and what it cost all of them together."""
    counts = {"clients": record.clients, "lost": record.lost, "refused": record.refused}
    found = {f"round/{name}": float(len(each)) for name, each in counts.items()}
    # Bytes by part have a slash in their names: they add up to those of their direction.
    return found | {f"round/{key}": cost for key, cost in record.costs.items() if "/" not in key}


def of_summaries(summaries: tuple[Summary, ...]) -> dict[str, float]:
    """Return the final figures of every view, also under rules on outputs."""
    found: dict[str, float] = {}
    for each in summaries:
        spent = each.costs.train
        place = f"final/{each.view}"
        found |= _figures(place, each.accuracy, each.metrics)
        for rule, figures in each.rules.items():
            found |= _figures(f"{place}/{rule}", figures.accuracy, figures.metrics)
        found |= {
            f"{place}/density": each.model.density,
            f"{place}/down": spent.bytes.down,
            f"{place}/up": spent.bytes.up,
            f"{place}/flops": spent.flops.masked,
            f"{place}/diverged": float(each.diverged is not None),
        }
    return found


def _figures(place: str, accuracy: Accuracy, metrics: Mapping[str, Accuracy]) -> dict[str, float]:
    steps = {"shift": accuracy.shift, "pooled_shift": accuracy.pooled}
    corruption = accuracy.corruption.get(AVERAGED)
    found: dict[str, float | None] = {
        "own": accuracy.own.mean,
        "own_std": accuracy.own.std,
        "own_by_samples": accuracy.own.weighted,
        "own_bottom_decile": accuracy.own.bottom_decile,
        **{name: by[AVERAGED].mean for name, by in steps.items() if AVERAGED in by},
        **({"corruption": corruption[AVERAGED].mean} if corruption else {}),
        **{name: metric.own.mean for name, metric in metrics.items()},
    }
    return {f"{place}/{name}": value for name, value in found.items() if value is not None}
