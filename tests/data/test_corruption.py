"""Corruptions: fifteen kinds, worse with severity, the same for an image wherever it stands."""

import itertools

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, map_coordinates
from torch import Tensor

from masquerade.data import cache, from_arrays
from masquerade.data import corruption as module
from masquerade.data.corruption import KINDS, corrupt
from masquerade.data.readers.reading import Reading
from masquerade.data.source import published
from tests.support import raises

PUBLISHED = {
    "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
    "shot_noise": [500, 250, 100, 75, 50],
    "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
    # Radius, and blur of the disk.
    "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    # Sigma, reach, times.
    "glass_blur": [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    # Radius, sigma.
    "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    # Up to this factor, in steps of 0.01.
    "zoom_blur": [1.06, 1.11, 1.16, 1.21, 1.26],
    # Mean and deviation, zoom, threshold, radius, sigma, share of the image.
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    # Share of the image, share of the ice.
    "frost": [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
    # Thickness, decay.
    "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
    "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
    # Strength, sigma and pull, each of 32 pixels.
    "elastic_transform": [
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ],
    "pixelate": [0.95, 0.9, 0.85, 0.75, 0.65],
    "jpeg_compression": [80, 65, 58, 50, 40],
}
"""By severity, as `make_cifar_c.py` of Hendrycks and Dietterich has them, in the paper's order."""


def test_kinds_and_constants_are_the_published_ones() -> None:
    assert list(KINDS) == list(PUBLISHED)
    assert {kind: list(constants) for kind, (_, constants) in KINDS.items()} == PUBLISHED


each_kind = pytest.mark.parametrize("kind", KINDS)
LEVELS = range(1, 6)


def smooth(count: int = 40, channels: int = 3, size: int = 32) -> Tensor:
    """Waves of several directions and lengths."""
    rng = np.random.default_rng(0)
    down, right = np.indices((size, size)) / size
    shape = (count, channels, 1, 1)
    across, along, start = (rng.uniform(low, high, shape) for low, high in ((3, 9), (3, 9), (0, 6)))
    waves = 0.5 + 0.35 * np.sin(across * down + along * right + start)
    return torch.from_numpy((waves * 255).astype(np.uint8))


def pixels_apart(clean: Tensor, changed: Tensor) -> float:
    return float((clean.double() - changed.double()).pow(2).mean().sqrt())


def detail_lost(clean: Tensor, changed: Tensor) -> float:
    """One minus the share of the clean image's fine structure that is still in its place."""
    fine, left = (
        each.double().numpy() - gaussian_filter(each.double().numpy(), 1, axes=(2, 3))
        for each in (clean, changed)
    )
    return float(1 - (fine * left).sum() / (fine * fine).sum())


# By the published constants pixels do not move ever further from the clean ones in these kinds:
# stronger blur after the same shuffling comes nearer to the mean, and darker images under brighter
# ice come nearer to it in level. What they do ever more is to destroy detail.
DISTANCES = {"glass_blur": detail_lost, "frost": detail_lost}


def distances(images: Tensor, kind: str) -> list[float]:
    measure = DISTANCES.get(kind, pixels_apart)
    return [measure(images, corrupt(images, kind, level, seed=1)) for level in LEVELS]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "elastic_transform"])
def test_the_distance_from_the_clean_image_grows_with_severity(kind: str) -> None:
    found = distances(smooth(), kind)
    # Motion blur has one width at severities 3 and 4, and only its cut-off differs.
    slack = 1e-3 if kind == "motion_blur" else 0.0
    assert all(after > before - slack for before, after in itertools.pairwise(found)), found
    assert found[0] > 0


def bend(level: int) -> float:
    """Measure how far places are moved when the best straight map is taken out, in pixels."""
    ramp = torch.from_numpy(np.broadcast_to(np.arange(32) * 8, (100, 1, 32, 32)).astype(np.uint8))
    inside = slice(10, 22)
    read = corrupt(ramp, "elastic_transform", level, 1).numpy()[:, 0, inside, inside]
    rows, columns = np.mgrid[inside, inside]
    straight = np.stack([rows.ravel(), columns.ravel(), np.ones(rows.size)], axis=1)
    places = read.reshape(len(read), -1).T / 8
    rest = places - straight @ np.linalg.lstsq(straight, places, rcond=None)[0]
    return float(np.sqrt((rest**2).mean()))


def test_elastic_images_are_bent_ever_more() -> None:
    # The published constants move the whole image less, but bend it more: 1.6 to 3.2 pixels of
    # noise, smoothed over 6.4 down to 0.96 pixels. Severity 1 has no bending: rounding is left.
    found = [bend(level) for level in LEVELS]
    assert found[0] < 0.04
    assert all(after > before for before, after in itertools.pairwise(found)), found
    # Noise of standard deviation 1 / sqrt(3), smoothed over s pixels, keeps 1 / (2 sqrt(pi) s).
    expected = 0.1 * 32 / np.sqrt(3) / (2 * np.sqrt(np.pi) * 0.03 * 32)
    assert found[4] == pytest.approx(expected, rel=0.2)


def test_elastic_borders_are_those_of_the_published_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the pull of corners it is SciPy's smoothing and sampling, both of mode "reflect"."""
    noise = np.random.default_rng(3).uniform(-1, 1, (1, 2, 16, 16))
    drawn = {"corners": np.zeros((1, 3, 2)), "shifts": noise}
    monkeypatch.setattr(module, "uniform_noise", lambda keys, purpose, *shape: drawn[purpose])
    image = np.random.default_rng(4).uniform(0, 1, (1, 1, 16, 16))
    # So strong that places lie outside, by more than an image at some.
    found = module.elastic_transform(image, (5.0, 0.1, 0.05), torch.zeros(1, dtype=torch.int64))
    shifts = [
        5.0 * 16 * gaussian_filter(part, 0.1 * 16, mode="reflect", truncate=3) for part in noise[0]
    ]
    places = np.indices((16, 16)) + shifts
    assert places.min() < -16
    expected = map_coordinates(image[0, 0], places, order=1, mode="reflect")
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-9)


@each_kind
@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28)])
def test_what_is_random_depends_on_the_images_number_alone(
    kind: str, channels: int, size: int
) -> None:
    images = smooth(6, channels, size)
    whole = corrupt(images, kind, 3, seed=7)
    assert whole.shape == images.shape
    assert whole.dtype == torch.uint8
    some = torch.tensor([4, 1])
    assert torch.equal(corrupt(images[some], kind, 3, seed=7, ids=some), whole[some])


@pytest.mark.parametrize(
    "kind", ["gaussian_noise", "snow", "fog", "frost", "motion_blur", "elastic_transform"]
)
def test_another_seed_draws_anew(kind: str) -> None:
    images = smooth(2)
    assert not torch.equal(corrupt(images, kind, 3, seed=1), corrupt(images, kind, 3, seed=2))


@each_kind
def test_numbers_from_0_to_1_are_corrupted_like_bytes(kind: str) -> None:
    images = smooth(3, 1, 8)
    numbers = corrupt(images.float() / 255, kind, 4, seed=7)
    assert numbers.dtype == torch.float32
    # What is a whole level in bytes may lie just below it as a number.
    torch.testing.assert_close(
        numbers * 255, corrupt(images, kind, 4, seed=7).float(), rtol=0, atol=1.001
    )


def test_the_images_given_stay_as_they_are() -> None:
    images = smooth(2)
    before = images.clone()
    for kind in KINDS:
        corrupt(images, kind, 5)
    assert torch.equal(images, before)


def gray(level: int, count: int = 20) -> Tensor:
    return torch.full((count, 3, 32, 32), level, dtype=torch.uint8)


def test_gaussian_noise_has_the_published_width() -> None:
    noise = corrupt(gray(128), "gaussian_noise", 3).double() - 128
    # 0.08 of the range; cutting off to whole numbers takes half a level.
    assert float(noise.std()) == pytest.approx(0.08 * 255, rel=0.02)
    assert float(noise.mean()) == pytest.approx(-0.5, abs=0.3)


def test_shot_noise_counts_photons() -> None:
    # Poisson numbers of mean 128 / 255 * 100, over 100: their variance is mean / 100.
    noise = corrupt(gray(128), "shot_noise", 3).double() / 255
    mean = 128 / 255
    assert float(noise.mean()) == pytest.approx(mean, abs=0.004)
    assert float(noise.var()) == pytest.approx(mean / 100, rel=0.03)
    assert torch.equal(corrupt(gray(0), "shot_noise", 5), gray(0))


def test_impulse_noise_turns_its_share_to_black_and_white() -> None:
    noisy = corrupt(gray(128), "impulse_noise", 5)
    share = [float((noisy == level).double().mean()) for level in (0, 128, 255)]
    assert share == pytest.approx([0.035, 0.93, 0.035], abs=0.004)


def test_brightness_and_contrast_by_hand() -> None:
    # Value 100 / 255 + 0.15 is 138.25 / 255; the other channels grow by the same factor 1.3825.
    pixel = torch.tensor([100, 50, 0], dtype=torch.uint8)[None, :, None, None].expand(1, 3, 32, 32)
    assert corrupt(pixel, "brightness", 3)[0, :, 0, 0].tolist() == [138, 69, 0]
    # Half 0 and half 200 have mean 100; at 0.4 of the contrast they are 60 and 140.
    halves = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    halves[..., 16:] = 200
    assert corrupt(halves, "contrast", 3)[0, 0, 0, [0, 31]].tolist() == [60, 140]


@pytest.mark.parametrize("kind", ["defocus_blur", "motion_blur", "zoom_blur", "contrast"])
def test_a_blur_leaves_an_even_image_as_it_is(kind: str) -> None:
    for level in LEVELS:
        assert torch.equal(corrupt(gray(77, 2), kind, level), gray(77, 2))


@pytest.mark.parametrize(
    ("images", "kind", "severity", "code", "value"),
    [
        (gray(0, 1), "gausian_noise", 1, "E201", "`gaussian_noise`"),
        (gray(0, 1), "fog", 0, "E201", "0"),
        (gray(0, 1), "fog", 6, "E201", "6"),
        (gray(2, 1).float(), "fog", 1, "E202", "float32"),
        (gray(0, 1)[..., :30], "fog", 1, "E202", "[1, 3, 32, 30]"),
        (gray(0, 1)[0], "fog", 1, "E202", "[3, 32, 32]"),
    ],
)
def test_what_cannot_be_corrupted_is_refused(
    images: Tensor, kind: str, severity: int, code: str, value: str
) -> None:
    with raises(code, value):
        corrupt(images, kind, severity)


def test_published_images_are_found_by_kind_and_severity(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path))
    with raises("E301", "data fetch cifar10c"):
        published("fog", 2)
    images = smooth(20)
    blocks = tuple(f"{kind}:{level}" for kind in ("fog", "snow") for level in LEVELS)
    labels = np.arange(20) % 2
    cache.write("cifar10c", Reading(from_arrays(images, labels, classes=10), blocks=blocks))
    found = published("snow", 3)
    assert torch.equal(found.x, images[14:16])
    assert (found.y.tolist(), found.name) == ([0, 1], "cifar10c:snow:3")
    with raises("E301", "`frost:1`"):
        published("frost", 1)
