"""Arrays in an npz file: x and y, perhaps client and train."""

import zipfile

import numpy as np

from masquerade.data.dataset import COLUMNS, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.options import TableOptions
from masquerade.data.readers.reading import Reading
from masquerade.errors import MasqueradeError


def read(files: Files, name: str, table: TableOptions) -> Reading:
    """Read an npz file with `x`, `y` and, if wanted, `client` and `train`."""
    path = files.path
    if path.is_dir() or not zipfile.is_zipfile(path):
        raise MasqueradeError(
            "E301", f"{path} is no .npz file; write one with `numpy.savez(path, x=x, y=y)`"
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in COLUMNS if key in archive}
            there = ", ".join(archive.files)
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
    return Reading(from_arrays(**arrays, name=name, task=table.task, copy=False))
