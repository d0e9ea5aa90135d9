"""What a model knows of a column: its categories, or how its numbers are distributed."""

import math
from dataclasses import dataclass

import numpy as np

from masquerade.errors import listed
from masquerade.tables.faults import Array

STEPS = 11
"""Quantiles that are known of numbers: the least, nine deciles, the largest."""


@dataclass(frozen=True)
class KnownColumn:
    """A column: a number, or a category, which the model reads as its place among `categories`."""

    name: str
    categories: tuple[str, ...] = ()
    quantiles: tuple[float, ...] = ()
    """Of the numbers in the client's training samples, in equal steps from the least to the
    largest; empty where it has none."""

    @property
    def range(self) -> tuple[float, float] | None:
        """Return the least and the largest number."""
        return (self.quantiles[0], self.quantiles[-1]) if self.quantiles else None

    @property
    def text(self) -> str:
        """Say what it holds."""
        if self.categories:
            return f"one of {listed(self.categories, 20)}"
        return "a number" + (f" from {self.range[0]:g} to {self.range[1]:g}" if self.range else "")

    def fits(self, values: Array, slack: float = 0) -> Array:
        """Tell which numbers are in the range, or beyond it by a share of its width."""
        low, high = self.range or (-math.inf, math.inf)
        more = slack * (high - low) if self.range else 0
        inside: Array = (values >= low - more) & (values <= high + more)
        return inside

    def distance(self, values: Array) -> float:
        """Return how far numbers are distributed from those of training, from 0 to 1.

        It is the distance of Kolmogorov and Smirnov, at the quantiles that are known: the largest
        difference between the shares of both that are at most so large.
        """
        ordered, steps = np.sort(values), np.linspace(0, 1, len(self.quantiles))
        below, upto = (
            np.searchsorted(ordered, self.quantiles, side) / len(values)
            for side in ("left", "right")
        )
        # Where many numbers are alike, a quantile stands for all the shares between.
        return float(max((below - steps).max(), (steps - upto).max(), 0))


def quantiles_of(values: Array) -> tuple[float, ...]:
    """Return what is known of numbers; each is one of them."""
    if not len(values):
        return ()
    steps = np.linspace(0, 1, STEPS)
    return tuple(np.quantile(values, steps, method="inverted_cdf").astype(float).tolist())
