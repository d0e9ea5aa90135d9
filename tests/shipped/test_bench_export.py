"""The bench of exported models: it runs, and it notices a bar that is missed."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_case_of_the_bench_runs_and_its_bars_can_be_missed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = runpy.run_path(str(ROOT / "bench" / "export.py"))
    assert bench["main"](quick=True, choosing=False, seeds=1, only="HAR") == 0
    told = capsys.readouterr().out
    assert all(f"{name}:" in told for name in bench["BARS"])
    good = {name: bar for name, (bar, _) in bench["BARS"].items()}
    assert bench["missed"](good) == []
    assert bench["missed"](good | {"speedup, batch 1": 1.49}) == ["speedup, batch 1"]
    assert bench["missed"](good | {"accuracy lost": 1.01}) == ["accuracy lost"]
