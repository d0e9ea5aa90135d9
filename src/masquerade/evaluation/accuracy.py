"""The metric over clients: on own data, under shift, under corruption."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Figures = dict[str, list[float | None]]
"""One figure per client, by the step of something: a degree, a severity."""
Described = dict[str, dict[str, float]]
"""Mean and standard deviation over clients, by the same steps."""
ShiftSets = Mapping[int, Sequence[Sequence[Tensor]]]
"""Degree of shift → draw → client → samples."""
AVERAGED = "averaged"


@dataclass(frozen=True)
class OverClients:
    """How one figure per client is described."""

    samples: Sequence[int]
    """How many samples each client is evaluated on."""
    better: str

    def describe(self, values: Sequence[float | None], ids: Sequence[int]) -> dict[str, float]:
        """Return mean, standard deviation, mean over all samples, and the bottom decile."""
        pairs = zip(values, [self.samples[id] for id in ids], strict=True)
        present = [(value, count) for value, count in pairs if value is not None]
        figures = torch.tensor([value for value, _ in present], dtype=torch.float64)
        weights = torch.tensor([count for _, count in present], dtype=torch.float64)
        worst_first = figures.sort(descending=self.better == "lower").values
        return {
            "mean": float(figures.mean()),
            "std": float(figures.std(correction=0)),
            "weighted": float((figures * weights).sum() / weights.sum()),
            "bottom_decile": float(worst_first[len(figures) // 10]),
        }

    def by_step(self, figures: Figures, ids: Sequence[int]) -> Described:
        """Describe figures at every step of something, and their average over the steps."""
        averages = [mean(values) for values in zip(*figures.values(), strict=True)]
        described = {
            step: self.describe(values, ids)
            for step, values in (figures | {AVERAGED: averages}).items()
        }
        return {step: {key: one[key] for key in ("mean", "std")} for step, one in described.items()}


def under_shift(sets: ShiftSets, asked: Sequence[Tensor], scores: Mapping[int, Tensor]) -> Figures:
    """Read every client's figure at all degrees of shift off the metric of each of its samples.

    `asked` are, for every client, the samples in ascending order that `scores` are of.
    """

    def figure(id: int, draws: list[Tensor]) -> float | None:
        places = [torch.searchsorted(asked[id], index) for index in draws]
        return mean([found for place in places for found in means([scores[id][place]])])

    return {
        str(degree): [figure(id, [chosen[id] for chosen in draws]) for id in scores]
        for degree, draws in sets.items()
    }


def under_corruption(
    kinds: Sequence[str],
    severities: Sequence[int],
    score: Callable[[str, int], list[float | None]],
) -> dict[str, Figures]:
    """Return figures per client by kind of corruption and severity, and averaged over the kinds.

    `score` gives those of one kind and severity.
    """
    found: dict[str, Figures] = {
        kind: {str(severity): score(kind, severity) for severity in severities} for kind in kinds
    }
    found[AVERAGED] = {
        step: [mean(values) for values in zip(*(found[kind][step] for kind in kinds), strict=True)]
        for step in map(str, severities)
    }
    return found


def means(scores: Sequence[Tensor]) -> list[float | None]:
    """Average each client's samples; a client without samples has no figure, not a zero."""
    return [float(score.double().mean()) if len(score) else None for score in scores]


def mean(values: Sequence[float | None]) -> float | None:
    """Average what is there."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
