"""A folder of images: the folder that an image lies in is its class."""

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np

from masquerade.data.dataset import Array, from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading, Unfit
from masquerade.errors import listed
from masquerade.storage.regular import LARGEST

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""Pillow's names of these; of others it reads some by starting another program."""

MODES = {"1", "L", "P", "RGB", "RGBA", "LA"}
"""Pillow's names of what becomes bytes of gray or RGB without loss, but for transparency."""

DAMAGED = "get what is damaged again, or leave it out"
DEEP = "save images with 8 bits, in gray or RGB"
"""What to do."""

PPM = re.compile(rb"P[36]\s+\d+\s+\d+\s+(\d+)\s")
"""How a PPM begins, up to its largest value."""


def read(files: Files, name: str) -> Reading:
    """Read images of one size, gray if all are; folders `train` and `test` above are such parts."""
    paths = [path for path in files.names if path.lower().endswith(SUFFIXES)]
    if not paths:
        text = f"there is no image in it ({', '.join(SUFFIXES)})"
        raise Unfit(f"{text}; name a folder that has a folder of images for each class")
    folders = [PurePosixPath(path).parts[:-1] for path in paths]
    outside = [path for path, above in zip(paths, folders, strict=True) if not above]
    if outside:
        text = f"`{outside[0]}` lies in no folder, so it has no class"
        raise Unfit(f"{text}; put the images of each class into a folder of its name")
    images = decoded(paths, files.read)
    class_names, y = np.unique([above[-1] for above in folders], return_inverse=True)
    known = all("train" in above[:-1] or "test" in above[:-1] for above in folders)
    train = np.array(["train" in above[:-1] for above in folders]) if known else None
    dataset = from_arrays(images, y, name=name, train=train, copy=False)
    return Reading(replace(dataset, class_names=tuple(class_names.tolist())))


def decoded(paths: Sequence[str], read: Callable[[str], bytes]) -> Array:
    """Return images of one size [n, channels, height, width]; `read` gives the bytes of each."""
    from PIL import Image

    sizes: dict[str, tuple[int, int]] = {}
    kinds: set[str] = set()
    faults: dict[str, str] = {}
    for path in paths:
        try:
            kind, sizes[path] = _header(read(path))
            kinds.add(kind)
        except Unfit as fault:
            faults[f"{path} {fault}"] = DEEP
        except ValueError as fault:
            faults[f"{path} {fault}"] = DAMAGED
    if sizes:
        ((usual, _),) = Counter(sizes.values()).most_common(1)
        others = {path: size for path, size in sizes.items() if size != usual}
        for path, size in others.items():
            text = f"{path} is {_by(size)}, most are {_by(usual)}"
            faults[text] = f"resize what has another size to {_by(usual)}"
    gray = kinds <= {"L", "1"}
    if faults:
        raise _refusal(faults, len(paths))
    # All of them have one size by now: nothing is unpacked that does not fit into memory.
    unpacked = len(paths) * math.prod(sizes[paths[0]]) * (1 if gray else 3) if paths else 0
    if unpacked > LARGEST:
        raise ValueError(f"its images have {unpacked} bytes when they are unpacked")
    rows = []
    for path in paths:
        try:
            with Image.open(io.BytesIO(read(path)), formats=FORMATS) as image:
                rows.append(np.asarray(image.convert("L" if gray else "RGB")))
        except OSError:
            faults[f"{path} is cut off or damaged"] = DAMAGED
    if faults:
        raise _refusal(faults, len(paths))
    pixels = np.stack(rows)
    return pixels[:, None] if gray else pixels.transpose(0, 3, 1, 2)


def _header(data: bytes) -> tuple[str, tuple[int, int]]:
    """Return the kind of pixels and the size of an image, or say what is wrong with it."""
    from PIL import Image

    try:
        # Only the header is read here: one image of absurd size must not be decoded.
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            found: tuple[str, tuple[int, int]] = (image.mode, image.size)
    except (OSError, SyntaxError, Image.DecompressionBombError):
        raise ValueError("is no image, or damaged") from None
    if found[0] not in MODES or _deep(data):
        raise Unfit("has pixels of more than 8 bits, or no RGB colors")
    return found


def _by(size: tuple[int, int]) -> str:
    return " x ".join(map(str, size))


def _refusal(faults: Mapping[str, str], count: int) -> Unfit:
    """List faults, and what to do about them."""
    text = f"{len(faults)} of {count} images are not in order ({listed(faults, 20)})"
    said = text if len(faults) > 1 else next(iter(faults))
    return Unfit("; ".join([said, *dict.fromkeys(faults.values())]))


def _deep(data: bytes) -> bool:
    """Return whether this is a PNG or PPM of 16 bits: Pillow opens such colors as if they had 8."""
    if data.startswith(b"\x89PNG"):
        return data[24] == 16
    levels = PPM.match(re.sub(rb"#.*", b"", data[:1000]))
    return levels is not None and int(levels[1]) > 255
