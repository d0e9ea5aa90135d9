"""Tables: npz with x and y, and CSV or parquet with the columns y, perhaps client, and features."""

import csv
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from masquerade.core.features import Feature
from masquerade.data.dataset import COLUMNS, Array, Dataset, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading
from masquerade.errors import MasqueradeError

TRUE, FALSE = {"true", "1", "train"}, {"false", "0", "test"}


def npz(path: Path, name: str) -> Dataset:
    """Read an npz file with `x`, `y` and, if wanted, `client` and `train`."""
    if not path.exists():
        raise MasqueradeError("E301", f"{path} does not exist; check the path")
    if path.is_dir() or not zipfile.is_zipfile(path):
        raise MasqueradeError(
            "E301", f"{path} is no .npz file; write one with `numpy.savez(path, x=x, y=y)`"
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in COLUMNS if key in archive}
    # A damaged archive fails in many ways inside zipfile, zlib and numpy; all mean the same here.
    except Exception as fault:
        raise MasqueradeError(
            "E301",
            f"{path} cannot be read as an npz of plain arrays ({fault}); "
            "write it with `numpy.savez(path, x=x, y=y)`, without object arrays",
        ) from fault
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        raise MasqueradeError("E301", f"{path} has no array named {' or '.join(missing)}; add it")
    return from_arrays(**arrays, name=name, copy=False)


def read_npz(files: Files, name: str) -> Reading:
    """Read an npz file."""
    return Reading(npz(files.path, name))


def read_csv(files: Files, name: str) -> Reading:
    """Read a CSV file with a line of column names."""
    (path,) = files.names
    rows = list(csv.reader(io.StringIO(files.read(path).decode("utf-8-sig"), newline="")))
    if len(rows) < 2:
        raise ValueError("it needs a line of column names and samples below it")
    uneven = [place for place, row in enumerate(rows, 1) if len(row) != len(rows[0])]
    if uneven:
        raise ValueError(f"line {uneven[0]} has not as many fields as the first")
    twice = [key for key in rows[0] if rows[0].count(key) > 1]
    if twice:
        raise ValueError(f"more than one column is named `{twice[0]}`")
    columns = zip(*rows[1:], strict=True)
    return _read(dict(zip(rows[0], map(np.array, columns), strict=True)), name)


def read_parquet(files: Files, name: str) -> Reading:
    """Read a parquet file, with the package `pyarrow`."""
    try:
        from pyarrow import parquet
    except ImportError:
        text = "parquet files are read with the package `pyarrow`; pip install pyarrow"
        raise MasqueradeError("E301", text) from None
    table = parquet.read_table(files.path)
    columns = {each: table[each].to_numpy() for each in table.column_names}
    # Words come as objects; nothing else may.
    words = {
        key: np.array(each, dtype=str) for key, each in columns.items() if each.dtype == object
    }
    return _read(columns | words, name)


def _read(columns: dict[str, Array], name: str) -> Reading:
    """Make a dataset of columns; all but `y`, `client` and `train` are features, in their order."""
    if "y" not in columns:
        raise ValueError(f"it has no column `y`, only {', '.join(columns)}")
    features = [key for key in columns if key not in COLUMNS[1:]]
    if not features:
        raise ValueError("it has no column with features, only " + ", ".join(columns))
    x = np.stack([_numbers(columns[key], key) for key in features], axis=1)
    client, train = columns.get("client"), columns.get("train")
    y, class_names = _targets(columns["y"])
    flags = None if train is None else _flags(train)
    dataset = from_arrays(x, y, client, name, train=flags, copy=False)
    named = tuple(map(Feature, features))
    return Reading(replace(dataset, class_names=class_names, features=named))


def _numbers(column: Array, key: str) -> Array:
    try:
        return column.astype(np.float32)
    except ValueError as fault:
        raise ValueError(f"column `{key}` holds what is no number ({fault})") from None


def _targets(column: Array) -> tuple[Array, tuple[str, ...]]:
    """Return whole numbers as classes, other numbers for a regression, and words as class names."""
    if column.dtype.kind in "iufb":
        return column, ()
    for kind in (np.int64, np.float64):
        try:
            return column.astype(kind), ()
        except ValueError:
            continue
    names, numbers = np.unique(column, return_inverse=True)
    return numbers, tuple(names.tolist())


def _flags(column: Array) -> Array:
    words = [str(value).lower() for value in column]
    strange = next((word for word in words if word not in TRUE | FALSE), None)
    if strange is not None:
        raise ValueError(f"column `train` holds {strange!r}; write true or false")
    return np.array([word in TRUE for word in words])
