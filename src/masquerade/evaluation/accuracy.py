"""Statistics over clients: of figures on own data, under shift, under corruption."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from masquerade.results import AVERAGED, Accuracy, Statistics

Figure = float | None
"""A client's metric on a test set; None where it has no sample there, or is not defined."""
Figures = dict[str, list[Figure]]
"""One figure per client, by degree of shift or severity of corruption."""
ShiftSets = Mapping[int, Sequence[Sequence[Tensor]]]
"""Degree of shift → draw → client → samples."""


@dataclass(frozen=True)
class GroupFigures:
    """The figures of a group of clients on all of their test sets."""

    shift: Figures
    pooled: Figures
    corruption: dict[str, Figures]

    @property
    def own(self) -> list[Figure]:
        """Return every client's figure on its own data: those without any shift."""
        return self.shift["0"]


@dataclass(frozen=True)
class OverClients:
    """Makes statistics of one figure per client."""

    samples: Sequence[int]
    """How many samples each client is evaluated on."""
    better: str

    def describe(self, values: Sequence[Figure], ids: Sequence[int]) -> Statistics:
        """Return mean, standard deviation, mean over all samples, and the bottom decile.

        They are over the clients that have a figure, and it is said how many these are.
        """
        pairs = zip(values, [self.samples[id] for id in ids], strict=True)
        present = [(value, count) for value, count in pairs if value is not None]
        figures = torch.tensor([value for value, _ in present], dtype=torch.float64)
        weights = torch.tensor([count for _, count in present], dtype=torch.float64)
        worst_first = figures.sort(descending=self.better == "lower").values
        return Statistics(
            mean=float(figures.mean()),
            std=float(figures.std(correction=0)) if present else math.nan,
            weighted=float((figures * weights).sum() / weights.sum()),
            bottom_decile=float(worst_first[len(figures) // 10]) if present else None,
            defined=len(present),
        )

    def by_step(self, figures: Figures, ids: Sequence[int]) -> dict[str, Statistics]:
        """Describe figures at every degree or severity, and their average over these."""
        described = {
            step: self.describe(values, ids) for step, values in with_average(figures).items()
        }
        return {step: Statistics(one.mean, one.std) for step, one in described.items()}

    def accuracy(self, found: GroupFigures, ids: Sequence[int]) -> Accuracy:
        """Describe all figures of some clients."""
        return Accuracy(
            own=self.describe(found.own, ids),
            better=self.better,
            shift=self.by_step(found.shift, ids),
            pooled=self.by_step(found.pooled, ids),
            corruption={k: self.by_step(each, ids) for k, each in found.corruption.items()},
        )


def with_average(figures: Figures) -> Figures:
    """Return figures at every degree or severity, and each client's average over these."""
    return figures | {AVERAGED: [mean(values) for values in zip(*figures.values(), strict=True)]}


def under_shift(
    sets: ShiftSets, ids: Sequence[int], figure: Callable[[int, Tensor], Figure]
) -> Figures:
    """Return clients' figures at all degrees of shift; each is a mean over the draws.

    `figure(id, samples)` is that of a client on a test set.
    """
    return {
        str(degree): [mean([figure(id, chosen[id]) for chosen in draws]) for id in ids]
        for degree, draws in sets.items()
    }


def under_corruption(
    kinds: Sequence[str],
    severities: Sequence[int],
    score: Callable[[str, int], list[Figure]],
) -> dict[str, Figures]:
    """Return figures per client by kind of corruption and severity, and averaged over the kinds.

    `score` gives those of one kind and severity.
    """
    if not kinds:
        return {}
    found: dict[str, Figures] = {
        kind: {str(severity): score(kind, severity) for severity in severities} for kind in kinds
    }
    found[AVERAGED] = {
        step: [mean(values) for values in zip(*(found[kind][step] for kind in kinds), strict=True)]
        for step in map(str, severities)
    }
    return found


def mean_of(scores: Tensor) -> Figure:
    """Average a client's samples; a client without samples has no figure, not a zero."""
    return float(scores.double().mean()) if len(scores) else None


def means(scores: Sequence[Tensor]) -> list[Figure]:
    """Average the samples of each client."""
    return [mean_of(score) for score in scores]


def mean(values: Sequence[Figure]) -> Figure:
    """Average what is there."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
