"""Users with their samples: LEAF's JSON (FEMNIST's images as numbers, Shakespeare's texts), and the
HDF5 files in which TensorFlow Federated publishes FEMNIST.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from masquerade.data.dataset import Array, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading
from masquerade.data.readers.text import ALPHABET, LENGTH, tokens
from masquerade.errors import MasqueradeError
from masquerade.storage.arrays import DENSEST
from masquerade.storage.regular import LARGEST

CLASSES, DIGITS = 62, 10
STAGES = ({"train", "test"}, {"rem_user_data"}, {"sampled_data"}, {"all_data"})
"""The folders that LEAF's programs fill one after another, the last first: each holds what it took
from the one before, so that only one of them may be read."""


def latest(paths: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the JSON files of LEAF's last stage, or all if there is no stage, and their folder."""
    found = [path for path in paths if path.endswith(".json")]
    for stage in STAGES:
        folders = [(path, stage.intersection(PurePosixPath(path).parts[:-1])) for path in found]
        if any(folder for _, folder in folders):
            return [(path, folder.pop()) for path, folder in folders if folder]
    return [(path, "") for path in found]


def read(files: Files, name: str, digits: bool = False, classes: int | None = None) -> Reading:
    """Read the files; those in folders `train` and `test`, or called so, are such parts.

    `digits` keeps the samples of the first ten classes only.
    """
    xs: list[Array] = []
    ys: list[Array] = []
    owners: list[str] = []
    parts: list[str] = []
    sizes: list[int] = []
    stored = [path for path in files.names if path.endswith(".h5")]
    # All classes are checked before digits are told from letters.
    known = CLASSES if digits else classes
    users = _stored(files, stored, known) if stored else _written(files, known)
    for user, part, x, y in users:
        if digits:
            x, y = x[y < DIGITS], y[y < DIGITS]
        if not len(y):
            continue
        xs.append(x)
        ys.append(y)
        owners.append(user)
        parts.append(part)
        sizes.append(len(y))
    if not xs:
        raise ValueError("there is no .json or .h5 file with users in it")
    x, y = np.concatenate(xs), np.concatenate(ys)
    split = set(parts) <= STAGES[0]
    train = np.repeat([part == "train" for part in parts], sizes) if split else None
    classes = len(ALPHABET) if x.dtype == np.int8 else classes
    names, numbers = np.unique(owners, return_inverse=True)
    client = np.repeat(numbers, sizes)
    dataset = from_arrays(x, y, client, name, train=train, classes=classes, copy=False)
    dataset = replace(dataset, names=tuple(names.tolist()))
    letters = tuple(map(repr, ALPHABET)) if x.dtype == np.int8 else ()
    return Reading(replace(dataset, class_names=letters))


Users = Iterator[tuple[str, str, Array, Array]]
"""Every user's name, part, samples and labels."""


def _written(files: Files, classes: int | None) -> Users:
    """Yield the users of LEAF's JSON."""
    for path, part in latest(files.names):
        content = json.loads(files.read(path))
        for user in content["users"]:
            if content["user_data"][user]["y"]:
                where = f"{path}, user `{user}`"
                yield user, part, *_samples(content["user_data"][user], where, classes)


def _stored(files: Files, paths: list[str], classes: int | None) -> Users:
    """Yield the users of HDF5 files: examples / USER / pixels and label."""
    import h5py

    for path in paths:
        part = "train" if path.endswith("_train.h5") else "test"
        left = LARGEST
        with h5py.File(io.BytesIO(files.read(path)), "r") as content:
            users = _inside(content, "examples", h5py.Group)
            for user in users:
                group = _inside(users, user, h5py.Group)
                pixels, labels = (_inside(group, n, h5py.Dataset) for n in ("pixels", "label"))
                # Many names may stand for one dataset.
                left -= _size(pixels) + _size(labels)
                if left < 0:
                    raise ValueError(f"its users have more than {LARGEST} bytes")
                x, y = pixels[()], labels[()]
                where = f"{path}, user `{user}`"
                yield user, part, _pixels(x.reshape(len(y), -1), where), _labels(y, where, classes)


def _inside(group: Any, name: str, kind: Any) -> Any:
    """Return what a group itself holds: links may lead to other files, and round in circles."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"`{name:.60}` is a link to somewhere else")
    found = group[name]
    if not isinstance(found, kind):
        raise ValueError(f"`{name:.60}` is no {kind.__name__.lower()}")
    return found


def _size(dataset: Any) -> int:
    """Return the bytes of a dataset of plain numbers that are all in this very file."""
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"`{dataset.name:.60}` has its values in another file")
    if dataset.dtype.kind not in "iuf":
        raise ValueError(f"`{dataset.name:.60}` has no numbers")
    size: int = dataset.nbytes
    if size > DENSEST * dataset.id.get_storage_size():
        raise ValueError(f"`{dataset.name:.60}` says it has {size} bytes, and they are not there")
    return size


def _samples(user: dict[str, Any], where: str, classes: int | None) -> tuple[Array, Array]:
    """Return a user's samples: pixels or other numbers, or characters."""
    if user["y"] and isinstance(user["y"][0], str):
        x, y = tokens("".join(user["x"])), tokens("".join(user["y"]))
        return x.reshape(len(y), LENGTH), y.astype(np.int64)
    x = np.array(user["x"], dtype=np.float64).reshape(len(user["y"]), -1)
    return _pixels(x, where), _labels(np.array(user["y"], dtype=np.float64), where, classes)


def _labels(y: Array, where: str, classes: int | None) -> Array:
    """Return classes as whole numbers."""
    if y.ndim != 1:
        raise MasqueradeError("E302", f"{where}: labels are {y.ndim}-dimensional; give one each")
    last = np.iinfo(np.int32).max if classes is None else classes - 1
    wrong = y[~((y == np.rint(y)) & (y >= 0) & (y <= last))]
    if wrong.size:
        text = f"{where}: label {wrong[0]:g} is no whole number, or outside 0 to {last}"
        raise MasqueradeError("E302", f"{text}; correct it")
    return y.astype(np.int64)


def _pixels(x: Array, where: str) -> Array:
    """Return images as the bytes that they were before LEAF divided them by 255."""
    if not np.isfinite(x).all():
        raise MasqueradeError("E302", f"{where}: a value is NaN or infinite; remove the sample")
    if x.shape[1] != 28 * 28:
        return x.astype(np.float32)
    levels = np.rint(x * 255)
    # What was stored in float32 is near enough.
    if not ((np.abs(x * 255 - levels) < 1e-4) & (levels >= 0) & (levels <= 255)).all():
        text = "an image of 28 x 28 has values that are not k/255; LEAF's images have no others"
        raise MasqueradeError("E302", f"{where}: {text}")
    images: Array = levels.astype(np.uint8).reshape(-1, 1, 28, 28)
    return images
