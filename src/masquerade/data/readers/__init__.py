"""Readers of original files: one function per format, none of which runs what it reads."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from masquerade.data.readers import (
    arrow,
    cifar,
    csv_file,
    gutenberg,
    har,
    idx,
    images,
    leaf,
    npz,
)
from masquerade.data.readers.files import Files, opened
from masquerade.data.readers.options import AS_IT_IS, TableOptions
from masquerade.data.readers.reading import Reading, Unfit
from masquerade.errors import MasqueradeError, nearest

FORMATS: dict[str, tuple[Callable[..., Reading], str]] = {
    # A format's reader, and the names of files by which it is recognized.
    "idx": (idx.read, r".*-(images|labels)[.-]idx\d-ubyte(\.gz)?"),
    "cifar": (cifar.read, r"(data_batch_\d|test_batch)(\.bin)?|(train|test)\.bin|meta"),
    "cifar10c": (cifar.read_corrupted, r"labels\.npy"),
    "har": (har.read, r"X_(train|test)\.txt|body_acc_x_train\.txt"),
    "huggingface": (arrow.read_saved, r"state\.json|dataset_(info|dict)\.json"),
    "leaf": (leaf.read, r".*\.(json|h5)"),
    "gutenberg": (gutenberg.read, r"(pg)?100(-0)?\.txt"),
    "npz": (npz.read, r".*\.npz"),
    "csv": (csv_file.read, r".*\.(csv|tsv)"),
    "parquet": (arrow.read_parquet, r".*\.parquet"),
    "images": (images.read, rf"(?i:.*({'|'.join(map(re.escape, images.SUFFIXES))}))"),
}

TABLES = ("csv", "parquet", "huggingface")
"""Formats that have columns."""
SHEETS = (".xlsx", ".xls", ".ods", ".sav", ".sas7bdat", ".dta", ".rds", ".feather")
"""Files that are tables, and that no reader knows."""
LABELED = (*TABLES, "npz")
"""Formats whose labels may be said to be classes or amounts."""


def recognize(files: Files) -> str:
    """Name the format of some files by how they are called."""
    bases = [PurePosixPath(name).name for name in files.names]
    for format, (_, pattern) in FORMATS.items():
        if any(re.fullmatch(pattern, base) for base in bases):
            return format
    if any(PurePosixPath(base).suffix.lower() in SHEETS for base in (*bases, files.path.name)):
        text = f"{files.path} is a table of another program"
        how = "save it there as CSV, or give mq.from_frame what pandas reads of it"
        raise MasqueradeError("E301", f"{text}; {how}")
    if files.path.name.endswith(".gz"):
        raise MasqueradeError("E301", f"{files.path} is packed; unpack it first (gunzip)")
    shown = ", ".join(bases[:3]) or "nothing"
    raise MasqueradeError(
        "E301",
        f"{files.path} holds {shown}, by which no format is known; name it with --format "
        f"({', '.join(FORMATS)})",
    )


def read(
    path: Path,
    name: str,
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
    table: TableOptions = AS_IT_IS,
) -> Reading:
    """Read a folder, an archive or a file in one of the formats; E301 where it is not in order.

    `options` are those of a known dataset, and `table` what a person says of columns.
    """
    if format is not None and format not in FORMATS:
        known = ", ".join(FORMATS)
        raise MasqueradeError(
            "E201", f"unknown format `{format}`{nearest(format, FORMATS)}; known are {known}"
        )
    if not path.exists():
        raise MasqueradeError("E301", f"{path} does not exist; check the path")
    try:
        with opened(path) as files:
            format = format or recognize(files)
            told = dict(options or {}) | ({"table": table} if format in LABELED else {})
            strange = [each for each in table.given if each != "task" or format not in LABELED]
            if format not in TABLES and strange:
                text = f"{path} is read as {format}, which has no columns"
                raise MasqueradeError("E201", f"{text}; leave out {', '.join(strange)}")
            return replace(FORMATS[format][0](files, name, **told), format=format)
    except MasqueradeError:
        raise
    except Unfit as fault:
        raise MasqueradeError("E301", f"{path} cannot be read as {format}: {fault}") from None
    # Damaged files fail in many ways inside archives, parsers and numpy; all mean the same here.
    except Exception as fault:
        raise MasqueradeError(
            "E301",
            f"{path} cannot be read as {format or 'an archive'}: {fault}; "
            "compare it with the original, or get it again",
        ) from fault
