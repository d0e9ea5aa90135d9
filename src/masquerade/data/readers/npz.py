"""Arrays in an npz file: x and y, perhaps client and train."""

import zipfile
from typing import Any

from masquerade.data.dataset import COLUMNS, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.options import TableOptions
from masquerade.data.readers.reading import Reading
from masquerade.errors import MasqueradeError, listed
from masquerade.storage.arrays import names_in, read_npz


def read(files: Files, name: str, table: TableOptions) -> Reading:
    """Read an npz file with `x`, `y` and, if wanted, `client` and `train`."""
    path = files.path
    if path.is_dir() or not zipfile.is_zipfile(path):
        raise MasqueradeError(
            "E301", f"{path} is no .npz file; write one with `numpy.savez(path, x=x, y=y)`"
        )
    try:
        with path.open("rb") as file:
            arrays: dict[str, Any] = {**read_npz(file, COLUMNS)}
            there = listed(names_in(file))
    # A damaged archive fails in many ways inside zipfile, zlib and numpy; all mean the same here.
    except Exception as fault:
        raise MasqueradeError(
            "E301",
            f"{path} cannot be read as an npz of plain arrays ({fault}); "
            "write it with `numpy.savez(path, x=x, y=y)`, without object arrays",
        ) from fault
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        text = f"{path} has no array named {' or '.join(missing)} (it has {there})"
        raise MasqueradeError("E301", f"{text}; name samples x and labels y")
    labels = arrays["y"]
    if labels.dtype.kind not in "fc" and labels.ndim != 1:
        text = f"{path}: labels `y` have the shape {labels.shape}; give the class of each sample"
        raise MasqueradeError("E302", f"{text}, or floating-point targets")
    return Reading(from_arrays(**arrays, name=name, task=table.task, copy=False))
