"""Pretrained weights from a file: safetensors, or a PyTorch state dict that is read and never run.

A `.pth` file is a pickle; `safe_pickle` walks through it. Every size is checked against the file
before a tensor is made, so that a small file cannot ask for much memory.
"""

import io
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError
from masquerade.storage.regular import read_regular
from masquerade.storage.safe_pickle import Language

_MAGIC = 0x1950A86A20F9469CFC6C
"""The first number of the format that PyTorch wrote before its zip archives."""


@dataclass(frozen=True)
class _Storage:
    """Numbers that lie elsewhere in the file."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class _View:
    """A tensor before its numbers are there."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def over(self, numbers: Tensor) -> Tensor:
        """Return the tensor, all of which has to lie in its storage; nothing is copied."""
        whole = (self.offset, *self.shape, *self.stride)
        sensible = all(type(each) is int and 0 <= each < 1 << 63 for each in whole)
        # The product of many long numbers would take forever.
        sensible = sensible and len(whole) <= 129
        if not sensible or len(self.shape) != len(self.stride):
            raise ValueError("a tensor has no sensible shape")
        size = math.prod(self.shape)
        steps = (max(n - 1, 0) * step for n, step in zip(self.shape, self.stride, strict=True))
        if size > len(numbers) or (size and self.offset + sum(steps) >= len(numbers)):
            raise ValueError("a tensor is larger than its storage")
        if not size:
            return numbers.new_empty(self.shape)
        return numbers.as_strided(self.shape, self.stride, self.offset)


_TYPES = {
    "torch FloatStorage": torch.float32,
    "torch DoubleStorage": torch.float64,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
}


def _view(storage: _Storage, offset: int, shape: Any, stride: Any, *_: Any) -> _View:
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor without a storage")
    return _View(storage, offset, tuple(shape), tuple(stride))


def _empty() -> dict[str, Any]:
    return {}


_MAKERS: dict[str, Callable[..., Any]] = {
    "collections OrderedDict": _empty,
    "torch._utils _rebuild_tensor_v2": _view,
    "torch._utils _rebuild_parameter": lambda data, *_: data,
}
"""All that a file can have called: our own functions, by the names that PyTorch gives to its."""


def _storage(found: Any) -> _Storage:
    _, kind, key, _, count = found[:5]
    if type(key) is not str or type(count) is not int:
        raise ValueError("a storage without a name")
    return _Storage(key, _TYPES[kind.text], count)


# What modules note beside a state dict (their versions) is not needed, so nothing is filled.
_LANGUAGE = Language({**dict.fromkeys(_TYPES), **_MAKERS}, elsewhere=_storage)


def _views(found: Any) -> dict[str, _View]:
    """Return the tensors of a state dict, which may lie under `state_dict`."""
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found:
        raise ValueError("it is no state dict")
    for key, each in found.items():
        if not (isinstance(key, str) and isinstance(each, _View)):
            raise ValueError(f"`{key}` is no tensor")
    return found


def _tensor(data: bytes, storage: _Storage) -> Tensor:
    """Return the numbers of a storage, all of which must be there."""
    if len(data) != storage.count * storage.dtype.itemsize:
        raise ValueError(f"storage {storage.key} has {len(data)} bytes")
    if storage.dtype is torch.bool and any(byte > 1 for byte in set(data)):
        raise ValueError(f"storage {storage.key} has bits that are no bits")
    if not data:
        return torch.empty(0, dtype=storage.dtype)
    return torch.frombuffer(bytearray(data), dtype=storage.dtype)


def _from_zip(data: bytes) -> Tree:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {each.filename.partition("/")[2]: each for each in archive.infolist()}
        # PyTorch compresses nothing, so what is unpacked is never larger than the file.
        if sum(each.file_size for each in members.values()) > len(data):
            raise ValueError("its archive is larger unpacked")
        if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
            raise ValueError("its numbers are big-endian")
        views = _views(_LANGUAGE.read(archive.read(members["data.pkl"])))
        storages = {view.storage.key: view.storage for view in views.values()}
        numbers = {
            key: _tensor(archive.read(members[f"data/{key}"]), each)
            for key, each in storages.items()
        }
    return {name: view.over(numbers[view.storage.key]) for name, view in views.items()}


def _from_legacy(data: bytes) -> Tree:
    """Read what PyTorch wrote before 1.6: five pickles, then the storages."""
    stream = io.BytesIO(data)
    magic, _, system, found, keys = (_LANGUAGE.read(stream) for _ in range(5))
    if magic != _MAGIC or not system.get("little_endian"):
        raise ValueError("it is no state dict")
    views = _views(found)
    storages = {view.storage.key: view.storage for view in views.values()}
    numbers = {}
    for key in keys:
        storage = storages[key]
        if int.from_bytes(stream.read(8), "little") != storage.count:
            raise ValueError(f"storage {key} has another length")
        numbers[key] = _tensor(stream.read(storage.count * storage.dtype.itemsize), storage)
    return {name: view.over(numbers[view.storage.key]) for name, view in views.items()}


def read_weights(path: str | Path) -> Tree:
    """Read the tensors of a safetensors file or of a PyTorch state dict, without running it."""
    from safetensors.torch import load

    try:
        data = read_regular(Path(path))
    except OSError as fault:
        text = f"cannot read weights {path}: {fault.strerror}; check the path"
        raise MasqueradeError("E306", text) from None
    # The first bytes of a safetensors file are a length, and none is as long as these would be.
    starts: dict[bytes, Callable[[bytes], Tree]]
    starts = {b"PK\x03\x04": _from_zip, b"\x80\x02\x8a\x0a": _from_legacy}
    try:
        return starts.get(data[:4], load)(data)
    # A damaged file fails in many ways; all mean the same here.
    except Exception as fault:
        raise MasqueradeError(
            "E306",
            f"{path} is no file of weights that can be read without running it "
            f"({type(fault).__name__}: {fault}); give a safetensors file or a plain state dict",
        ) from fault


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Fill a network with weights from a file, in place; return it.

    The last layer stays as it is where the file has it for other classes. Counters of batches may
    be missing. Everything else has to be there, in its shape and finite.
    """
    given, own = read_weights(path), model.state_dict()
    head = list(own)[-1].rpartition(".")[0]
    faults = [f"`{name}` is unknown" for name in given if name not in own]
    fitting: Tree = {}
    for name, value in own.items():
        found = given.get(name)
        if found is None:
            if not name.endswith("num_batches_tracked"):
                faults.append(f"`{name}` is missing")
        elif found.shape != value.shape:
            if name.rpartition(".")[0] != head:
                faults.append(f"`{name}` is {list(found.shape)}, not {list(value.shape)}")
        elif not bool(found.isfinite().all()):
            faults.append(f"`{name}` is not finite")
        else:
            fitting[name] = found
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise MasqueradeError(
            "E306", f"{path} does not fit the network: {', '.join(faults[:5])}{more}"
        )
    for name, value in fitting.items():
        own[name].copy_(value)
    return model
