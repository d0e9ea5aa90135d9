"""Plain arrays in npy and npz files: what a header claims is compared with what is there first."""

import io
import math
import os
import zipfile
from collections.abc import Iterable
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from masquerade.storage.regular import LARGEST

Array = npt.NDArray[Any]

DENSEST = 1100
"""How many bytes one byte of a zip can stand for; deflate comes to 1032."""
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(file: Any, size: int) -> Array:
    """Return the array of an npy file of so many bytes; ValueError says why it is none."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"it is an npy file of version {version}")
    shape, by_column, kind = _HEADERS[version](file)
    count, claimed = math.prod(shape), math.prod(shape) * kind.itemsize
    if kind.hasobject or min(shape, default=0) < 0:
        raise ValueError("it is no array of plain numbers or texts")
    if file.tell() + claimed != size:
        raise ValueError(f"an array of shape {shape} and type {kind} does not have {size} bytes")
    found = np.empty(count, kind)
    rest = found.view(np.uint8) if claimed else found[:0]
    while len(rest):
        read = file.readinto(rest)
        if not read:
            raise ValueError("it is cut off")
        rest = rest[read:]
    # Reading up to the end compares the checksum of a zip.
    file.read(1)
    return found.reshape(shape[::-1]).T if by_column else found.reshape(shape)


def parse_npy(data: bytes) -> Array:
    """Return the array of the bytes of an npy file."""
    return read_npy(io.BytesIO(data), len(data))


def read_npz(file: IO[bytes], names: Iterable[str], most: int = LARGEST) -> dict[str, Array]:
    """Return those arrays of an npz file that have these names."""
    whole = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        there = archive.NameToInfo
        return {
            name: _member(archive, there[f"{name}.npy"], whole, most)
            for name in names
            if f"{name}.npy" in there
        }


def names_in(file: IO[bytes]) -> list[str]:
    """Name the arrays of an npz file."""
    with zipfile.ZipFile(file) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, whole: int, most: int) -> Array:
    """Return an array of an archive that has so many bytes as a whole."""
    packed = info.compress_type != zipfile.ZIP_STORED
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"`{info.filename}` is packed in a way that numpy does not write")
    there = min(info.compress_size, whole)
    if info.file_size > (min(most, DENSEST * there) if packed else there):
        raise ValueError(f"`{info.filename}` says it has {info.file_size} bytes")
    with archive.open(info) as member:
        return read_npy(member, info.file_size)
