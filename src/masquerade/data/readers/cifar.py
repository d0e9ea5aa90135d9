"""CIFAR-10 and CIFAR-100, as python and as binary batches, and the arrays of CIFAR-10-C.

Python batches are pickles. They are not loaded; `safe_pickle` walks through them.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from masquerade.data.corruption import KINDS
from masquerade.data.dataset import Array, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading
from masquerade.storage.arrays import parse_npy
from masquerade.storage.safe_pickle import Language

BATCH = re.compile(r"(data_batch_\d|test_batch|train|test)(\.bin)?")
IMAGE = (3, 32, 32)
SEVERITIES = 5


@dataclass(frozen=True)
class _Hollow:
    """An array or a type whose content is still to come."""

    kind: str


def _type(name: str, *_: Any) -> _Hollow:
    if name != "u1":
        raise ValueError("it has an array of something else than bytes")
    return _Hollow("type")


def _filled(thing: Any, state: Any) -> Any:
    """Fill an array of bytes; a type is known without its state."""
    if not isinstance(thing, _Hollow):
        raise ValueError(f"its pickle changes a {type(thing).__name__}")
    if thing.kind == "type":
        return thing
    _, shape, kind, by_column, text = state
    content = text.encode("latin-1")
    plain = isinstance(kind, _Hollow) and not by_column and isinstance(shape, tuple)
    # The product of many long numbers would take forever.
    if not plain or len(shape) > 4 or not all(type(n) is int for n in shape):
        raise ValueError("its pickle has an array that no batch has")
    if math.prod(shape) != len(content):
        raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape)


BATCHES = Language(
    {
        "numpy.core.multiarray _reconstruct": lambda *_: _Hollow("array"),
        "numpy dtype": _type,
        "numpy ndarray": None,
    },
    _filled,
)
"""The pickles of python batches: dicts and lists of numbers, strings and arrays of bytes."""


def _python(data: bytes) -> tuple[Array, Array]:
    batch = BATCHES.read(data)
    labels = batch["labels"] if "labels" in batch else batch["fine_labels"]
    # Lists within lists that share their parts would grow without bound as an array.
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError("its labels are no flat list of whole numbers")
    if not isinstance(batch["data"], np.ndarray):
        raise ValueError("its data are no array")
    return batch["data"], np.array(labels, dtype=np.int64)


def _binary(data: bytes, labels: int) -> tuple[Array, Array]:
    """Read records of labels, the last of which is the finest, and pixels."""
    record = labels + math.prod(IMAGE)
    if not data or len(data) % record:
        raise ValueError(f"{len(data)} bytes are no whole number of records of {record}")
    records = np.frombuffer(data, np.uint8).reshape(-1, record)
    return records[:, labels:], records[:, labels - 1].astype(np.int64)


def _class_names(files: Files) -> tuple[str, ...]:
    """Read the names of the classes where there is a file with them."""
    found = files.named("batches.meta", "meta", "batches.meta.txt", "fine_label_names.txt")
    for base, path in found.items():
        if base.endswith(".txt"):
            return tuple(files.read(path).decode().split())
        meta = BATCHES.read(files.read(path))
        names = tuple(meta.get("label_names") or meta["fine_label_names"])
        if not all(isinstance(each, str) for each in names):
            raise ValueError("its names of classes are no texts")
        return names
    return ()


def read(files: Files, name: str) -> Reading:
    """Read training and test batches, in the order of their names."""
    batches: dict[str, tuple[Array, Array]] = {}
    many = False
    # In the order of the archive, so that a compressed one is gone through once.
    for path in files.names:
        base = PurePosixPath(path).name
        match = BATCH.fullmatch(base)
        if match:
            many = match[1] in ("train", "test")
            data = files.read(path)
            batches[match[1]] = _binary(data, 1 + many) if match[2] else _python(data)
    if not batches:
        raise ValueError("there is no `data_batch_1` or `train` in it, with or without .bin")
    order = sorted(batches, key=lambda base: (base.startswith("test"), base))
    x = np.concatenate([batches[base][0] for base in order]).reshape(-1, *IMAGE)
    y = np.concatenate([batches[base][1] for base in order])
    sizes = [len(batches[base][1]) for base in order]
    train = np.repeat([not base.startswith("test") for base in order], sizes)
    classes = 100 if many else 10
    dataset = from_arrays(x, y, name=name, train=train, classes=classes, copy=False)
    return Reading(replace(dataset, class_names=_class_names(files)))


def read_corrupted(files: Files, name: str) -> Reading:
    """Read CIFAR-10-C: a block of samples for each kind and severity."""
    found = files.named("labels.npy", *(f"{kind}.npy" for kind in KINDS))
    kinds = [kind for kind in KINDS if f"{kind}.npy" in found]
    if "labels.npy" not in found or not kinds:
        raise ValueError("it needs `labels.npy` and at least one of " + ", ".join(KINDS))
    labels = parse_npy(files.read(found["labels.npy"]))
    x = np.empty((len(kinds), len(labels), *IMAGE), dtype=np.uint8)
    for place, kind in enumerate(kinds):
        images = parse_npy(files.read(found[f"{kind}.npy"]))
        if images.dtype != np.uint8 or images.shape != (len(labels), 32, 32, 3):
            raise ValueError(f"`{kind}.npy` has type {images.dtype} and shape {images.shape}")
        x[place] = images.transpose(0, 3, 1, 2)
    y, flat = np.tile(labels, len(kinds)), x.reshape(-1, *IMAGE)
    never = np.zeros(len(y), dtype=np.bool_)
    dataset = from_arrays(flat, y, name=name, train=never, classes=10, copy=False)
    blocks = (f"{kind}:{level}" for kind in kinds for level in range(1, SEVERITIES + 1))
    return Reading(dataset, blocks=tuple(blocks))
