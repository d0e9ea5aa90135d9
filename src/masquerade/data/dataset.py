"""A dataset: samples with their targets, checked, before they are partitioned over clients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from masquerade.core.features import Feature, check_features
from masquerade.errors import MasqueradeError, listed, nearest, warn
from masquerade.tables.layout import PLAIN, Layout

Array = npt.NDArray[Any]

TASKS = ("", "classification", "regression")
"""What targets may be said to be; "" goes by their values."""
FEW = 20
"""Different whole numbers, at most, that are classes although they are floats."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with their targets, before they are partitioned over clients."""

    name: str
    x: Tensor
    """Features [samples, ...]: float32; uint8 are pixels, which a task scales to 0..1 unless it
    has other preprocessing, and signed integers are tokens."""
    y: Tensor
    """Targets [samples, ...]: int64 classes, or float32 for regression."""
    classes: int | None
    """How many classes `y` has; None for regression."""
    client: Tensor | None = None
    """The natural client of each sample, 0 to C-1 [samples], where the data have one."""
    train: Tensor | None = None
    """Whether each sample was in the original training part [samples], where the data say so."""
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

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.x.shape[1:])) or "1"
        counts = [f"{len(self.y)} samples of {shape}"]
        counts += [] if self.classes is None else [f"{self.classes} classes"]
        counts += [] if self.client is None else [f"{int(self.client.max()) + 1} clients"]
        return f"<Dataset {self.name}: {', '.join(counts)}>"

    def take(self, samples: Tensor) -> "Dataset":
        """Return a dataset of some of the samples."""
        client, train = (
            None if column is None else column[samples] for column in (self.client, self.train)
        )
        return replace(self, x=self.x[samples], y=self.y[samples], client=client, train=train)


COLUMNS = ("x", "y", "client", "train")
"""The arrays of a dataset, by the names they have in files."""


def from_arrays(
    x: npt.ArrayLike | Tensor,
    y: npt.ArrayLike | Tensor,
    client: npt.ArrayLike | Tensor | None = None,
    name: str = "arrays",
    *,
    train: npt.ArrayLike | Tensor | None = None,
    classes: int | None = None,
    features: Sequence[Feature] = (),
    impute: str = "",
    task: str = "",
    copy: bool = True,
) -> Dataset:
    """Check arrays and make a dataset of a copy of them.

    `uint8` features are pixels and stay so (a task scales them to 0..1), other integers are tokens,
    all else is float32. Integer targets are classes, floating targets make a regression; strings
    are the names of classes, in sorted order, and booleans are classes too. Floats that are few
    whole numbers are classes as well, with a warning (W305), unless `task` says "regression";
    "classification" says that all are. Client labels may be
    integers or strings; they are numbered in sorted order, and kept as names unless they are those
    numbers. `train` says which samples were in the original training part, and `classes` how many
    classes there are where not all of them need occur. `features` are the columns of a table, in
    which NaN is a missing value, and `impute` says what stands in for these. `copy=False` takes
    arrays over as they are where their types fit.
    """
    samples, targets = _array(x), _array(y)
    labels = None if client is None else _array(client)
    part = None if train is None else _array(train)
    for key, array in {"x": samples, "y": targets, "client": labels, "train": part}.items():
        if array is not None and array.shape[:1] != samples.shape[:1]:
            raise MasqueradeError(
                "E302",
                f"{name}: `{key}` has shape {array.shape} but `x` has shape {samples.shape}; "
                "they must hold one entry per sample",
            )
    if not (samples.ndim and samples.size and targets.size):
        raise MasqueradeError("E302", f"{name}: there are no samples in `x` or `y`; give some")
    if features:
        check_features(features, math.prod(samples.shape[1:]))
    check_task(task)
    worded = targets.dtype.kind in "US"
    targets, class_names = _classes(targets, task, name)
    targets = _targets(targets, name, len(class_names) or classes)
    kept = _features(samples, name, bool(features))
    if copy and kept is samples:
        kept = np.array(kept, order="C")
    found = int(targets.max()) + 1 if targets.dtype == np.int64 else None
    names, owner = ((), None) if labels is None else _numbered(labels, name)
    return Dataset(
        name=name,
        x=torch.from_numpy(np.require(kept, requirements=["C", "W"])),
        y=torch.from_numpy(targets),
        classes=len(class_names) or (classes or found if found is not None else None),
        client=None if owner is None else torch.from_numpy(owner),
        train=None if part is None else torch.from_numpy(_flags(part, name)),
        names=names,
        class_names=class_names,
        worded=worded,
        features=tuple(features),
        impute=impute,
    )


def check_task(task: str) -> None:
    """Refuse what targets cannot be."""
    if task not in TASKS:
        text = f"`task` is {task!r}{nearest(task, TASKS)}; choose from {', '.join(TASKS[1:])}"
        raise MasqueradeError("E201", text)


def are_few(y: Array) -> bool:
    """Tell whether targets are few whole numbers, though they are floats."""
    whole = y.dtype.kind == "f" and y.ndim == 1 and bool((y % 1 == 0).all())
    return whole and len(np.unique(y)) <= FEW


def numbered(y: Array) -> tuple[Array, tuple[str, ...]]:
    """Number the different targets, and name them unless they count from 0."""
    known, numbers = np.unique(y, return_inverse=True)
    texts = tuple(str(int(each)) if each % 1 == 0 else str(each) for each in known.tolist())
    return numbers.reshape(y.shape), () if texts == tuple(map(str, range(len(texts)))) else texts


def _array(values: npt.ArrayLike | Tensor) -> Array:
    if isinstance(values, Tensor):
        # NumPy has no bfloat16, and float32 is what all floats become.
        values = values.detach().cpu()
        return (values.float() if values.is_floating_point() else values).numpy()
    array = np.asarray(values)
    # Columns of frames hold their words as objects.
    words = array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat)
    return array.astype(str) if words or array.dtype.kind == "T" else array


def _classes(y: Array, task: str, name: str) -> tuple[Array, tuple[str, ...]]:
    """Return classes by number, and their names where they have any; or numbers as they are."""
    if task == "regression":
        if y.dtype.kind not in "fiub":
            text = f"{name}: `y` has type {y.dtype}, and the task is a regression; give numbers"
            raise MasqueradeError("E302", text)
        return y.astype(np.float64), ()
    if y.dtype.kind == "b":
        return y, ("False", "True")
    if y.dtype.kind in "US":
        known, numbers = np.unique(y, return_inverse=True)
        return numbers.reshape(y.shape), _texts(known)
    if y.dtype.kind != "f" or not (task or are_few(y)):
        return y, ()
    if not task:
        shown = listed(np.unique(y).tolist(), 3)
        text = f"W305 {name}: `y` holds few whole numbers, as floats ({shown}), read as classes"
        how = "task='regression' (--task regression) makes it a regression"
        warn(f"{text}; {how}")
    return numbered(y)


def _texts(words: Array) -> tuple[str, ...]:
    bytes_ = words.dtype.kind == "S"
    texts = np.char.decode(words, "utf-8", "backslashreplace") if bytes_ else words
    return tuple(map(str, texts.tolist()))


def _features(x: Array, name: str, missing: bool) -> Array:
    if x.dtype in (np.uint8, np.int8, np.int16, np.int32):
        return x
    if x.dtype.kind in "iu":
        return x.astype(np.int64, order="C", copy=False)
    if x.dtype.kind in "fb":
        return _finite(x, "x", name, missing)
    text = f"{name}: `x` has type {x.dtype}; features must be numbers"
    raise MasqueradeError("E302", f"{text}; mq.from_frame takes frames with columns of words")


def _targets(y: Array, name: str, classes: int | None) -> Array:
    if y.dtype.kind == "f":
        return _finite(y, "y", name)
    if y.dtype.kind not in "iub":
        raise MasqueradeError(
            "E302",
            f"{name}: `y` has type {y.dtype}; give integers, strings or booleans for classes, or "
            "floats for regression",
        )
    labels = y.astype(np.int64, order="C")
    last = labels.max() if classes is None else classes - 1
    outside = np.argwhere((labels < 0) | (labels > last))
    if len(outside):
        first = outside[0]
        raise MasqueradeError(
            "E302",
            f"{name}: sample {first[0]} has label {labels[tuple(first)]}, outside 0 to {last}; "
            "number the classes from 0",
        )
    return labels


def _finite(values: Array, key: str, name: str, missing: bool = False) -> Array:
    """Return float32; NaN is a fault unless it is what is `missing` of a table."""
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32, order="C", copy=False)
    bad = np.argwhere(np.isinf(floats) if missing else ~np.isfinite(floats))
    if len(bad):
        raise MasqueradeError(
            "E302",
            f"{name}: `{key}` has {len(bad)} values that are NaN, infinite or beyond float32, the "
            f"first in sample {bad[0, 0]}; remove or replace them",
        )
    return floats


def _flags(part: Array, name: str) -> Array:
    if part.ndim != 1 or part.dtype.kind != "b":
        raise MasqueradeError(
            "E302",
            f"{name}: `train` has type {part.dtype} and shape {part.shape}; "
            "give one True or False per sample",
        )
    return np.array(part)


def _numbered(labels: Array, name: str) -> tuple[tuple[str, ...], Array]:
    """Return the names of clients, unless they are their numbers, and each sample's client."""
    if labels.ndim != 1 or labels.dtype.kind not in "iuUS":
        raise MasqueradeError(
            "E302",
            f"{name}: `client` has type {labels.dtype} and shape {labels.shape}; "
            "give one integer or string per sample",
        )
    known, numbers = np.unique(labels, return_inverse=True)
    names = _texts(known)
    numbered = names == tuple(map(str, range(len(names))))
    return () if numbered else names, numbers.astype(np.int64)
