"""Partition a dataset over clients, and split every client's samples for training and testing."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from masquerade.core.features import Feature
from masquerade.data.dataset import Dataset
from masquerade.data.partition.names import describe, parse
from masquerade.data.partition.papers import AnyRule, Counted, Split
from masquerade.data.partition.rules import (
    ByClient,
    Flags,
    Integers,
    Rng,
    Rule,
    deal,
    labels_of,
    owner_of,
)
from masquerade.errors import MasqueradeError, listed, told, warn
from masquerade.tables.layout import PLAIN, Layout
from masquerade.tables.schema import Schema

# Seed sequences pad with zeros, so a purpose is never zero: [7] and [7, 0] would be one stream.
# Test-time shift has the purposes 2 and 3.
_PURPOSE, _SHARE, _POOL = 1, 4, 5

DEALS = 100
"""Tries of a rule before it is refused because a client gets no training sample."""


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
    names: tuple[str, ...] = ()
    """Names of the clients, in the order of their numbers; empty where they have numbers only."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; empty where they have numbers only."""
    worded: bool = False
    """Whether classes were given as words, though their names may look like numbers."""
    features: tuple[Feature, ...] = ()
    """The columns of a table, in the order of the numbers of a sample; empty for other data."""
    impute: str = ""
    """What stands in for missing values: "mean", "median" or "most_frequent"; "" where none may be
    missing."""
    layout: Layout = PLAIN
    """How the file of the table is laid out."""
    partition: str = ""
    """How samples were given to clients; empty where a program did so by itself."""

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

    def schema(self, client: int, impute: bool) -> Schema | None:
        """Return what rows look like, with the ranges of a client's training samples."""
        if not self.features:
            return None
        own = self.x[self.train[client]].cpu().numpy()
        name = self.names[client] if self.names else str(client)
        return Schema.of(self.features, own, impute, self.layout, name)

    def fingerprint(self) -> str:
        """Return a SHA-256 of samples and splits, by which a resumed run knows its data."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y, *self.train, *self.validation, *self.test):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
        for known in (self.names, self.features, self.impute):
            if known:
                digest.update(repr(known).encode())
        return digest.hexdigest()


def share(dataset: Dataset, fraction: float, seed: int = 0) -> Dataset:
    """Take a share of the samples at random, or of the clients where the dataset names them."""
    if not 0 < fraction <= 1:
        raise MasqueradeError(
            "E201", f"`fraction` is {fraction}; give a number above 0 and up to 1"
        )
    if fraction == 1:
        return dataset
    rng = np.random.default_rng([seed, _SHARE])
    whole = len(dataset.y) if dataset.client is None else int(owner_of(dataset).max()) + 1
    # The small term is for products just below a whole: 0.29 of 100 is 28.999...
    count = max(1, math.floor(fraction * whole + 1e-9))
    chosen = np.sort(rng.permutation(whole)[:count])
    if dataset.client is None:
        return dataset.take(torch.from_numpy(chosen))
    owner = owner_of(dataset)
    taken = dataset.take(torch.from_numpy(np.flatnonzero(np.isin(owner, chosen))))
    names = tuple(dataset.names[id] for id in chosen) if dataset.names else ()
    client = torch.from_numpy(np.searchsorted(chosen, owner_of(taken)))
    return replace(taken, client=client, names=names)


def partition(
    dataset: Dataset,
    clients: int | None = None,
    by: AnyRule | str = "client",
    seed: int = 0,
    split: Split = (0.6, 0.2, 0.2),
    merge: bool = True,
    pool_seed: int | None = None,
) -> Federation:
    """Partition a dataset over clients and split each into training, validation and test samples.

    `by` is a rule, or a text such as "dirichlet:0.3" that names one; by default everybody has their
    own samples, where the data name clients. `clients=None` takes as many as these. `split` gives
    the three shares. A client's test samples do not depend on how the rest is shared between
    training and validation. Samples are merged before they are split, as the papers do; with
    `merge=False` a client is tested on those of its samples that are in the dataset's original test
    part, however many they are.

    With a `pool_seed` the test samples of all clients are drawn first, by this seed alone: the last
    share of every class. Federations that differ in `seed` have them in common, so that none trains
    or validates on what another is tested on. Where parts are not merged, the original test part is
    that pool.
    """
    by = parse(by) if isinstance(by, str) else by
    if isinstance(by, type) or not (isinstance(by, Counted) or hasattr(by, "assign")):
        text = 'give a rule such as mq.Dirichlet(0.3), or its text "dirichlet:0.3"'
        raise MasqueradeError("E201", f"`by` is {told(by)}; {text}")
    _check_kinds(dataset, clients, split)
    _warn_of_mixed(dataset, by)
    if clients is None:
        clients = len((by if isinstance(by, ByClient) else ByClient()).named(dataset))
    _check(len(dataset.y), clients, seed, split)
    rng = np.random.default_rng([seed, _PURPOSE])
    original = None if merge else _original(dataset)
    if original is None and pool_seed is not None:
        original = ~draw_pool(dataset, split[2], pool_seed)
    names: tuple[str, ...] = ()
    if isinstance(by, Counted):
        cuts = by.cut(dataset, clients, split, original, rng)
    else:
        deals = 1 if pool_seed is None else DEALS
        assigned, cuts = _deal(by, dataset, clients, split, original, rng, deals)
        if isinstance(by, ByClient) and dataset.names:
            owner = owner_of(dataset)
            names = tuple(dataset.names[owner[samples[0]]] for samples in assigned)
    train, validation, test = (
        tuple(torch.from_numpy(cut[part]) for cut in cuts) for part in range(3)
    )
    empty = [client for client, part in enumerate(train) if not len(part)]
    if empty:
        text = f"W301 {len(empty)} of {clients} clients have no training data (ids {listed(empty)})"
        warn(text)
    x, y, classes = dataset.x, dataset.y, dataset.classes
    return Federation(
        *(dataset.name, x, y, classes, train, validation, test, names),
        class_names=dataset.class_names,
        worded=dataset.worded,
        features=dataset.features,
        impute=dataset.impute,
        # Clients that are made up have no rows by the name of theirs.
        layout=dataset.layout if isinstance(by, ByClient) else replace(dataset.layout, client=""),
        partition=f"{by!r} over {clients} clients, seed {seed}, split {', '.join(map(str, split))}",
    )


def _warn_of_mixed(dataset: Dataset, by: AnyRule) -> None:
    """Warn that a rule mixes the clients that the data name (W302)."""
    if dataset.client is None or isinstance(by, ByClient) or not dataset.client.any():
        return
    rule = describe(by)
    # A program's own rule has no text, and may go by the clients of the data.
    if rule != repr(by):
        text = f"W302 `{dataset.name}` names its clients, and they are mixed by {rule}"
        warn(f'{text}; --partition client (in Python by="client") keeps them')


def _deal(
    by: Rule,
    dataset: Dataset,
    clients: int,
    split: Split,
    original: Flags | None,
    rng: Rng,
    deals: int,
) -> tuple[list[Integers], list[tuple[Integers, ...]]]:
    """Deal samples to clients and cut them; anew where all that a client has are for testing."""
    for _ in range(deals):
        assigned = by.assign(dataset, clients, rng)
        _check_assigned(type(by).__name__, assigned, clients)
        cuts = [_cut(rng.permutation(samples), split, original) for samples in assigned]
        tested = [id for id, cut in enumerate(cuts) if len(cut[2]) and not len(cut[0])]
        if deals == 1 or not tested:
            return assigned, cuts
    raise MasqueradeError(
        "E303",
        f"all samples of {len(tested)} of {clients} clients are for testing (ids {listed(tested)}),"
        " as the test pool was drawn before the partition; give clients more samples "
        "(fewer `clients`, or a larger least number in the rule), or lower the last of `split`",
    )


def draw_pool(dataset: Dataset, share: float, seed: int) -> Flags:
    """Draw the samples that are for testing in every partition, as many of each class."""
    labels = np.zeros(len(dataset.y), dtype=np.int64)
    if dataset.classes is not None and dataset.y.ndim == 1:
        labels = labels_of(dataset)
    sizes = np.unique(labels, return_counts=True)[1]
    tested = np.diff(np.rint(np.cumsum(sizes) * share), prepend=0).astype(np.int64)
    counts = np.column_stack([sizes - tested, tested])
    chosen = deal(labels, counts, np.random.default_rng([seed, _POOL]))[1]
    return np.isin(np.arange(len(labels)), chosen)


def _check_assigned(rule: str, assigned: Sequence[Integers], clients: int) -> None:
    """Refuse what a rule assigned, where clients are missing or share a sample."""
    if len(assigned) != clients:
        text = f"the rule {rule} assigned samples to {len(assigned)} clients of {clients}"
        raise MasqueradeError("E303", f"{text}; return an array for each, also an empty one")
    everything = np.concatenate(assigned)
    if len(np.unique(everything)) < len(everything):
        text = f"the rule {rule} gives one sample to two clients"
        raise MasqueradeError("E303", f"{text}; what one trains on, another would be tested on")


def _check_kinds(dataset: object, clients: object, split: object) -> None:
    """Refuse arguments of another kind."""
    kinds = {
        "dataset": (dataset, Dataset, "make one of arrays: mq.from_arrays(x, y)"),
        "clients": (
            clients,
            int | np.integer | None,
            "give a whole number, or None for those that the data name",
        ),
        "split": (split, Sequence, "give three shares: (0.6, 0.2, 0.2)"),
    }
    for name, (given, kind, wanted) in kinds.items():
        if not isinstance(given, kind):
            raise MasqueradeError("E201", f"`{name}` is {told(given)}; {wanted}")


def _check(samples: int, clients: int, seed: int, split: Split) -> None:
    if clients < 1 or seed < 0:
        raise MasqueradeError(
            "E201", f"`clients` is {clients} and `seed` {seed}; give at least 1 and at least 0"
        )
    if clients > samples:
        raise MasqueradeError(
            "E303", f"{clients} clients cannot share {samples} samples; lower `clients`"
        )
    if len(split) != 3:
        raise MasqueradeError(
            "E201",
            f"`split` is {split}; give three shares, for training, validation and test: "
            "(0.6, 0.2, 0.2), or (0.8, 0, 0.2) without validation",
        )
    if not (abs(sum(split) - 1) <= 1e-6 and min(split) >= 0 and split[0] > 0):
        raise MasqueradeError(
            "E201",
            f"`split` is {split}; give shares for training (above 0), validation and test that "
            "sum to 1",
        )


def _cut(samples: Integers, split: Split, original: Flags | None = None) -> tuple[Integers, ...]:
    """Cut shuffled samples; one goes to training, then test, then validation, before all else.

    `original` says which samples of the dataset are not for testing; all others are.
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


def _original(dataset: Dataset) -> Flags:
    if dataset.train is None:
        raise MasqueradeError(
            "E202",
            f"`{dataset.name}` does not say which samples were for training, so they cannot be "
            "kept apart; leave `merge` on",
        )
    original: Flags = dataset.train.cpu().numpy()
    return original
