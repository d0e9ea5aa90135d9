"""How sure a figure is, and the difference of two: 95 % intervals over seeds, or over clients."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

ENOUGH = 3
"""Seeds that Student's t is used for; of fewer it says nothing."""
FEWEST = 10
"""Clients that a bootstrap needs: a handful resampled is not what others would be."""
RESAMPLES = 2000
LEVEL = 0.95

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean, or a mean difference, and where it lies with 95 % confidence."""

    value: float
    low: float
    high: float
    by: str
    """What it is taken over: "seeds" or "clients"."""

    @property
    def half(self) -> float:
        """Return half of its length."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """Return 1 where all of it lies above 0, -1 where all of it lies below, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    def turned(self) -> "Interval":
        """Return the same difference, taken the other way round."""
        return Interval(-self.value, -self.high, -self.low, self.by)


@dataclass(frozen=True)
class Trained:
    """What one training has in one column: its figure, and those of the clients behind it."""

    figure: float
    clients: Mapping[int, float] = field(default_factory=dict)
    """By client, those that have one; empty where they are not listed."""
    weights: Mapping[int, float] = field(default_factory=dict)
    """What clients count for; all the same where it is empty."""

    def minus(self, other: "Trained") -> "Trained":
        """Subtract another training's figures, client by client."""
        both = self.clients.keys() & other.clients.keys()
        gains = {id: self.clients[id] - other.clients[id] for id in both}
        return Trained(self.figure - other.figure, gains, self.weights)


def of_mean(trainings: Sequence[Trained]) -> Interval | None:
    """Return the interval of the mean over trainings of different seeds.

    With three or more it is Student's t over their figures. With fewer it is a bootstrap over the
    clients of each, which says nothing of other trainings; None where they are few, or not listed.
    """
    if len(trainings) >= ENOUGH:
        return over_seeds([each.figure for each in trainings])
    return _over_clients(trainings) if trainings else None


def of_difference(left: Mapping[int, Trained], right: Mapping[int, Trained]) -> Interval | None:
    """Return the interval of the paired difference of two methods, given by seed.

    Pairs are the trainings of one seed, or, with fewer than three such seeds, the same clients
    within them. What seeds or clients have in common falls out of the difference: the interval is
    as narrow as methods are alike, and not as wide as seeds or clients differ.
    """
    seeds = sorted(left.keys() & right.keys())
    return of_mean([left[seed].minus(right[seed]) for seed in seeds])


def over_seeds(values: Sequence[float]) -> Interval:
    """Return the interval of a mean by Student's t."""
    # Machines that only train have no scipy. All of `scipy.stats` takes long to import.
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return Interval(mean, mean - half, mean + half, "seeds")


def _over_clients(trainings: Sequence[Trained]) -> Interval | None:
    """Resample clients, and take percentiles of the mean over them, and over trainings."""
    if any(len(each.clients) < FEWEST for each in trainings):
        return None
    everybody = sorted({id for each in trainings for id in each.clients})
    found = [_resampled(each, everybody) for each in trainings]
    value = statistics.fmean(whole for whole, _ in found)
    resampled = np.mean([means for _, means in found], axis=0)
    tail = _tail(min(len(each.clients) for each in trainings))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(value, float(low), float(high), "clients")


def _tail(clients: int) -> float:
    """Return the share of resamples to cut off at either end.

    Percentiles of a few clients' resamples lie too close together: they take the standard deviation
    over n for that over n - 1, and the normal quantile for Student's t. It is a little less than
    2.5 % for that, so that the interval has the length that t would give normal figures.
    """
    from scipy.special import ndtr, stdtrit

    quantile = stdtrit(clients - 1, (1 + LEVEL) / 2) * math.sqrt(clients / (clients - 1))
    return float(ndtr(-quantile))


def _resampled(training: Trained, everybody: Sequence[int]) -> tuple[float, Floats]:
    """Return the mean over clients, and what it is for every resample of everybody.

    A client that has no figure in this training still has its place in the resamples.
    """
    places = [place for place, id in enumerate(everybody) if id in training.clients]
    ids = [everybody[place] for place in places]
    values = np.array([training.clients[id] for id in ids])
    weights = np.array([training.weights.get(id, 1.0) for id in ids])
    whole = float(values @ weights / weights.sum())
    counts = _counts(len(everybody))[:, places]
    totals = counts @ weights
    means = np.full(RESAMPLES, whole)
    return whole, np.divide(counts @ (values * weights), totals, out=means, where=totals > 0)


@lru_cache(maxsize=4)
def _counts(clients: int) -> Floats:
    """Return how often each client is in each resample: [resamples, clients].

    They are the same for all methods and seeds. So methods are compared on the same clients, and
    clients that are the same in two trainings of a method are not taken for twice as many.
    """
    chances = np.full(clients, 1 / clients)
    drawn = np.random.default_rng(0).multinomial(clients, chances, size=RESAMPLES)
    return drawn.astype(np.float64)
