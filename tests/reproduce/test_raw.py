"""Clients' figures lie beside a result, and all statistics can be computed from them again."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from masquerade.errors import MasqueradeError
from masquerade.reproduce import page, raw
from masquerade.reproduce.command import Order, reproduce
from masquerade.results import (
    Accuracy,
    Baseline,
    ClientFigures,
    Overlap,
    RuleFigures,
    Statistics,
    Summary,
)
from tests.report.invented import accuracy, result
from tests.reproduce.same import assert_same
from tests.reproduce.tiny import edit, lay_out, stored

CLIENTS = ClientFigures(
    ids=(3, 5, 8),
    samples=(10, 20, 30),
    own=(80.0, None, 50.0),
    names=("ada", "bea", "cyd"),
    tests=(1, 0, 3),
    shift={"0": (80.0, None, 50.0), "100": (20.0, 30.0, None)},
    pooled={},
)


def test_statistics_by_hand() -> None:
    # Of 80 and 50 the mean is 65, both are 15 from it, and 80 counts once and 50 three times:
    # (80 + 150) / 4 = 57.5.
    assert raw.describe(CLIENTS.own, CLIENTS.tests) == Statistics(65.0, 15.0, 57.5, 50.0, 2)
    assert raw.describe(CLIENTS.own, CLIENTS.tests, "lower").bottom_decile == 80.0
    # The worst tenth of twenty are two, and the third from below has 2.
    assert raw.describe(range(20), [1] * 20).bottom_decile == 2
    assert math.isnan(raw.describe([None], [0]).mean)


def given(*degrees: str) -> Accuracy:
    """Return what a summary says of figures at these degrees."""
    return replace(accuracy(), shift=dict.fromkeys(degrees, accuracy().own), pooled={})


def test_figures_are_kept_as_counts_and_come_back(tmp_path: Path) -> None:
    # Of four and five samples, the second client has none; over ten draws 13 of 40 and 27 of 50.
    counted = replace(
        CLIENTS,
        tests=(4, 0, 5),
        own=(75.0, None, 60.0),
        shift={"0": (75.0, None, 60.0), "100": (32.5, None, 54.0), "averaged": (53.75, None, 57.0)},
    )
    ruled = replace(counted, own=(25.0, None, 20.0), shift={})
    rules = {"batch": RuleFigures(given(), per_client=ruled), "none": RuleFigures(accuracy())}
    overlap = Overlap(0.5, {}, with_global={"fc.weight": (5, 6, 700)})
    summary = replace(
        result(per_client=counted),
        accuracy=given("0", "100", "averaged"),
        rules=rules,
        overlap=overlap,
    )
    path = tmp_path / "row-seed1.json"
    raw.write(path, summary)
    bare = raw.without(summary)
    assert bare.per_client is None
    found = raw.read(path, bare)
    assert found == replace(bare, per_client=counted, rules=rules, overlap=overlap)
    with np.load(raw.path_of(path), allow_pickle=False) as held:
        assert held["columns"].tolist() == ["own", "shift/100", "rules/batch/own"]
        assert held["right"].tolist() == [[3, 0, 3], [13, 0, 27], [1, 0, 1]]
        assert held["draws"].tolist() == [1, 10, 1]
        # As the head of `raw.py` says.
        with np.errstate(invalid="ignore"):
            figures = held["right"] / (held["draws"][:, None] * held["tests"]) * 100
        assert figures[1] == pytest.approx([32.5, math.nan, 54], nan_ok=True)
        assert held["right"].dtype == np.uint8
    first = raw.path_of(path).read_bytes()
    raw.write(path, summary)
    assert raw.path_of(path).read_bytes() == first


def test_figures_that_are_no_counts_are_kept_as_they_are(tmp_path: Path) -> None:
    rule = RuleFigures(given("0", "100"), per_client=replace(CLIENTS, own=(70.5, None, 60.0)))
    rules = {"own prior": rule, "none": RuleFigures(accuracy())}
    summary = replace(result(per_client=CLIENTS), accuracy=given("0", "100"), rules=rules)
    path = tmp_path / "row-seed1.json"
    raw.write(path, summary)
    found = raw.read(path, raw.without(summary))
    # By degree, what is said of a rule is what its clients' figures give.
    assert raw.without(summary).rules["own prior"].accuracy.shift == {}
    assert (found.per_client, found.rules) == (CLIENTS, raw.recompute(summary).rules)
    with np.load(raw.path_of(path), allow_pickle=False) as held:
        assert held["figures"].dtype == np.float32


def test_what_no_page_shows_is_not_kept() -> None:
    common = {"fc.weight": (5, 6)}
    overlap = Overlap(0.5, {"fc.weight": 0.5}, {"fc.weight": ((1.0, 0.5), (0.5, 1.0))}, common)
    bare = raw.without(
        replace(result(per_client=CLIENTS), majority=Baseline(accuracy()), overlap=overlap)
    )
    assert bare.majority is None
    assert bare.costs.layers == {}
    assert bare.overlap == replace(overlap, pairs={}, with_global={})


def test_a_result_without_clients_has_no_file(tmp_path: Path) -> None:
    summary = result(per_client=None)
    raw.write(tmp_path / "row.json", summary)
    assert list(tmp_path.iterdir()) == []
    assert raw.read(tmp_path / "row.json", summary) == summary


def test_damaged_clients_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    for content in (b"", b"PK", b"not an archive"):
        raw.path_of(path).write_bytes(content)
        with pytest.raises(MasqueradeError) as refused:
            raw.read(path, result())
        assert refused.value.code == "E401"


def test_a_page_can_be_computed_again_from_raw_files(tmp_path: Path) -> None:
    made = reproduce("paper/table9", Order(seeds=[1, 2], quiet=True), lay_out(tmp_path))
    results = page.done(made)
    for row, seeds in results.items():
        assert len(seeds) == 2
        for seed in seeds:
            file = made.results / f"{row}-seed{seed.seed}.json"
            assert "per_client" not in stored(file)["result"]
            assert seed.per_client is not None
            assert_same(seed, raw.recompute(seed))
    again = {row: [raw.recompute(seed) for seed in seeds] for row, seeds in results.items()}
    for row in made.figures:
        one, other = (page.ours(made.columns[0], row, each) for each in (results, again))
        assert one is not None
        assert other is not None
        assert (one.mean, one.std) == pytest.approx((other.mean, other.std), abs=1e-4)
    # A number that was changed by hand is found out.
    file = made.results / "fedprox-seed1.json"
    edit(file, '"mean": ', '"mean": 1')
    changed = made.done("fedprox")[0].result
    with pytest.raises(AssertionError):
        assert_same(changed, raw.recompute(changed))


def test_the_summary_is_otherwise_what_it_was(tmp_path: Path) -> None:
    summary = result(per_client=CLIENTS)
    again: Summary = raw.recompute(summary)
    assert replace(again, accuracy=summary.accuracy) == summary


def test_rules_on_outputs_add_figures_to_a_training_and_change_none(tmp_path: Path) -> None:
    root = lay_out(tmp_path)
    order = Order(rows=["fedavg"], quiet=True)
    before = reproduce("paper/table9", order, root).done("fedavg")
    base = root / "runs/paper/table9/base.toml"
    edit(base, "[evaluate]", '[evaluate]\nprior = ["own", "batch"]')
    made = reproduce("paper/table9", order, root)
    # What was run without rules counts as before, and the page says that it has none.
    assert made.done("fedavg") == before
    assert "## Under rules on outputs" not in page.page(made)
    made = reproduce("paper/table9", replace(order, rerun=True), root)
    (after,) = made.done("fedavg")
    assert after.result.accuracy == before[0].result.accuracy
    assert set(after.result.rules) == {"own", "batch"}
    assert_same(after.result, raw.recompute(after.result))
    text = page.page(made).partition("## Under rules on outputs")[2]
    one, several = text.split("### ")[1:3]
    assert ("| `own` |" in one, "| `batch` |" in one) == (True, False)
    assert ("| `own` |" in several, "| `batch` |" in several) == (False, True)
    shown = f"{after.result.rules['batch'].accuracy.shift['0'].mean:.2f}"
    assert f"| `batch` | 1 | {shown}" in several
    # Tries choose settings, on own data in the row's view.
    assert all(not run.config.evaluate.prior for run in made.tries("fedavg"))
