"""A folder of images: the folder that an image lies in is its class."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np

from masquerade.data.dataset import Array, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")

MODES = {"1", "L", "P", "RGB", "RGBA", "LA"}
"""Pillow's names of what becomes bytes of gray or RGB without loss, but for transparency."""

PPM = re.compile(rb"P[36]\s+\d+\s+\d+\s+(\d+)\s")
"""How a PPM begins, up to its largest value."""


def read(files: Files, name: str) -> Reading:
    """Read images of one size, gray if all are; folders `train` and `test` above are such parts."""
    paths = [path for path in files.names if path.lower().endswith(SUFFIXES)]
    if not paths:
        raise ValueError(f"there is no image in it ({', '.join(SUFFIXES)})")
    folders = [PurePosixPath(path).parts[:-1] for path in paths]
    outside = [path for path, above in zip(paths, folders, strict=True) if not above]
    if outside:
        raise ValueError(f"`{outside[0]}` lies in no folder, so it has no class")
    images = decoded(paths, files.read)
    class_names, y = np.unique([above[-1] for above in folders], return_inverse=True)
    known = all("train" in above[:-1] or "test" in above[:-1] for above in folders)
    train = np.array(["train" in above[:-1] for above in folders]) if known else None
    dataset = from_arrays(images, y, name=name, train=train, copy=False)
    return Reading(replace(dataset, class_names=tuple(class_names.tolist())))


def decoded(paths: Sequence[str], read: Callable[[str], bytes]) -> Array:
    """Return images of one size [n, channels, height, width]; `read` gives the bytes of each."""
    from PIL import Image

    sizes, kinds = set(), set()
    for path in paths:
        data = read(path)
        # Only the header is read here: one image of absurd size must not be decoded.
        with Image.open(io.BytesIO(data)) as image:
            sizes.add(image.size)
            kinds.add(image.mode)
        if image.mode not in MODES or _deep(data):
            raise ValueError(f"{path} has pixels of more than 8 bits, or no RGB colors; convert it")
        if len(sizes) > 1:
            raise ValueError(f"images have different sizes ({path}: {image.size}); make them equal")
    kind = "L" if kinds <= {"L", "1"} else "RGB"
    rows = []
    for path in paths:
        with Image.open(io.BytesIO(read(path))) as image:
            rows.append(np.asarray(image.convert(kind)))
    pixels = np.stack(rows)
    return pixels[:, None] if kind == "L" else pixels.transpose(0, 3, 1, 2)


def _deep(data: bytes) -> bool:
    """Return whether this is a PNG or PPM of 16 bits: Pillow opens such colors as if they had 8."""
    if data.startswith(b"\x89PNG"):
        return data[24] == 16
    levels = PPM.match(re.sub(rb"#.*", b"", data[:1000]))
    return levels is not None and int(levels[1]) > 255
