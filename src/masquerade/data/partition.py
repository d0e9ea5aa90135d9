"""Spread a dataset over clients, and split every client's samples for training and testing."""

import hashlib
import math
import warnings
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from masquerade.data.dataset import Dataset
from masquerade.errors import MasqueradeError, MasqueradeWarning, nearest

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

DRAWS = 1000
"""How often a Dirichlet partition is drawn before it is called impossible."""

# Seed sequences pad with zeros, so a purpose is never zero: [7] and [7, 0] would be one stream.
# Test-time shift has the purposes between these.
_PURPOSE, _SHARE = 1, 4


@dataclass(frozen=True, eq=False)
class Federation:
    """Samples, held once, and which of them each client trains, validates and tests on."""

    name: str
    x: Tensor
    y: Tensor
    classes: int | None
    train: tuple[Tensor, ...]
    """Sample indices by client, int64."""
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]

    def __repr__(self) -> str:
        return f"<Federation {self.name}: {self.clients} clients, {len(self.y)} samples>"

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.train)

    @property
    def samples(self) -> Tensor:
        """Return the number of training samples by client [clients]."""
        return torch.tensor([len(part) for part in self.train], device=self.x.device)

    @property
    def has_validation(self) -> bool:
        """Return whether any client has validation samples."""
        return any(len(part) for part in self.validation)

    def to(self, device: torch.device | str) -> "Federation":
        """Return the same federation with all its tensors on `device`."""
        train, validation, test = (
            tuple(part.to(device) for part in parts)
            for parts in (self.train, self.validation, self.test)
        )
        x, y = self.x.to(device), self.y.to(device)
        return replace(self, x=x, y=y, train=train, validation=validation, test=test)

    def fingerprint(self) -> str:
        """Return a SHA-256 of samples and splits, by which a resumed run knows its data."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y, *self.train, *self.validation, *self.test):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()


class Rule(Protocol):
    """How samples are spread over clients."""

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[Integers]:
        """Return the sample indices of each client; no sample is in two."""
        ...


@dataclass(frozen=True)
class IID:
    """Spread samples evenly and at random."""

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[Integers]:
        """Return the sample indices of each client."""
        return np.array_split(rng.permutation(len(dataset.y)), clients)


@dataclass(frozen=True)
class Dirichlet:
    """Cut every class over all clients by shares drawn from a Dirichlet distribution."""

    alpha: float
    """Concentration; small values give clients few classes and unequal sizes."""
    cap: bool = False
    """Give no further class to a client that already holds an average share of the samples."""
    least: int = 5
    """Draw again until every client has so many samples; 5 are 3 for training and 1 each for
    validation and test at 60/20/20."""

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise MasqueradeError("E201", f"`alpha` is {self.alpha}; give a number above 0")

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[Integers]:
        """Return the sample indices of each client."""
        labels = _labels(dataset)
        sizes = np.unique(labels, return_counts=True)[1]
        possible = clients * self.least <= len(labels)
        for _ in range(DRAWS if possible else 0):
            counts = self._draw(sizes, clients, rng)
            if counts.sum(axis=0).min() >= self.least:
                return _deal(labels, counts, rng)
        raise MasqueradeError(
            "E303",
            f"no Dirichlet partition of {len(labels)} samples found in which each of {clients} "
            f"clients has at least {self.least} (alpha {self.alpha}, {DRAWS} draws); raise "
            "`alpha`, or lower `clients` or `least`",
        )

    def _draw(self, sizes: Integers, clients: int, rng: np.random.Generator) -> Integers:
        counts = np.zeros((len(sizes), clients), dtype=np.int64)
        for row, size in enumerate(sizes):
            share = rng.dirichlet(np.full(clients, self.alpha))
            if self.cap:
                # The tiny term keeps a share where all clients with room drew zero.
                room = counts.sum(axis=0) < sizes.sum() / clients
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

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[Integers]:
        """Return the sample indices of each client."""
        labels = _labels(dataset)
        sizes = np.unique(labels, return_counts=True)[1]
        holders = self._holders(sizes, clients)
        if self.balanced:
            holds = _spread(holders, clients, self.classes_per_client, rng)
        else:
            holds = self._block(holders, clients)
        cut = _even if self.balanced else _uneven
        counts = np.zeros(holds.shape, dtype=np.int64)
        for row, size in enumerate(sizes):
            counts[row, holds[row]] = cut(int(size), int(holds[row].sum()), rng)
        return _deal(labels, counts, rng)

    def _holders(self, sizes: Integers, clients: int) -> Integers:
        """Return how many clients are to hold each class, as equal as can be."""
        shards = clients * self.classes_per_client
        holders = shards // len(sizes) + (np.arange(len(sizes)) < shards % len(sizes))
        each = 1 <= self.classes_per_client <= len(sizes) <= shards
        if not each or (sizes < holders).any():
            raise MasqueradeError(
                "E303",
                f"{clients} clients with {self.classes_per_client} of {len(sizes)} classes each "
                "do not fit: every class needs a holder, and a sample for each of its holders "
                f"(the smallest class has {sizes.min()}); change `clients` or "
                "`classes_per_client`",
            )
        return holders

    def _block(self, holders: Integers, clients: int) -> Flags:
        """Return who holds what [classes, clients]: the first with room take the next class."""
        holds = np.zeros((len(holders), clients), dtype=np.bool_)
        for row, count in enumerate(holders):
            room = np.flatnonzero(holds.sum(axis=0) < self.classes_per_client)
            holds[row, room[:count]] = True
        return holds


@dataclass(frozen=True)
class PerClass:
    """Give every client so many samples of each of a few classes (FedSelect's experiments).

    All other samples are left out. How they are split is part of the rule.
    """

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

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[Integers]:
        """Return the sample indices of each client, class by class."""
        labels = _labels(dataset)
        sizes = np.unique(labels, return_counts=True)[1]
        each = self.train + self.validation + self.test
        shards = clients * self.classes_per_client
        holders = shards // len(sizes) + (np.arange(len(sizes)) < shards % len(sizes))
        if self.classes_per_client > len(sizes) or (sizes < holders * each).any():
            most = int(sizes.min()) // each * len(sizes) // self.classes_per_client
            raise MasqueradeError(
                "E303",
                f"{clients} clients with {each} samples of {self.classes_per_client} classes each "
                f"need {holders.max() * each} samples of a class; there are {len(sizes)} classes, "
                f"the smallest with {sizes.min()}. Lower `clients` (to {most} at most) or the "
                "counts: fedselect:CLASSES:TRAIN:TEST",
            )
        holds = _spread(holders, clients, self.classes_per_client, rng)
        counts = np.where(holds, each, 0)
        # What nobody gets goes to one client more, who is then left out.
        rest = sizes - counts.sum(axis=1)
        return _deal(labels, np.column_stack([counts, rest]), rng)[:-1]

    def cut(self, samples: Integers) -> tuple[Integers, ...]:
        """Split one client's samples, as `assign` ordered them: training, validation, test."""
        classes = samples.reshape(self.classes_per_client, -1)
        parts = np.split(classes, [self.train, self.train + self.validation], axis=1)
        return tuple(part.ravel() for part in parts)


@dataclass(frozen=True)
class ByClient:
    """Keep the clients that the dataset itself names."""

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[Integers]:
        """Return the sample indices of each client."""
        owner = _owner(dataset)
        if clients != owner.max() + 1:
            raise MasqueradeError(
                "E202",
                f"`clients` is {clients}, but `{dataset.name}` names {owner.max() + 1} clients; "
                "give that number or None",
            )
        return _group(np.arange(len(owner)), owner, clients)


def share(dataset: Dataset, fraction: float, seed: int = 0) -> Dataset:
    """Take a share of the samples at random, or of the clients where the dataset names them."""
    if not 0 < fraction <= 1:
        raise MasqueradeError(
            "E201", f"`fraction` is {fraction}; give a number above 0 and up to 1"
        )
    if fraction == 1:
        return dataset
    rng = np.random.default_rng([seed, _SHARE])
    whole = len(dataset.y) if dataset.client is None else int(_owner(dataset).max()) + 1
    chosen = np.sort(rng.permutation(whole)[: max(1, round(fraction * whole))])
    if dataset.client is None:
        return dataset.take(torch.from_numpy(chosen))
    owner = _owner(dataset)
    taken = dataset.take(torch.from_numpy(np.flatnonzero(np.isin(owner, chosen))))
    return replace(taken, client=torch.from_numpy(np.searchsorted(chosen, _owner(taken))))


def partition(
    dataset: Dataset,
    clients: int | None,
    by: Rule,
    seed: int = 0,
    split: tuple[float, float, float] = (0.6, 0.2, 0.2),
    merge: bool = True,
) -> Federation:
    """Spread a dataset over clients and split each into training, validation and test samples.

    `clients=None` takes as many as the dataset names. `split` gives the three shares. A client's
    test samples do not depend on how the rest is shared between training and validation. Samples
    are merged before they are split, as the papers do; with `merge=False` a client is tested on
    those of its samples that are in the dataset's original test part, however many they are.
    """
    if clients is None:
        clients = int(_owner(dataset).max()) + 1
    _check(len(dataset.y), clients, seed, split)
    rng = np.random.default_rng([seed, _PURPOSE])
    assigned = by.assign(dataset, clients, rng)
    original = None if merge else _original(dataset)
    if isinstance(by, PerClass):
        cuts = [by.cut(samples) for samples in assigned]
    else:
        cuts = [_cut(rng.permutation(samples), split, original) for samples in assigned]
    train, validation, test = (
        tuple(torch.from_numpy(cut[part]) for cut in cuts) for part in range(3)
    )
    empty = [client for client, part in enumerate(train) if not len(part)]
    if empty:
        shown = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        text = f"W301 {len(empty)} of {clients} clients have no training data (ids {shown})"
        warnings.warn(MasqueradeWarning(text), stacklevel=2)
    return Federation(dataset.name, dataset.x, dataset.y, dataset.classes, train, validation, test)


_NAMED: dict[str, Rule] = {
    "iid": IID(),
    "pathological": Pathological(),
    "pathological:unbalanced": Pathological(balanced=False),
    "client": ByClient(),
}
_FORMS = (
    *_NAMED,
    "dirichlet:ALPHA",
    "dirichlet:ALPHA:capped",
    "fedselect:CLASSES",
    "fedselect:CLASSES:TRAIN:TEST",
    "fedselect:CLASSES:TRAIN:TEST:VALIDATION",
)


def parse(text: str) -> Rule:
    """Return the partition rule that a text such as `dirichlet:0.3` names."""
    if text in _NAMED:
        return _NAMED[text]
    try:
        match text.split(":"):
            case ["dirichlet", alpha]:
                return Dirichlet(float(alpha))
            case ["dirichlet", alpha, "capped"]:
                return Dirichlet(float(alpha), cap=True, least=40)
            case ["fedselect", classes]:
                return PerClass(int(classes))
            case ["fedselect", *counts] if len(counts) in (3, 4):
                return PerClass(*map(int, counts))
    except ValueError:
        pass
    raise MasqueradeError(
        "E201",
        f"unknown partition `{text}`{nearest(text, _FORMS)}; known are {', '.join(_FORMS)}",
    )


def describe(rule: Rule) -> str:
    """Return the text that `parse` reads as this rule, or its `repr` where there is none."""
    texts = list(_NAMED)
    if isinstance(rule, Dirichlet):
        texts = [f"dirichlet:{rule.alpha}", f"dirichlet:{rule.alpha}:capped"]
    if isinstance(rule, PerClass):
        words = ["fedselect", *map(str, (rule.classes_per_client, rule.train, rule.test))]
        texts = [":".join(words[:2]), ":".join(words), ":".join([*words, str(rule.validation)])]
    return next((text for text in texts if parse(text) == rule), repr(rule))


def _check(samples: int, clients: int, seed: int, split: tuple[float, float, float]) -> None:
    if clients < 1 or seed < 0:
        raise MasqueradeError(
            "E201", f"`clients` is {clients} and `seed` {seed}; give at least 1 and at least 0"
        )
    if clients > samples:
        raise MasqueradeError(
            "E303", f"{clients} clients cannot share {samples} samples; lower `clients`"
        )
    if not (abs(sum(split) - 1) <= 1e-6 and min(split) >= 0 and split[0] > 0):
        raise MasqueradeError(
            "E201",
            f"`split` is {split}; give shares for training (above 0), validation and test that "
            "sum to 1",
        )


def _cut(
    samples: Integers, split: tuple[float, float, float], original: Flags | None = None
) -> tuple[Integers, ...]:
    """Cut shuffled samples; one goes to training, then test, then validation, before all else.

    `original` says which samples of the dataset were for training; the others are for testing.
    """
    if original is not None:
        inside = original[samples]
        both = split[0] + split[1]
        kept = _cut(samples[inside], (split[0] / both, split[1] / both, 0.0))
        return *kept[:2], samples[~inside]
    count = len(samples)
    spare = max(count - 1, 0)
    least_test = int(split[2] > 0 and count >= 2)
    least_validation = int(split[1] > 0 and count >= 3)
    test = min(max(round(count * split[2]), least_test), spare - least_validation)
    validation = min(max(round(count * split[1]), least_validation), spare - test)
    return tuple(np.split(samples, [count - test - validation, count - test]))


def _labels(dataset: Dataset) -> Integers:
    if dataset.classes is None or dataset.y.ndim != 1:
        raise MasqueradeError(
            "E202",
            f"`{dataset.name}` has no single class per sample to partition by; use `iid` or "
            "`client`",
        )
    labels: Integers = dataset.y.cpu().numpy()
    return labels


def _owner(dataset: Dataset) -> Integers:
    if dataset.client is None:
        raise MasqueradeError(
            "E202",
            f"`{dataset.name}` does not name the client of a sample; give `clients` and another "
            "partition, such as `iid`",
        )
    owner: Integers = dataset.client.cpu().numpy()
    return owner


def _spread(holders: Integers, clients: int, per_client: int, rng: np.random.Generator) -> Flags:
    """Return who holds what [classes, clients], each client getting distinct classes."""
    holds = np.zeros((len(holders), clients), dtype=np.bool_)
    left = holders.copy()
    for client in rng.permutation(clients):
        # Taking the classes with most shards left, ties at random, never runs into a dead end.
        chosen = np.lexsort((rng.random(len(left)), -left))[:per_client]
        holds[chosen, client] = True
        left[chosen] -= 1
    return holds


def _original(dataset: Dataset) -> Flags:
    if dataset.train is None:
        raise MasqueradeError(
            "E202",
            f"`{dataset.name}` does not say which samples were for training, so they cannot be "
            "kept apart; leave `merge` on",
        )
    original: Flags = dataset.train.cpu().numpy()
    return original


def _deal(labels: Integers, counts: Integers, rng: np.random.Generator) -> list[Integers]:
    """Hand out each class's samples at random, as many as `counts` [classes, clients] says."""
    classes, clients = counts.shape
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner = np.repeat(np.tile(np.arange(clients), classes), counts.ravel())
    return _group(by_class, owner, clients)


def _group(samples: Integers, owner: Integers, clients: int) -> list[Integers]:
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(samples[np.argsort(owner, kind="stable")], ends[:-1])


def _even(size: int, holders: int, rng: np.random.Generator) -> Integers:
    return size // holders + (np.arange(holders) < size % holders)


def _uneven(size: int, holders: int, rng: np.random.Generator) -> Integers:
    """Draw from a tenth of the mean up to the mean for all but the last, who takes the rest."""
    low = math.ceil(size / holders / 10)
    high = max(low + 1, math.ceil(size / holders))
    drawn = rng.integers(low, high, holders - 1)
    return np.append(drawn, size - drawn.sum())
