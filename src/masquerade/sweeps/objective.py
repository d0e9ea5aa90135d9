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
from masquerade.results.lead import led, with_lead

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
    """A figure by its name: one of `OWN`, or a metric of `evaluate.metrics` on own data.

    `OWN` are figures of the metric that leads in reports.
    """

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
        found = figure(self._led(seeds), *self._picks)
        if found is None:
            raise self._missing()
        return found

    def trained(self, seeds: Results) -> dict[int, Trained]:
        """Return what each seed reached, and its clients."""
        return trainings(self._led(seeds), *self._picks)

    def sign(self, seeds: Results) -> int:
        """Return 1 where higher is better, and -1 where lower is."""
        return -1 if self._led(seeds)[0].better == "lower" else 1

    @property
    def _picks(self) -> tuple[Pick, ClientPick | None]:
        return OWN.get(self.name, OWN["own"])

    def _led(self, seeds: Results) -> list[Summary]:
        if self.name in OWN:
            return led(seeds)
        if any(self.name not in (each.metric, *each.metrics) for each in seeds):
            raise self._missing()
        return led(with_lead(seeds, self.name))

    def _missing(self) -> MasqueradeError:
        text = f"`{self.name}` was not measured on validation data"
        return MasqueradeError("E202", f"{text}; take another --metric")
