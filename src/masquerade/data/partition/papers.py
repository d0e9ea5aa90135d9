"""The special partitions of the papers: counted samples, groups of like clients, and outliers."""

import abc
import math
from dataclasses import dataclass

import numpy as np

from masquerade.data.dataset import Dataset
from masquerade.data.partition.rules import (
    DRAWS,
    LEAST,
    Dirichlet,
    Flags,
    Integers,
    Rng,
    Rule,
    assign,
    check_alpha,
    deal,
    holders_of,
    labels_of,
)
from masquerade.errors import MasqueradeError

Split = tuple[float, float, float]


class Counted(abc.ABC):
    """A rule that counts the samples of each class at each client, for each use.

    All other samples are left out.
    """

    classes_per_client: int
    text: str
    """How the rule is written in the command."""

    @abc.abstractmethod
    def counts(self, holds: Flags, split: Split, rng: Rng) -> Integers:
        """Count samples [classes, clients, 3], where a client holds a class [classes, clients]."""

    def cut(
        self, dataset: Dataset, clients: int, split: Split, original: Flags | None, rng: Rng
    ) -> list[tuple[Integers, ...]]:
        """Return each client's samples for training, validation and test.

        Where `original` says which samples were for training, only the others are for testing.
        """
        classes, labels = np.unique(labels_of(dataset), return_inverse=True)
        if self.classes_per_client > len(classes):
            raise MasqueradeError(
                "E303",
                f"clients cannot have {self.classes_per_client} classes each, there are "
                f"{len(classes)}; lower them: {self.text}",
            )
        holders = holders_of(len(classes), clients, self.classes_per_client)
        holds = assign(holders, clients, self.classes_per_client, rng)
        counts = self.counts(holds, split, rng)
        everything = np.arange(len(labels))
        if original is None:
            dealt = self._deal(everything, labels, counts, rng)
        else:
            train = self._deal(everything[original], labels, counts[..., :2], rng)
            test = self._deal(everything[~original], labels, counts[..., 2:], rng)
            dealt = [[*one, *other] for one, other in zip(train, test, strict=True)]
        return [tuple(parts) for parts in dealt]

    def _deal(
        self, pool: Integers, labels: Integers, counts: Integers, rng: Rng
    ) -> list[list[Integers]]:
        """Deal some of the samples in a pool: client -> part -> sample indices."""
        classes, clients, parts = counts.shape
        there = np.bincount(labels[pool], minlength=classes)
        # What nobody gets goes to one receiver more, who is then left out.
        rest = there - counts.sum(axis=(1, 2))
        if (rest < 0).any():
            each = int(counts.sum(axis=2).max())
            most = int(there.min()) // each * classes // self.classes_per_client
            scarce = int(rest.argmin())
            raise MasqueradeError(
                "E303",
                f"{clients} clients with up to {each} samples of a class each need "
                f"{there[scarce] - rest[scarce]} of class {scarce}, and there are {there[scarce]}. "
                f"Lower `clients` (to {most} at most) or the counts: {self.text}",
            )
        columns = np.column_stack([counts.reshape(classes, -1), rest])
        dealt = [pool[samples] for samples in deal(labels[pool], columns, rng)]
        return [dealt[start : start + parts] for start in range(0, clients * parts, parts)]


@dataclass(frozen=True)
class PerClass(Counted):
    """Give every client so many samples of each of a few classes (FedSelect's experiments)."""

    text = "fedselect:CLASSES:TRAIN:TEST"

    classes_per_client: int = 2
    train: int = 20
    """Training samples of each class at each client."""
    test: int = 100
    validation: int = 0

    def __post_init__(self) -> None:
        least = min(self.classes_per_client, self.train, self.test)
        if least < 1 or self.validation < 0:
            raise MasqueradeError(
                "E201", f"{self} has counts that are too small; give 1 or more for each"
            )

    def counts(self, holds: Flags, split: Split, rng: Rng) -> Integers:
        """Count samples [classes, clients, 3]: the same for every class that is held."""
        return np.where(holds[..., None], [self.train, self.validation, self.test], 0)


@dataclass(frozen=True)
class Lottery(Counted):
    """Give clients few samples of few classes, fewer of all but the first (LotteryFL, FedMask).

    A client has `volume` training samples of one of its classes, and `balance` times as many of
    each other one; those for validation are among them. It is tested on its classes in the same
    proportion (FedMask, §4.1), on as many samples as the split says.
    """

    text = "lottery:VOLUME:BALANCE:CLASSES"

    volume: int = 20
    balance: float = 0.25
    classes_per_client: int = 2

    def __post_init__(self) -> None:
        if min(self.volume, self.classes_per_client) < 1 or not 0 < self.balance <= 1:
            raise MasqueradeError(
                "E201",
                f"{self} cannot be: give 1 sample and 1 class or more, and a balance above 0 and "
                "up to 1",
            )

    def counts(self, holds: Flags, split: Split, rng: Rng) -> Integers:
        """Count samples [classes, clients, 3]: more of one class of a client, at random."""
        first = np.where(holds, rng.random(holds.shape), -1).argmax(axis=0)
        many = holds & (np.arange(len(holds))[:, None] == first)
        fewer = max(1, math.floor(self.volume * self.balance + 1e-9))
        counts = np.where(many[..., None], self._parts(self.volume, split), 0)
        return np.where((holds & ~many)[..., None], self._parts(fewer, split), counts)

    def _parts(self, held: int, split: Split) -> Integers:
        """Return how many samples of a class train, validate and test."""
        validation, test = (part / (split[0] + split[1]) for part in split[1:])
        checked = min(round(held * validation), held - 1)
        tested = max(1, round(held * test)) if test else 0
        return np.array([held - checked, checked, tested])


@dataclass(frozen=True)
class Groups:
    """Cut every class over groups of clients; within a group all have the same (DM-PFL, Fig. 6a).

    Neighbors are in one group.
    """

    groups: int = 5
    alpha: float = 0.3
    """Concentration of the Dirichlet distribution that groups are drawn from. The paper gives none;
    this is the one of its main experiments."""

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.groups < 1:
            raise MasqueradeError("E201", f"{self} has no group; give 1 or more")

    def assign(self, dataset: Dataset, clients: int, rng: Rng) -> list[Integers]:
        """Return the sample indices of each client."""
        labels = labels_of(dataset)
        sizes = np.unique(labels, return_counts=True)[1]
        members = holders_of(self.groups, clients, 1)
        counts = None
        if self.groups <= clients:
            counts = Dirichlet(self.alpha).counts(sizes, members * LEAST, rng)
        if counts is None:
            raise MasqueradeError(
                "E303",
                f"no {self.groups} groups of {clients} clients found in which each client has at "
                f"least {LEAST} of {len(labels)} samples (alpha {self.alpha}, {DRAWS} draws); "
                "raise `alpha`, or lower `clients` or the groups: groups:COUNT:ALPHA",
            )
        shared = deal(labels, counts, rng)
        pairs = zip(shared, members.tolist(), strict=True)
        return [own for samples, count in pairs for own in _alike(samples, count)]


@dataclass(frozen=True)
class Outliers:
    """Give most clients the mix of all data, and the last few another one (DM-PFL, Fig. 6b).

    The outliers have a share of every class between them that is as large as theirs among clients,
    and cut it by Dirichlet. All others have the same, and exactly what is left.
    """

    outliers: int = 5
    alpha: float = 0.3
    """Concentration of the outliers' Dirichlet distribution. The paper gives none; this is the one
    of its main experiments."""

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.outliers < 1:
            raise MasqueradeError("E201", f"{self} has no outlier; give 1 or more")

    def assign(self, dataset: Dataset, clients: int, rng: Rng) -> list[Integers]:
        """Return the sample indices of each client."""
        labels = labels_of(dataset)
        sizes = np.unique(labels, return_counts=True)[1]
        others, counts = clients - self.outliers, None
        theirs = np.rint(sizes * self.outliers / clients).astype(np.int64)
        if others >= 1 and (sizes - theirs).sum() >= others * LEAST:
            least = np.full(self.outliers, LEAST)
            counts = Dirichlet(self.alpha).counts(theirs, least, rng)
        if counts is None:
            raise MasqueradeError(
                "E303",
                f"no {clients} clients with {self.outliers} outliers found in which each has at "
                f"least {LEAST} of {len(labels)} samples (alpha {self.alpha}, {DRAWS} draws); "
                "raise `alpha`, or change `clients` or the outliers: outliers:COUNT:ALPHA",
            )
        common, *own = deal(labels, np.column_stack([sizes - theirs, counts]), rng)
        return [*_alike(common, others), *own]


AnyRule = Rule | Counted
"""How samples are partitioned over clients, and by some rules also how they are split."""


def _alike(samples: Integers, clients: int) -> list[Integers]:
    """Deal samples that lie in the order of classes one by one: no class differs by two."""
    return [samples[place::clients] for place in range(clients)]
