"""Files in the idx format: MNIST, Fashion-MNIST, EMNIST, plain or gzipped."""

import math
import re
import struct
import zlib

import numpy as np

from masquerade.data.dataset import Array, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading

TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
FILE = re.compile(
    r"(?:.*/)?(?P<set>[^/]*?)(?P<part>train|t10k|test)-(?P<what>images|labels)[.-]idx\d-ubyte(\.gz)?"
)


def array(data: bytes) -> Array:
    """Read one idx file; its header is believed only as far as there are bytes."""
    packed = data[:2] == b"\x1f\x8b"
    head, _ = _unpacked(data, 4 + 4 * 255) if packed else (data, True)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES:
        raise ValueError("it does not begin as idx files do")
    kind, start = np.dtype(TYPES[head[2]]), 4 + 4 * head[3]
    shape = struct.unpack(f">{head[3]}I", head[4:start])
    size = start + math.prod(shape) * kind.itemsize
    body, whole = _unpacked(data, size + 1) if packed else (data, True)
    if len(body) != size:
        more = "more" if len(body) > size else len(body)
        raise ValueError(f"its header announces {size} bytes, and there are {more}")
    if not whole:
        raise ValueError("its end, which has the checksum of gzip, is missing")
    return np.frombuffer(body, kind, offset=start).reshape(shape)


def _unpacked(data: bytes, most: int) -> tuple[bytes, bool]:
    """Return the first bytes, and whether these are all, compared with gzip's checksum."""
    stream = zlib.decompressobj(31)
    return stream.decompress(data, most), stream.eof


def read(files: Files, name: str, choose: str = "", classes: int | None = None) -> Reading:
    """Read pairs of images and labels; `choose` is how the wanted files' names begin."""
    found: dict[str, dict[str, str]] = {}
    for path in files.names:
        match = FILE.fullmatch(path)
        if match and match["set"].startswith(choose):
            part = "train" if match["part"] == "train" else "test"
            found.setdefault(match["set"], {})[f"{part} {match['what']}"] = path
    if len(found) != 1:
        sets = ", ".join(f"`{each}`" for each in found) or "none"
        raise ValueError(f"one set of `…images-idx3-ubyte` files is needed, and there are {sets}")
    ((kind, paths),) = found.items()
    parts = [part for part in ("train", "test") if f"{part} images" in paths]
    missing = [f"{part} labels" for part in parts if f"{part} labels" not in paths]
    if missing or not parts:
        raise ValueError(f"the file with the {' and the '.join(missing) or 'images'} is not there")
    images = [array(files.read(paths[f"{part} images"])) for part in parts]
    labels = [array(files.read(paths[f"{part} labels"])) for part in parts]
    for part, pictures, targets in zip(parts, images, labels, strict=True):
        if pictures.ndim != 3 or targets.shape != pictures.shape[:1]:
            raise ValueError(
                f"the {part} images have shape {pictures.shape}, the labels {targets.shape}"
            )
    x, y = np.concatenate(images)[:, None], np.concatenate(labels)
    if kind.startswith("emnist-"):
        # EMNIST's images lie on their side: each is stored column by column.
        x = x.swapaxes(2, 3)
    if kind == "emnist-letters-":
        y = y.astype(np.int64) - 1
    train = np.repeat([part == "train" for part in parts], [len(each) for each in labels])
    return Reading(from_arrays(x, y, name=name, train=train, classes=classes, copy=False))
