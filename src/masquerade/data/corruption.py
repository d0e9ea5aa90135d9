"""Fifteen corruptions of images at five severities, made from clean images.

Kinds and constants are those of CIFAR-10-C (Hendrycks and Dietterich, Benchmarking neural network
robustness to common corruptions and perturbations, ICLR 2019): what its program `make_cifar_c.py`
uses for images of 32 x 32. What is random depends on the seed, the kind and the number of the image
alone, so that a higher severity is more of the same.

Differs: frost is laid over from a drawn texture, since the photographs are not ours to ship.
Differs: motion is blurred along whole pixels as ImageMagick does it, but by our own text.
"""

import io
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from masquerade.core.random import fold, normal, uniform
from masquerade.errors import MasqueradeError, nearest

Images = npt.NDArray[np.float64]
"""[images, channels, height, width], from 0 to 1."""
Corruption = Callable[[Images, Any, Tensor], Images]

TOGETHER = 500
"""Images that are corrupted at a time, which bounds the memory it takes."""


def corrupt(
    images: Tensor, kind: str, severity: int, seed: int = 0, ids: Tensor | None = None
) -> Tensor:
    """Return images [n, channels, size, size] as a kind of corruption leaves them.

    They are bytes, or numbers from 0 to 1, and stay so; numbers come back on the levels of bytes.
    `ids` are the images' numbers, by which what is random is drawn; 0 to n-1 if not given.
    """
    if kind not in KINDS or severity not in range(1, 6):
        known = ", ".join(KINDS)
        raise MasqueradeError(
            "E201",
            f"no corruption `{kind}` of severity {severity}{nearest(kind, KINDS)}; severities are "
            f"1 to 5, kinds are {known}",
        )
    check_images(images)
    change, constants = KINDS[kind]
    numbers = torch.arange(len(images)) if ids is None else ids.cpu()
    keys = torch.as_tensor(fold(fold(seed, kind), numbers))
    result, top = torch.empty_like(images), 255 if images.dtype == torch.uint8 else 1
    for start in range(0, len(images), TOGETHER):
        part = slice(start, start + TOGETHER)
        clean = images[part].cpu().numpy().astype(np.float64) / top
        changed = change(clean, constants[severity - 1], keys[part])
        # Cut off as the published images are; the small term is for numbers just below a whole.
        levels = np.floor(np.clip(changed, 0, 1) * 255 + 1e-6)
        result[part] = torch.from_numpy(levels * top / 255)
    return result


def check_images(x: Tensor) -> None:
    """Refuse samples that are no square images of bytes or of numbers from 0 to 1."""
    square = x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] >= 4
    scaled = x.is_floating_point() and bool((x.amin() >= 0) & (x.amax() <= 1))
    if not (square and (x.dtype == torch.uint8 or scaled)):
        raise MasqueradeError(
            "E202",
            "corruptions are for images, [n, 1 or 3, size, size], of bytes or numbers from 0 to "
            f"1; these samples are {list(x.shape)} {x.dtype}".replace("torch.", ""),
        )


def uniform_noise(keys: Tensor, purpose: str, *shape: int) -> Images:
    """Draw numbers from -1 to 1, for each image its own."""
    drawn: Images = uniform(torch.as_tensor(fold(keys, purpose)), shape, torch.float64).numpy()
    return 2 * drawn - 1


def _normal(keys: Tensor, *shape: int) -> Images:
    drawn: Images = normal(keys, shape, torch.float64).numpy()
    return drawn


def _gaussian_noise(x: Images, scale: float, keys: Tensor) -> Images:
    return x + scale * _normal(keys, *x.shape[1:])


def _shot_noise(x: Images, light: float, keys: Tensor) -> Images:
    """Count photons: Poisson numbers, drawn by inverting the distribution of every gray level."""
    from scipy.special import pdtr

    drawn = (uniform_noise(keys, "shot", *x.shape[1:]) + 1) / 2
    levels = np.rint(x * 255).astype(np.int64)
    likely = np.arange(int(light + 10 * np.sqrt(light) + 20))
    every = np.arange(256)[:, None]
    # One table for all levels: that of a level lies between the level and the next one.
    table = every + pdtr(likely, every / 255 * light)
    counts = np.searchsorted(table.ravel(), levels + drawn) - levels * len(likely)
    return counts / light


def _impulse_noise(x: Images, amount: float, keys: Tensor) -> Images:
    """Turn values to black or white, half of them each."""
    drawn = uniform_noise(keys, "impulse", *x.shape[1:])
    return np.where(np.abs(drawn) < amount, drawn > 0, x)


def _blurred(
    x: Images, sigma: float, truncate: float = 4.0, mode: Literal["nearest", "reflect"] = "nearest"
) -> Images:
    from scipy.ndimage import gaussian_filter

    smooth: Images = gaussian_filter(
        x, sigma, mode=mode, truncate=truncate, axes=(x.ndim - 2, x.ndim - 1)
    )
    return smooth


def _defocus_blur(x: Images, constants: tuple[float, float], keys: Tensor) -> Images:
    """Blur every point to a small disk with soft edges."""
    from scipy.ndimage import convolve1d, correlate

    radius, softness = constants
    line = np.arange(-3, 4)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    soft = np.exp(-(np.array([-1, 0, 1]) ** 2) / (2 * softness**2))
    for axis in (0, 1):
        disk = convolve1d(disk, soft, axis=axis, mode="constant")
    blurred: Images = correlate(x, (disk / disk.sum())[None, None], mode="mirror")
    return blurred


def _glass_blur(x: Images, constants: tuple[float, int, int], keys: Tensor) -> Images:
    """Blur, put a near pixel in the place of each, and blur again."""
    sigma, reach, times = constants
    x = np.floor(_blurred(x, sigma) * 255) / 255
    count, _, height, width = x.shape
    every = np.arange(count)
    # The published program means to swap pixels, but what it makes is copies, and so do we.
    steps = np.floor(uniform_noise(keys, "glass", times, height, width, 2) * reach).astype(np.int64)
    for turn in range(times):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = steps[:, turn, row, column].T
                x[:, :, row, column] = x[every, :, row + down, column + right]
    return _blurred(x, sigma)


def _moved(x: Images, constants: tuple[int, float], angles: Images) -> Images:
    """Blur along one direction per image, in degrees; weights fall off like a Gaussian."""
    radius, sigma = constants
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    turned = np.deg2rad(angles)
    count, _, height, width = x.shape
    every = np.arange(count)[:, None, None]
    blurred = np.zeros_like(x)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down, right = (np.ceil(step * f(turned) - 0.5).astype(int) for f in (np.sin, np.cos))
        rows = np.clip(np.arange(height) + down[:, None], 0, height - 1)[:, :, None]
        columns = np.clip(np.arange(width) + right[:, None], 0, width - 1)[:, None]
        blurred += weight * x[every, :, rows, columns].transpose(0, 3, 1, 2)
    return blurred


def _motion_blur(x: Images, constants: tuple[int, float], keys: Tensor) -> Images:
    return _moved(x, constants, 45 * uniform_noise(keys, "angle"))


def _zoomed(x: Images, factor: float) -> Images:
    """Enlarge the middle of square images to their full size."""
    size = x.shape[-1]
    inside = int(np.ceil(size / factor))
    top, full = (size - inside) // 2, round(inside * factor)
    extra = (full - size) // 2
    places = top + np.linspace(0, inside - 1, full)[extra : extra + size]
    weights = np.stack([np.interp(places, np.arange(size), one) for one in np.eye(size)], axis=1)
    large: Images = weights @ x @ weights.T
    return large


def _zoom_blur(x: Images, most: float, keys: Tensor) -> Images:
    """Average the images as they come nearer, a hundredth at a time."""
    factors = np.arange(1, most, 0.01)
    total = x.copy()
    for factor in factors:
        total += _zoomed(x, factor)
    return total / (len(factors) + 1)


def _snow(x: Images, constants: tuple[float, ...], keys: Tensor) -> Images:
    """Let flakes fall, and whiten what is under them."""
    mean, std, size, least, radius, sigma, clear = constants
    flakes = mean + std * _normal(keys, 1, *x.shape[2:])
    flakes = _zoomed(flakes, size)
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1)
    flakes = _moved(flakes, (int(radius), sigma), 45 * uniform_noise(keys, "angle") - 90)
    gray = _gray(x)
    x = clear * x + (1 - clear) * np.maximum(x, gray * 1.5 + 0.5)
    return x + flakes + flakes[..., ::-1, ::-1]


def _gray(x: Images) -> Images:
    weights = np.array([0.299, 0.587, 0.114] if x.shape[1] == 3 else [1.0])
    gray: Images = np.sum(x * weights[:, None, None], axis=1, keepdims=True)
    return gray


def _plasma(keys: Tensor, size: int, decay: float) -> Images:
    """Draw a cloudy height map from 0 to 1 by halving a grid: [n, 1, size, size]."""
    side = 1 << (size - 1).bit_length()
    field = np.zeros((len(keys), side, side))
    step, height = side, 1.0
    while step > 1:
        half, cells = step // 2, side // step
        wobble = height * uniform_noise(keys, f"plasma {step}", 3, cells, cells)
        corners = field[:, ::step, ::step]
        below, right = np.roll(corners, -1, 1), np.roll(corners, -1, 2)
        middles = (corners + below + right + np.roll(below, -1, 2)) / 4 + wobble[:, 0]
        across = (corners + right + middles + np.roll(middles, 1, 1)) / 4 + wobble[:, 1]
        along = (corners + below + middles + np.roll(middles, 1, 2)) / 4 + wobble[:, 2]
        field[:, half::step, half::step] = middles
        field[:, ::step, half::step] = across
        field[:, half::step, ::step] = along
        # The published map's wobble is a product of two numbers that each decay.
        step, height = half, height / decay**2
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field[:, None, :size, :size]


def _frost(x: Images, constants: tuple[float, float], keys: Tensor) -> Images:
    """Lay ice over the image: bright ridges of a height map, a little blue."""
    clear, ice = constants
    ridges = 1 - np.abs(2 * _plasma(keys, x.shape[-1], 1.3) - 1)
    tint = np.array([0.85, 0.95, 1.0] if x.shape[1] == 3 else [0.95])[:, None, None]
    layer: Images = ice * (0.4 + 0.6 * ridges) * tint
    return clear * x + layer


def _fog(x: Images, constants: tuple[float, float], keys: Tensor) -> Images:
    thick, decay = constants
    brightest: Images = np.max(x, axis=(1, 2, 3), keepdims=True)
    return (x + thick * _plasma(keys, x.shape[-1], decay)) * brightest / (brightest + thick)


def _brightness(x: Images, more: float, keys: Tensor) -> Images:
    """Raise the value of hue, saturation and value."""
    value: Images = np.max(x, axis=1, keepdims=True)
    raised = np.minimum(value + more, 1)
    return np.where(value > 0, x * raised / np.where(value > 0, value, 1), raised)


def _contrast(x: Images, share: float, keys: Tensor) -> Images:
    mean: Images = np.mean(x, axis=(2, 3), keepdims=True)
    return (x - mean) * share + mean


def _sampled(x: Images, rows: Images, columns: Images, twice: bool) -> Images:
    """Read images at places between pixels [n, height, width].

    Borders mirror; `twice` says whether the outermost pixels are then beside themselves.
    """
    every = np.arange(len(x))[:, None, None]

    def at(row: Images, column: Images) -> Images:
        places = []
        for place, size in ((row, x.shape[2]), (column, x.shape[3])):
            period = 2 * (size - 1 + twice)
            inside = place.astype(np.int64) % period
            places.append(np.minimum(inside, period - twice - inside))
        found: Images = x[every, :, places[0], places[1]].transpose(0, 3, 1, 2)
        return found

    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top)[:, None], (columns - left)[:, None]
    upper = at(top, left) * (1 - right) + at(top, left + 1) * right
    lower = at(top + 1, left) * (1 - right) + at(top + 1, left + 1) * right
    return upper * (1 - down) + lower * down


def elastic_transform(x: Images, constants: tuple[float, ...], keys: Tensor) -> Images:
    """Pull three points aside, which moves the whole, and then every place a little."""
    size = x.shape[-1]
    strength, sigma, pull = (size * share for share in constants)
    middle, third = size // 2, size // 3
    corners = np.array([[1, 1], [1, -1], [-1, -1]]) * third + middle
    pulled = corners + pull * uniform_noise(keys, "corners", 3, 2)
    ones = np.ones((len(x), 3, 1))
    back = np.linalg.inv(np.concatenate([pulled, ones], axis=2)) @ corners
    grid = np.stack([*np.indices((size, size)), np.ones((size, size))], axis=-1)
    places = np.einsum("hwk,nkp->nphw", grid, back)
    # The published program mirrors its borders in two ways: OpenCV's, and then SciPy's.
    moved = _sampled(x, places[:, 0], places[:, 1], twice=False)
    noise = uniform_noise(keys, "shifts", 2, size, size)
    shifts = strength * _blurred(noise, sigma, truncate=3, mode="reflect")
    near = np.indices((size, size)) + shifts
    return _sampled(moved, near[:, 0], near[:, 1], twice=True)


def _each(x: Images, change: Callable[[Any], Any]) -> Images:
    """Change images one by one as Pillow's."""
    from PIL import Image

    levels = np.rint(x * 255).astype(np.uint8)
    changed = []
    for image in levels:
        flat = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        made = np.asarray(change(Image.fromarray(flat)))
        changed.append(made[None] if made.ndim == 2 else made.transpose(2, 0, 1))
    return np.stack(changed) / 255


def _pixelate(x: Images, share: float, keys: Tensor) -> Images:
    from PIL.Image import Resampling

    small = (int(x.shape[3] * share), int(x.shape[2] * share))
    full = (x.shape[3], x.shape[2])
    box = Resampling.BOX
    return _each(x, lambda image: image.resize(small, box).resize(full, box))


def _jpeg_compression(x: Images, quality: int, keys: Tensor) -> Images:
    from PIL import Image

    def change(image: Any) -> Any:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return _each(x, change)


KINDS: dict[str, tuple[Corruption, tuple[Any, ...]]] = {
    "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (
        _glass_blur,
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    ),
    "motion_blur": (_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": (
        _snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (_frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40)),
}
"""Kinds of corruption, in the paper's order: what is done, and the constants by severity."""
