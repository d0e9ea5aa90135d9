"""The sizes that `bench/wire.py` holds itself to; its speeds are measured there alone."""

import runpy
from pathlib import Path

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "wire.py"))


def test_every_size_keeps_to_its_bar() -> None:
    bars = [*BENCH["masks"](), *BENCH["messages"]()]
    assert len(bars) == 13
    assert [bar for bar in bars if not bar.holds] == []


def test_a_missed_bar_is_noticed() -> None:
    bar = BENCH["Bar"]
    assert not bar("size", 1.1, 1.0).holds
    assert not bar("speed", 199.0, 200.0, most=False).holds
    assert bar("speed", 201.0, 200.0, most=False).holds
