"""Datasets on the disk: each a folder of plain arrays that are mapped, not read, and a manifest.

A dataset is there whole or not at all (`storage/atomic.py`). Its manifest has the SHA-256 of every
array, and all of them are compared before use.
"""

import errno
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from masquerade.core.features import Feature
from masquerade.data.dataset import COLUMNS, Dataset
from masquerade.data.readers.reading import Reading
from masquerade.errors import MasqueradeError
from masquerade.storage import atomic
from masquerade.tables.layout import PLAIN, Layout

FORMAT = 1
MANIFEST = "manifest.json"
DAY = 86_400
"""Seconds after which what a writer has staged is taken for left behind."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Manifest:
    """What is known of a dataset without opening its arrays."""

    name: str
    samples: int
    shape: list[int]
    """Of one sample."""
    type: str
    classes: int | None
    clients: int | None
    trained: int | None
    """How many samples were in the original training part."""
    class_names: list[str] = field(default_factory=list)
    client_names: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    """Names of equally long, consecutive blocks of samples."""
    origin: str = ""
    license: str = ""
    citation: str = ""
    read_as: str = ""
    """The format that the files had."""
    sha256: dict[str, str] = field(default_factory=dict)
    """By array."""
    features: list[Feature] = field(default_factory=list)
    """The columns of a table; empty for other data."""
    impute: str = ""
    """What stands in for missing values of a table."""
    layout: Layout = PLAIN
    """How the file of the table is laid out."""
    format: int = FORMAT


def root() -> Path:
    """Return the folder of the cache: MASQUERADE_CACHE, or where the platform keeps caches."""
    if named := os.environ.get("MASQUERADE_CACHE"):
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("masquerade", appauthor=False)


def holds(name: str) -> bool:
    """Return whether the cache has a dataset of this name."""
    return bool(NAME.fullmatch(name)) and (root() / name / MANIFEST).is_file()


def names() -> list[str]:
    """List the datasets of the cache."""
    here = root()
    return sorted(each.name for each in here.iterdir() if holds(each.name)) if here.is_dir() else []


def check_name(name: str) -> None:
    """Refuse what may not be the name of a folder."""
    if not NAME.fullmatch(name):
        text = f"`{name}` may not be a dataset's name; use letters, digits, dot, dash, underscore"
        raise MasqueradeError("E203", text)


def describe(name: str) -> Manifest:
    """Read the manifest of a dataset."""
    path = root() / name / MANIFEST
    try:
        given = json.loads(path.read_bytes())
        told = {"features": _columns(given), "layout": _layout(given)}
        manifest = Manifest(**given | told)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as fault:
        raise _damaged(name, path, str(fault)) from None
    if manifest.format != FORMAT:
        raise _damaged(name, path, f"it has format {manifest.format}, and this is for {FORMAT}")
    return manifest


def _columns(given: dict[str, Any]) -> list[Feature]:
    # Manifests that are older than this key have no columns.
    return [Feature(each["name"], tuple(each["categories"])) for each in given.get("features", [])]


def _layout(given: dict[str, Any]) -> Layout:
    """Read how a file was laid out; of older manifests only what they said of it."""
    ignored, missing = given.pop("other_columns", []), given.pop("missing", [])
    if "layout" in given:
        return Layout.from_json(given["layout"])
    return Layout(ignored=tuple(ignored), missing=tuple(missing))


def read(name: str) -> Dataset:
    """Map a dataset into memory, after comparing every array with its hash."""
    manifest = describe(name)
    columns = {key: _mapped(name, key, known) for key, known in manifest.sha256.items()}
    return Dataset(
        name=name,
        classes=manifest.classes,
        names=tuple(manifest.client_names),
        class_names=tuple(manifest.class_names),
        worded=False,
        features=tuple(manifest.features),
        impute=manifest.impute,
        layout=manifest.layout,
        **columns,
    )


def _mapped(name: str, key: str, known: str) -> torch.Tensor:
    path = root() / name / f"{key}.npy"
    try:
        found = _hash(path)
        if found != known:
            raise ValueError(f"SHA-256 differs (expected {known}, found {found})")
        # A private map: pages are shared with the file until somebody writes to them.
        return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    except (OSError, ValueError) as fault:
        raise _damaged(name, path, str(fault)) from None


def _hash(path: Path) -> str:
    facts = path.stat()
    return _digest(path, facts.st_size, facts.st_mtime_ns, facts.st_ino)


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, changed: int, inode: int) -> str:
    """Hash a file, once in a process while it stays as it is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(name: str, path: Path, fault: str) -> MasqueradeError:
    text = f"{path}: {fault}; delete {path.parent}, then `masquerade data fetch {name}` or `add`"
    return MasqueradeError("E301", text)


def write(name: str, reading: Reading, replace: bool = False, **facts: str) -> Manifest:
    """Put a dataset into the cache, whole or not at all; `facts` go into its manifest."""
    check_name(name)
    target = root() / name
    if target.exists() and not replace:
        text = f"`{name}` is in the cache already ({target}); --force puts the new one in its place"
        raise MasqueradeError("E201", text)
    with refusals(target, "nothing was changed"):
        root().mkdir(parents=True, exist_ok=True)
        _sweep()
        with atomic.new_folder(target, f"-{uuid.uuid4().hex}", replace) as staged:
            return _fill(staged, name, reading, facts)


@contextmanager
def refusals(target: Path, kept: str) -> Iterator[None]:
    """Turn errors of the disk into errors with a code; `kept` says what is still in order."""
    try:
        yield
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"cannot write {target}: {fault.strerror or fault}; {kept}"
        raise MasqueradeError("E501" if full else "E502", text) from fault


def _sweep() -> None:
    """Delete what writers that were killed have left behind."""
    for each in root().glob(f"{atomic.TEMPORARY}*"):
        # Another process may sweep as well.
        with suppress(FileNotFoundError):
            if time.time() - each.stat().st_mtime > DAY:
                atomic.discard(each)


def _fill(folder: Path, name: str, reading: Reading, facts: dict[str, str]) -> Manifest:
    """Write the arrays and the manifest, and wait until the disk has them."""
    dataset, hashes = reading.dataset, {}
    for key in COLUMNS:
        column = getattr(dataset, key)
        if column is not None:
            path = folder / f"{key}.npy"
            with atomic.filling(path) as file:
                np.save(file, column.numpy(), allow_pickle=False)
            hashes[key] = _hash(path)
    client, train = dataset.client, dataset.train
    manifest = Manifest(
        name=name,
        samples=len(dataset.y),
        shape=list(dataset.x.shape[1:]),
        type=str(dataset.x.dtype).removeprefix("torch."),
        classes=dataset.classes,
        clients=None if client is None else int(client.max()) + 1,
        trained=None if train is None else int(train.sum()),
        class_names=list(dataset.class_names),
        client_names=list(dataset.names),
        features=list(dataset.features),
        impute=dataset.impute,
        layout=dataset.layout,
        blocks=list(reading.blocks),
        read_as=reading.format,
        sha256=hashes,
        format=FORMAT,
        **facts,
    )
    atomic.write_at(folder / MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
    return manifest
