"""Results as frames: every figure stands in the column that is named after it."""

import sys
from dataclasses import replace

import pytest

from masquerade.report import frames
from masquerade.report.tables import rows
from masquerade.results import Accuracy, Baseline, Statistics
from tests.report.invented import accuracy, clients, corrupted, result, six_methods
from tests.support import raises


def test_a_row_holds_the_figures_of_its_summary() -> None:
    (row,) = frames.rows([result("ditto", seed=3, own=80.0, slope=20.0)])
    expected = {"method": "ditto", "view": "personal", "seed": 3, "clients": 20, "rounds": 60}
    expected |= {"own": 80.0, "own_std": 5.0, "weighted": 81.0, "bottom_decile": 71.0}
    expected |= {"shift_0": 80.0, "shift_20": 76.0, "shift_100": 60.0, "shift_averaged": 70.0}
    expected |= {"pooled_20": 77.0, "bytes": 2.3e6, "bytes_down": 1.2e6, "bytes_up": 1.1e6}
    expected |= {"flops": 2e9, "flops_dense": 3e9, "storage": 49388.0, "seconds": 13.3}
    expected |= {"parameters": 12345, "density": 1.0, "diverged": False, "refused": 0}
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_there_is_a_row_for_every_method_view_and_seed() -> None:
    results = [*six_methods(1), *six_methods(2)]
    frame = frames.to_frame(results)
    assert list(zip(frame["method"], frame["seed"], strict=True)) == [
        (each.method, each.seed) for each in results
    ]
    assert frame.groupby("method")["own"].mean()["local"] == pytest.approx(91.3)


def test_corruption_and_novel_clients_have_columns() -> None:
    (row,) = frames.rows([corrupted("fedavg", own=80.0)])
    assert row["corruption_fog"] == 70.0
    assert row["novel"] == 71.0
    assert row["novel_gap"] == 9.0


def test_a_metric_says_how_many_clients_it_is_defined_for() -> None:
    auroc = Accuracy(Statistics(90.0, 2.0, defined=17))
    (row,) = frames.rows([result(metrics={"auroc": auroc})])
    assert (row["auroc"], row["auroc_clients"]) == (90.0, 17)


def test_the_majority_class_comes_first_and_has_no_costs() -> None:
    results = [
        result(name, seed, majority=Baseline(accuracy(55.0), {}, clients([55.0] * 20)))
        for seed in (1, 2)
        for name in "ab"
    ]
    frame = frames.to_frame(results)
    assert frame["method"].tolist() == ["majority_class"] * 2 + ["a", "b"] * 2
    assert frame["own"].tolist()[:2] == [55.0, 55.0]
    assert frame["bytes"].isna().tolist() == [True] * 2 + [False] * 4
    by_client = frames.to_frame(results, clients=True)
    assert by_client["method"].value_counts()["majority_class"] == 40
    # What the table heads is what the frame heads.
    assert frame["title"].drop_duplicates().tolist() == [row["Method"] for row in rows(results)]


def test_clients_that_answer_all_alike_are_marked() -> None:
    found = result()
    assert found.per_client is not None
    alike = replace(found, per_client=replace(found.per_client, one_class=(3, 5)))
    frame = frames.to_frame([alike], clients=True)
    assert frame[frame["one_class"]]["client"].tolist() == [3, 5]


def test_clients_have_a_row_each_and_novel_ones_are_marked() -> None:
    found = corrupted("fedavg")
    frame = frames.to_frame([found], clients=True)
    assert found.per_client is not None
    known, novel = frame[~frame["novel"]], frame[frame["novel"]]
    assert known["client"].tolist() == list(found.per_client.ids)
    assert known["own"].tolist() == list(found.per_client.own)
    assert known["shift_20"].tolist() == list(found.per_client.shift["20"])
    assert known["samples"].tolist() == list(found.per_client.samples)
    assert novel["client"].tolist() == [20, 21]
    assert novel["own"].tolist() == [70.0, 72.0]


def test_without_pandas_one_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises("E202"):
        frames.to_frame([result()])
