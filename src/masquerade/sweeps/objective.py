"""What trials are compared by: a figure on validation data, higher or lower being better."""

from dataclasses import dataclass

from masquerade.errors import MasqueradeError, nearest
from masquerade.metrics import METRICS
from masquerade.report.intervals import Trained
from masquerade.report.tables import (
    ClientPick,
    Figure,
    Pick,
    Results,
    client_step,
    figure,
    trainings,
)
from masquerade.results import AVERAGED, Summary

OWN: dict[str, tuple[Pick, ClientPick | None]] = {
    "own": (lambda found: found.accuracy.own, lambda clients: (clients.own, ())),
    "own_by_samples": (
        lambda found: found.accuracy.own.weighted,
        lambda clients: (clients.own if clients.tests else (), clients.tests),
    ),
    "own_bottom_decile": (lambda found: found.accuracy.own.bottom_decile, None),
    "shift": (lambda found: found.accuracy.shift.get(AVERAGED), client_step("shift", AVERAGED)),
    "pooled_shift": (
        lambda found: found.accuracy.pooled.get(AVERAGED),
        client_step("pooled", AVERAGED),
    ),
}
"""Figures of the metric, and what clients have of them."""


@dataclass(frozen=True)
class Objective:
    """A figure by its name: one of `OWN`, or a metric of `evaluate.metrics`."""

    name: str = "own"

    def __post_init__(self) -> None:
        known = (*OWN, *METRICS)
        if self.name not in known:
            text = f"`--metric {self.name}`{nearest(self.name, known)}"
            raise MasqueradeError("E201", f"{text}; choose from {', '.join(known)}")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Name the metrics that have to be evaluated for it."""
        return () if self.name in OWN else (self.name,)

    def figure(self, seeds: Results) -> Figure:
        """Return the figure over seeds."""
        found = figure(seeds, *self._picks)
        if found is None:
            text = f"`{self.name}` was not measured on validation data"
            raise MasqueradeError("E202", f"{text}; take another --metric")
        return found

    def trained(self, seeds: Results) -> dict[int, Trained]:
        """Return what each seed reached, and its clients."""
        return trainings(seeds, *self._picks)

    def sign(self, seeds: Results) -> int:
        """Return 1 where higher is better, and -1 where lower is."""
        first = seeds[0]
        better = first.better if self.name in OWN else first.metrics[self.name].better
        return -1 if better == "lower" else 1

    @property
    def _picks(self) -> tuple[Pick, ClientPick | None]:
        return OWN.get(self.name) or (self._metric, None)

    def _metric(self, found: Summary) -> float | None:
        metric = found.metrics.get(self.name)
        return None if metric is None else metric.own.mean
