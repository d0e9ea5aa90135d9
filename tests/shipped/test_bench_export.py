"""The bench of exported models: it runs, writes its page, and notices a bar that is missed."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    return runpy.run_path(str(BENCH / "export.py"))


def test_the_bench_writes_a_page_of_figures_and_bars(
    bench: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "export.md"
    measured, first_seed = bench["figures"], {}

    def figures(case: Any, samples: Any, seed: int, repeats: int) -> dict[str, float | str]:
        """Measure the first seed; the second has twice its numbers."""
        if seed == 1:
            first_seed.update(measured(case, samples, seed, repeats))
            return first_seed
        return {n: v if isinstance(v, str) else 2 * v for n, v in first_seed.items()}

    monkeypatch.setitem(bench["main"].__globals__, "figures", figures)
    # Bars are not for networks on noise.
    assert bench["main"](quick=True, seeds=2, only="HAR", out=page) == 0
    lines = page.read_text().splitlines()
    rows = {cells[1].strip(): cells[2:-1] for line in lines if len(cells := line.split("|")) > 2}
    for name, (bar, way) in bench["BARS"].items():
        first, second, mean, told = rows[name]
        assert float(second) == pytest.approx(2 * float(first), rel=2e-3)
        assert float(mean) == pytest.approx((float(first) + float(second)) / 2, rel=2e-3)
        assert told.strip() == f"{way} {bar}"
    dense, sliced = (rows[f"ms of a step, {form}"][0] for form in ("dense", "sliced"))
    assert float(rows["speedup, step"][0]) == pytest.approx(float(dense) / float(sliced), rel=2e-3)


def test_a_bar_can_be_missed(bench: dict[str, Any]) -> None:
    good = {name: bar for name, (bar, _) in bench["BARS"].items()}
    assert bench["missed"](good) == []
    assert bench["missed"](good | {"speedup, batch 1": 1.49}) == ["speedup, batch 1"]
    assert bench["missed"](good | {"accuracy lost, points": 1.01}) == ["accuracy lost, points"]

    nothing = dict.fromkeys(bench["BARS"], math.nan)
    assert bench["missed"](nothing) == list(bench["BARS"])


@pytest.mark.parametrize(("lost", "status"), [(0.9, 0), (1.1, 1)])
def test_a_missed_bar_is_the_exit_status(
    bench: dict[str, Any], monkeypatch: pytest.MonkeyPatch, lost: float, status: int
) -> None:
    # What is measured, without measuring it.
    found = {name: bar for name, (bar, _) in bench["BARS"].items()}
    found["accuracy lost, points"] = lost
    inside = bench["main"].__globals__
    monkeypatch.setitem(inside, "figures", lambda *_: found)
    monkeypatch.setitem(inside, "CASES", bench["QUICK"])
    assert bench["main"](seeds=1, only="HAR") == status


def test_an_unknown_case_is_an_error(bench: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="no case begins with CIFAR10"):
        bench["main"](only="CIFAR10")


def test_every_known_sample_is_held_out_in_its_turn(bench: dict[str, Any]) -> None:
    samples = bench["QUICK"][0].samples()
    turns = [samples.held_out(seed) for seed in range(1, 5)]
    # Four folds, and each sample in one of them; a fifth seed begins anew.
    assert sum(turn.long() for turn in turns).tolist() == [1] * len(samples.known)
    assert samples.held_out(5).equal(turns[0])
    assert not set(samples.known.tolist()) & set(samples.test.tolist())
