"""UCI HAR: windows of a phone's motion, by subject; hand-made features, or the raw signals."""

import io
from dataclasses import replace

import numpy as np

from masquerade.data.dataset import Array, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading

SIGNALS = tuple(
    f"{sensor}_{axis}" for sensor in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)
PARTS = ("train", "test")


def read(files: Files, name: str, signals: bool = False) -> Reading:
    """Read 561 features per window, or nine raw signals [9, 128]."""
    wanted = SIGNALS if signals else ("X",)
    bases = [f"{each}_{part}.txt" for part in PARTS for each in (*wanted, "y", "subject")]
    found = files.named(*bases, "activity_labels.txt")
    missing = [base for base in bases if base not in found]
    if missing:
        other = "features are read as `har`" if signals else "signals are read as `har_signals`"
        raise ValueError(f"there is no `{missing[0]}`; {other}")

    def column(base: str, part: str, kind: type[np.generic]) -> Array:
        text = io.BytesIO(files.read(found[f"{base}_{part}.txt"]))
        return np.loadtxt(text, dtype=kind, ndmin=1)

    parts = []
    for part in PARTS:
        tables = [np.atleast_2d(column(each, part, np.float32)) for each in wanted]
        parts.append(np.stack(tables, axis=1) if signals else tables[0])
    y, subject = (
        np.concatenate([column(each, part, np.int64) for part in PARTS])
        for each in ("y", "subject")
    )
    labels = found.get("activity_labels.txt")
    names = () if labels is None else tuple(files.read(labels).decode().split()[1::2])
    train = np.repeat([True, False], [len(part) for part in parts])
    x = np.concatenate(parts)
    dataset = from_arrays(x, y - 1, subject, name, train=train, classes=6, copy=False)
    return Reading(replace(dataset, class_names=names))
