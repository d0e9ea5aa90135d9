"""CIFAR-10 and CIFAR-100, as python and as binary batches, and the arrays of CIFAR-10-C.

Python batches are pickles. They are not loaded: their instructions are walked through, and only
those are followed that build dicts, lists, numbers, strings and arrays of bytes.
"""

import io
import math
import pickletools
import re
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from masquerade.data.corrupt import KINDS
from masquerade.data.dataset import Array, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading

BATCH = re.compile(r"(data_batch_\d|test_batch|train|test)(\.bin)?")
IMAGE = (3, 32, 32)
SEVERITIES = 5

_RECONSTRUCT, _ARRAY, _TYPE = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
_GLOBALS = {_RECONSTRUCT, _ARRAY, _TYPE}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = {"BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Named(str):
    """A name that a pickle asks for; it stands for something and is never looked up."""


class _Hollow:
    """An array or a type whose content is still to come."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Walk:
    """The stack, the marks and the memory of a walk through a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memory: dict[int, Any] = {}

    def popped(self) -> list[Any]:
        """Take everything above the last mark."""
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def step(self, name: str, argument: Any) -> None:
        """Follow one instruction, or refuse it."""
        stack = self.stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _ARGUMENTS:
            stack.append(argument)
        elif name == "GLOBAL" and argument in _GLOBALS:
            stack.append(_Named(argument))
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in ("TUPLE", *_TUPLES):
            if name in _TUPLES:
                self.marks.append(len(stack) - _TUPLES[name])
            stack.append(tuple(self.popped()))
        elif name in ("APPEND", "APPENDS"):
            taken = self.popped() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(taken)
        elif name in ("SETITEM", "SETITEMS"):
            if name == "SETITEM":
                self.marks.append(len(stack) - 2)
            taken = self.popped()
            stack[-1].update(zip(taken[::2], taken[1::2], strict=True))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memory[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memory[argument])
        elif name == "REDUCE":
            self.reduce()
        elif name == "BUILD":
            self.build()
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"its pickle asks for {name} {argument!r:.60}, which no batch needs")

    def reduce(self) -> None:
        """Make room for what `numpy` would have made."""
        given, called = self.stack.pop(), self.stack.pop()
        if called == _TYPE and isinstance(called, _Named) and given[0] == "u1":
            self.stack.append(_Hollow("type"))
        elif called == _RECONSTRUCT and isinstance(called, _Named):
            self.stack.append(_Hollow("array"))
        else:
            raise ValueError(f"its pickle calls {called!r:.60} with {given!r:.60}")

    def build(self) -> None:
        """Fill an array of bytes."""
        state, hollow = self.stack.pop(), self.stack[-1]
        if not isinstance(hollow, _Hollow):
            raise ValueError(f"its pickle changes a {type(hollow).__name__}")
        if hollow.kind == "array":
            _, shape, kind, by_column, text = state
            content = text.encode("latin-1")
            if not isinstance(kind, _Hollow) or by_column or math.prod(shape) != len(content):
                raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
            self.stack[-1] = np.frombuffer(content, np.uint8).reshape(shape)


def unpickled(data: bytes) -> Any:
    """Return what a batch holds, without running anything that its pickle names."""
    walk = _Walk()
    for opcode, argument, _ in pickletools.genops(data):
        walk.step(opcode.name, argument)
    return walk.stack.pop()


def _python(data: bytes) -> tuple[Array, Array]:
    batch = unpickled(data)
    labels = batch["labels"] if "labels" in batch else batch["fine_labels"]
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
        meta = unpickled(files.read(path))
        return tuple(meta.get("label_names") or meta["fine_label_names"])
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
    return Reading(dataset, _class_names(files))


def read_corrupted(files: Files, name: str) -> Reading:
    """Read CIFAR-10-C: a block of samples for each kind and severity."""
    found = files.named("labels.npy", *(f"{kind}.npy" for kind in KINDS))
    kinds = [kind for kind in KINDS if f"{kind}.npy" in found]
    if "labels.npy" not in found or not kinds:
        raise ValueError("it needs `labels.npy` and at least one of " + ", ".join(KINDS))
    labels = _plain(files.read(found["labels.npy"]))
    x = np.empty((len(kinds), len(labels), *IMAGE), dtype=np.uint8)
    for place, kind in enumerate(kinds):
        images = _plain(files.read(found[f"{kind}.npy"]))
        if images.dtype != np.uint8 or images.shape != (len(labels), 32, 32, 3):
            raise ValueError(f"`{kind}.npy` has type {images.dtype} and shape {images.shape}")
        x[place] = images.transpose(0, 3, 1, 2)
    y, flat = np.tile(labels, len(kinds)), x.reshape(-1, *IMAGE)
    never = np.zeros(len(y), dtype=np.bool_)
    dataset = from_arrays(flat, y, name=name, train=never, classes=10, copy=False)
    blocks = (f"{kind}:{level}" for kind in kinds for level in range(1, SEVERITIES + 1))
    return Reading(dataset, blocks=tuple(blocks))


def _plain(data: bytes) -> Array:
    read: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return read
