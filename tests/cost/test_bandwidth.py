"""Seconds that bytes take, by hand."""

import pytest
import torch

from masquerade.cost import memory
from masquerade.cost.bandwidth import FEDMASK, bandwidth, unit
from tests.support import raises


@pytest.mark.parametrize(
    ("text", "down", "up"),
    [
        ("10MB/s", 1e7, 1e7),
        ("8Mbps", 1e6, 1e6),
        ("50Mbps:10Mbps", 6.25e6, 1.25e6),
        ("1.5 Gbit/s:500kBps", 1.875e8, 5e5),
        ("64b/s", 8, 8),
        ("8mbps", 1e6, 1e6),
    ],
)
def test_a_bandwidth_is_in_bits_or_bytes(text: str, down: float, up: float) -> None:
    found = bandwidth(text)
    assert (found.down, found.up) == (down, up)


@pytest.mark.parametrize(
    "text", ["", "10", "fast", "0Mbps", "-1Mbps", "1Mbps:", "1Mbps:2Mbps:3Mbps"]
)
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with raises("E201", "DOWN:UP"):
        bandwidth(text)


def test_directions_follow_one_another() -> None:
    # 5 MB down at 50 Mbit/s are 0.8 s, 1 MB up at 10 Mbit/s as well.
    assert bandwidth("50Mbps:10Mbps").seconds(5e6, 1e6) == pytest.approx(1.6)


def test_figure_2_of_fedmask_is_both_directions_of_2000_rounds() -> None:
    """VGG16 for ten classes, 134,301,514 float32 parameters; the paper says 59.67 hours."""
    size = 4 * 134_301_514
    assert FEDMASK.seconds(2000 * size, 2000 * size) / 3600 == pytest.approx(59.67, rel=1e-3)


def test_long_times_have_long_units() -> None:
    assert [unit(seconds)[0] for seconds in (0.1, 100, 200, 7000, 8000)] == [
        "s",
        "s",
        "min",
        "min",
        "h",
    ]


def test_the_peak_holds_what_was_held_and_is_of_this_run() -> None:
    device = torch.device("cpu")
    memory.watch(device)
    before = memory.peak(device)["process"]
    size = 64 << 20
    block = torch.ones(size, dtype=torch.uint8)
    del block
    found = memory.peak(device)
    assert found["process"] >= before + 0.9 * size
    assert memory.most(found, {"process": 1.0, "cuda": 2.0}) == found | {"cuda": 2.0}


def test_a_new_run_forgets_the_peak_of_the_last() -> None:
    if not memory.RESET.exists():
        pytest.skip("this system keeps one peak per process")
    device = torch.device("cpu")
    block = torch.ones(128 << 20, dtype=torch.uint8)
    high = memory.peak(device)["process"]
    del block
    memory.watch(device)
    assert memory.peak(device)["process"] < high - (64 << 20)
