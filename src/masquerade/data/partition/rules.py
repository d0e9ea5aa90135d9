"""How samples are partitioned over clients: the rules that share out all of a dataset.

Every rule ends: it draws a bounded number of times, and then says which knob to turn.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from masquerade.data.dataset import Dataset
from masquerade.errors import MasqueradeError

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Rng = np.random.Generator

DRAWS = 1000
"""How often a Dirichlet partition is drawn before it is called impossible."""
LEAST = 5
"""Samples that a client has at least: 3 for training and 1 each for validation and test."""


class Rule(Protocol):
    """How samples are partitioned over clients."""

    def assign(self, dataset: Dataset, clients: int, rng: Rng) -> list[Integers]:
        """Return the sample indices of each client; no sample is in two."""
        ...


@dataclass(frozen=True)
class IID:
    """Deal samples out evenly and at random."""

    def assign(self, dataset: Dataset, clients: int, rng: Rng) -> list[Integers]:
        """Return the sample indices of each client."""
        return np.array_split(rng.permutation(len(dataset.y)), clients)


@dataclass(frozen=True)
class Dirichlet:
    """Cut every class over all clients by shares drawn from a Dirichlet distribution."""

    alpha: float
    """Concentration; small values give clients few classes and unequal sizes."""
    cap: bool = False
    """Give no further class to a client that already holds an average share of the samples."""
    least: int = LEAST
    """Draw again until every client has so many samples."""

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def assign(self, dataset: Dataset, clients: int, rng: Rng) -> list[Integers]:
        """Return the sample indices of each client."""
        labels = labels_of(dataset)
        sizes = np.unique(labels, return_counts=True)[1]
        counts = self.counts(sizes, np.full(clients, self.least), rng)
        if counts is None:
            # The capped rule's text has no place for the least number.
            text = "dirichlet:ALPHA:capped" if self.cap else "dirichlet:ALPHA:LEAST"
            raise MasqueradeError(
                "E303",
                f"no Dirichlet partition of {len(labels)} samples found in which each of {clients} "
                f"clients has at least {self.least} (alpha {self.alpha}, {DRAWS} draws); raise "
                f"`alpha`, or lower `clients`{'' if self.cap else ' or `least`'}: {text}",
            )
        return deal(labels, counts, rng)

    def counts(self, sizes: Integers, least: Integers, rng: Rng) -> Integers | None:
        """Draw [classes, receivers] until each receiver has its least number; None if never."""
        possible = least.sum() <= sizes.sum()
        for _ in range(DRAWS if possible else 0):
            counts = self._draw(sizes, len(least), rng)
            if (counts.sum(axis=0) >= least).all():
                return counts
        return None

    def _draw(self, sizes: Integers, receivers: int, rng: Rng) -> Integers:
        counts = np.zeros((len(sizes), receivers), dtype=np.int64)
        for row, size in enumerate(sizes):
            share = rng.dirichlet(np.full(receivers, self.alpha))
            if self.cap:
                # The tiny term keeps a share where all clients with room drew zero.
                room = counts.sum(axis=0) < sizes.sum() / receivers
                share = np.where(room, share + np.finfo(np.float64).tiny, 0)
                share /= share.sum()
            counts[row] = np.diff(np.rint(np.cumsum(share) * size), prepend=0)
        return counts


@dataclass(frozen=True)
class Pathological:
    """Give every client samples of a few classes only."""

    classes_per_client: int = 2
    balanced: bool = True
    """Mix classes at random and cut them evenly. Otherwise clients come in blocks that share the
    same classes, and the last client of a block holds most of the block's samples."""

    def assign(self, dataset: Dataset, clients: int, rng: Rng) -> list[Integers]:
        """Return the sample indices of each client."""
        labels = labels_of(dataset)
        sizes = np.unique(labels, return_counts=True)[1]
        holders = holders_of(len(sizes), clients, self.classes_per_client)
        each = 1 <= self.classes_per_client <= len(sizes) <= holders.sum()
        if not each or (sizes < holders).any():
            raise MasqueradeError(
                "E303",
                f"{clients} clients with {self.classes_per_client} of {len(sizes)} classes each "
                "do not fit: every class needs a holder, and a sample for each of its holders "
                f"(the smallest class has {sizes.min()}); change `clients` or "
                "`classes_per_client`: pathological:CLASSES",
            )
        if self.balanced:
            holds = assign(holders, clients, self.classes_per_client, rng)
        else:
            holds = self._block(holders, clients)
        cut = _even if self.balanced else _uneven
        counts = np.zeros(holds.shape, dtype=np.int64)
        for row, size in enumerate(sizes):
            counts[row, holds[row]] = cut(int(size), int(holds[row].sum()), rng)
        return deal(labels, counts, rng)

    def _block(self, holders: Integers, clients: int) -> Flags:
        """Return who holds what [classes, clients]: the first with room take the next class."""
        holds = np.zeros((len(holders), clients), dtype=np.bool_)
        for row, count in enumerate(holders):
            room = np.flatnonzero(holds.sum(axis=0) < self.classes_per_client)
            holds[row, room[:count]] = True
        return holds


@dataclass(frozen=True)
class Shards:
    """Sort samples by class, cut them into equal shards, and deal these out (McMahan et al., 2017).

    A shard may reach into the next class, and a client may get two shards of one class.
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise MasqueradeError("E201", f"{self} has no shards for a client; give 1 or more")

    def assign(self, dataset: Dataset, clients: int, rng: Rng) -> list[Integers]:
        """Return the sample indices of each client."""
        labels, count = labels_of(dataset), clients * self.per_client
        if count > len(labels):
            raise MasqueradeError(
                "E303",
                f"{clients} clients with {self.per_client} shards each need {count} samples, and "
                f"there are {len(labels)}; lower `clients` or the shards: shards:COUNT",
            )
        shards = np.array_split(_by_class(labels, rng), count)
        places = rng.permutation(count).reshape(clients, self.per_client)
        return [np.concatenate([shards[place] for place in own]) for own in places]


@dataclass(frozen=True)
class ByClient:
    """Keep the clients that the dataset itself names."""

    least: int = 1
    """Leave out clients with fewer samples."""

    def __post_init__(self) -> None:
        if self.least < 1:
            raise MasqueradeError("E201", f"{self}: give 1 sample or more")

    def named(self, dataset: Dataset) -> Integers:
        """Return the clients that have enough samples, in ascending order."""
        return np.flatnonzero(np.bincount(owner_of(dataset)) >= self.least)

    def assign(self, dataset: Dataset, clients: int, rng: Rng) -> list[Integers]:
        """Return the sample indices of each client, of so many drawn at random where not of all."""
        named = self.named(dataset)
        if clients > len(named):
            raise MasqueradeError(
                "E202",
                f"`clients` is {clients}, but `{dataset.name}` names {len(named)} clients with "
                f"{self.least} samples or more; give that number, a smaller one or None",
            )
        chosen = np.sort(rng.permutation(named)[:clients]) if clients < len(named) else named
        owner = owner_of(dataset)
        samples = np.flatnonzero(np.isin(owner, chosen))
        return group(samples, np.searchsorted(chosen, owner[samples]), clients)


def check_alpha(alpha: float) -> None:
    """Refuse what is no concentration."""
    if not (alpha > 0 and math.isfinite(alpha)):
        raise MasqueradeError("E201", f"`alpha` is {alpha}; give a number above 0")


def labels_of(dataset: Dataset) -> Integers:
    """Return the class of every sample."""
    if dataset.classes is None or dataset.y.ndim != 1:
        raise MasqueradeError(
            "E202",
            f"`{dataset.name}` has no single class per sample, which this partition goes by; take "
            "`iid`, or `client` where the data name clients",
        )
    labels: Integers = dataset.y.cpu().numpy()
    return labels


def owner_of(dataset: Dataset) -> Integers:
    """Return the client of every sample, as the dataset names it."""
    if dataset.client is None:
        raise MasqueradeError(
            "E202",
            f"`{dataset.name}` does not name the client of a sample; name them, or give a number "
            "of clients (20) and a partition that makes them up (`iid`)",
        )
    owner: Integers = dataset.client.cpu().numpy()
    return owner


def holders_of(classes: int, clients: int, per_client: int) -> Integers:
    """Return how many clients are to hold each class, as equal as can be."""
    count = clients * per_client
    return count // classes + (np.arange(classes) < count % classes)


def assign(holders: Integers, clients: int, per_client: int, rng: Rng) -> Flags:
    """Return who holds what [classes, clients], each client getting distinct classes."""
    holds = np.zeros((len(holders), clients), dtype=np.bool_)
    left = holders.copy()
    for client in rng.permutation(clients):
        # Taking the classes with most shards left, ties at random, never runs into a dead end.
        chosen = np.lexsort((rng.random(len(left)), -left))[:per_client]
        holds[chosen, client] = True
        left[chosen] -= 1
    return holds


def deal(labels: Integers, counts: Integers, rng: Rng) -> list[Integers]:
    """Hand out each class's samples at random, as many as `counts` [classes, receivers] says.

    What a receiver gets is in the order of classes.
    """
    classes, receivers = counts.shape
    owner = np.repeat(np.tile(np.arange(receivers), classes), counts.ravel())
    return group(_by_class(labels, rng), owner, receivers)


def group(samples: Integers, owner: Integers, clients: int) -> list[Integers]:
    """Gather samples by their owners, each in the order given."""
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(samples[np.argsort(owner, kind="stable")], ends[:-1])


def _by_class(labels: Integers, rng: Rng) -> Integers:
    """Return all samples in the order of classes, each class in random order."""
    shuffled = rng.permutation(len(labels))
    ordered: Integers = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return ordered


def _even(size: int, holders: int, rng: Rng) -> Integers:
    return size // holders + (np.arange(holders) < size % holders)


def _uneven(size: int, holders: int, rng: Rng) -> Integers:
    """Draw from a tenth of the mean up to the mean for all but the last, who takes the rest."""
    low = math.ceil(size / holders / 10)
    high = max(low + 1, math.ceil(size / holders))
    drawn = rng.integers(low, high, holders - 1)
    return np.append(drawn, size - drawn.sum())
