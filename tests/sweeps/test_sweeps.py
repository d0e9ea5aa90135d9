"""Sweeps: what is tried, on which data, which trial is best, and what a stop leaves to do."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from masquerade.config import resolve, toml
from masquerade.config.settings import Config
from masquerade.data import Federation
from masquerade.errors import MasqueradeWarning
from masquerade.experiments import run as experiment
from masquerade.report import listing
from masquerade.results import ClientMetric, Summary
from masquerade.storage.results import is_sweep, read_results
from masquerade.sweeps import space, sweep, table
from masquerade.sweeps.choice import BEHIND, BEST, CLOSE, LOST, UNTESTED, Tried, stand
from masquerade.sweeps.objective import Objective
from masquerade.sweeps.space import Range, Values
from masquerade.sweeps.sweep import Order
from tests.experiments.test_resume import Halt, write_data
from tests.messages import Golden
from tests.report.invented import accuracy, listed, result
from tests.support import raises


def config(folder: Path, *methods: str, **method: Any) -> Config:
    """Five clients, one round."""
    data = folder / "data.npz"
    return toml.parse(
        {
            "methods": list(methods),
            "data": {"name": str(data if data.is_file() else write_data(data))},
            "train": {"model": "logistic", "rounds": 1, "seeds": [4]},
            "evaluate": {"every": 0, "degrees": [0]},
            "compute": {"engine": "loop", "commit_every": 0.0},
            "method": {"local_epochs": 1, **method},
        }
    )


def by_settings(rows: Sequence[sweep.Row]) -> dict[tuple[str, str], sweep.Row]:
    return {(row.method, space.written(row.settings)): row for row in rows}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the directory of every training."""
    done: list[str] = []
    whole = sweep.perform

    def noted(job: sweep.Job) -> None:
        done.append(job.folder.name)
        whole(job)

    monkeypatch.setattr(sweep, "perform", noted)
    return done


def test_lists_and_ranges_are_read() -> None:
    found = space.parse(
        [
            "method.lr = 0.1,1,1e-3",
            "method.similarity=logits,probabilities",
            "method.phases=[0.5,0.5],[1.0]",
            "train.available=random:0.5,always",
            "method.mu=log:0.001:0.5",
            "method.local_epochs=uniform:1:5",
        ]
    )
    assert found == {
        "method.lr": Values((0.1, 1, 1e-3)),
        "method.similarity": Values(("logits", "probabilities")),
        "method.phases": Values(([0.5, 0.5], [1.0])),
        "train.available": Values(("random:0.5", "always")),
        "method.mu": Range(0.001, 0.5, log=True),
        "method.local_epochs": Range(1, 5, log=False),
    }


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["method.lr"],
        ["method.lr="],
        ["method.lr=0.1,0.1"],
        ["method.lr=0.1", "method.lr=0.2"],
        ["method.lr=log:0:1"],
        ["method.lr=log:1"],
        ["method.lr=uniform:2:1"],
        ["method.lr=uniform:low:high"],
        # Trials of other data would not be compared on the same samples.
        ["data.clients=2,3"],
        ["evaluate.split=test,validation"],
        ["train.seeds=1,2"],
        ["lr=0.1"],
    ],
)
def test_what_cannot_be_swept_is_refused(texts: list[str]) -> None:
    with raises("E201"):
        space.parse(texts)


def test_a_grid_has_all_combinations_and_no_range() -> None:
    swept = space.parse(["method.lr=0.1,0.2", "method.mu=1,2,3"])
    found = [tuple(trial.values()) for trial in space.grid(swept)]
    assert found == [(0.1, 1), (0.1, 2), (0.1, 3), (0.2, 1), (0.2, 2), (0.2, 3)]
    with raises("E201"):
        space.grid(space.parse(["method.lr=log:0.1:1"]))


def test_every_method_gets_the_same_trials_and_each_training_is_done_once(
    tmp_path: Path, trained: list[str]
) -> None:
    over = ("method.lr=0.01,0.3", "method.mu=0.1,1.0")
    given = config(tmp_path, "fedavg", "fedavg_ft", "fedprox")
    rows = sweep.run(tmp_path / "s", given, Order(over), quiet=True)
    assert [(row.method, dict(row.settings)) for row in rows] == [
        # FedAvg has no `mu`: trials that differ in it are one.
        *((name, {"method.lr": lr}) for name in ("fedavg", "fedavg_ft") for lr in (0.01, 0.3)),
        *(
            ("fedprox", {"method.lr": lr, "method.mu": mu})
            for lr in (0.01, 0.3)
            for mu in (0.1, 1.0)
        ),
    ]
    # FedAvg's two views are of one training.
    assert len(trained) == len(set(trained)) == 2 + 4
    found = by_settings(rows)
    assert found["fedavg", "method.lr=0.3"].runs == found["fedavg_ft", "method.lr=0.3"].runs
    assert is_sweep(tmp_path / "s")
    assert sweep.read_rows(tmp_path / "s") == rows


def test_figures_are_those_of_runs_on_validation_data(tmp_path: Path) -> None:
    given = config(tmp_path, "fedavg")
    (row,) = sweep.run(tmp_path / "s", given, Order(("method.lr=0.3",), (1, 2)), quiet=True)
    means = []
    for seed in (1, 2):
        alone = replace(
            given,
            train=replace(given.train, seeds=(seed,)),
            evaluate=replace(given.evaluate, split="validation"),
            method={"lr": 0.3, "local_epochs": 1},
        )
        (summary,) = experiment.start(alone, tmp_path / f"run{seed}", models=False)
        means.append(summary.accuracy.own.mean)
    assert row.mean == sum(means) / 2
    assert row.standing == BEST


def test_no_trial_reads_a_test_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels in the test data change no figure; other labels in validation data do."""
    given, order = config(tmp_path, "fedavg"), Order(("method.lr=0.01,0.3",))
    whole = resolve.federations_of

    def figures(spoil: str) -> list[float]:
        def spoiled(data: Any, seeds: Any) -> Any:
            found, data = whole(data, seeds)
            return {seed: _spoiled(each, spoil) for seed, each in found.items()}, data

        monkeypatch.setattr(resolve, "federations_of", spoiled)
        return [row.mean for row in sweep.run(tmp_path / spoil, given, order, quiet=True)]

    untouched = figures("nothing")
    assert figures("test") == untouched
    assert figures("validation") != untouched


def _spoiled(federation: Federation, part: str) -> Federation:
    y = federation.y.clone()
    for rows in getattr(federation, part, ()):
        y[rows] = (y[rows] + 1) % 3
    return replace(federation, y=y)


def test_the_best_configuration_is_complete_and_the_configs_own(tmp_path: Path) -> None:
    given = config(tmp_path, "fedavg", "fedprox", momentum=0.5)
    # A rate of next to nothing learns nothing.
    order = Order(("method.lr=1e-9,0.3",))
    rows = sweep.run(tmp_path / "s", given, order, quiet=True)
    assert by_settings(rows)["fedavg", "method.lr=0.3"].standing == BEST
    best = toml.load(tmp_path / "s" / "best.toml")
    assert (best.train, best.evaluate) == (given.train, given.evaluate)
    # It says what "auto" is.
    assert given.data.partition == "auto"
    assert best.data == replace(given.data, partition="client", clients=5)
    for name in given.methods:
        wanted = replace(toml.method_of(name, given), lr=0.3)
        assert toml.method_of(name, best) == wanted
    head = (tmp_path / "s" / "best.toml").read_text(encoding="utf-8").split("methods =")[0]
    assert "the sweep s:" in head
    assert all(space.written(row.settings) in head for row in rows)


def test_the_best_configuration_measures_first_what_it_was_chosen_by(tmp_path: Path) -> None:
    given = config(tmp_path, "fedavg")
    measured = toml.put(toml.complete(given), {"evaluate.metrics": ["macro_f1"]})
    row = sweep.Row("fedavg", "FedAvg", {"method.lr": 0.3}, (), 80.0, None, "", BEST)
    for metric, named in (("auroc", ("auroc", "macro_f1")), ("own", ("macro_f1",))):
        order = Order(("method.lr=0.3",), metric=metric)
        text = sweep.best_config(toml.parse(measured), order, [row], "s")
        (tmp_path / "best.toml").write_text(text)
        assert toml.load(tmp_path / "best.toml").evaluate.metrics == named


def test_a_setting_of_training_is_chosen_for_one_method_alone(tmp_path: Path) -> None:
    order = Order(("train.batch_size=4,5", "data.normalize=unit,standard"))
    with raises("E202"):
        sweep.run(tmp_path / "s", config(tmp_path, "fedavg", "local"), order, quiet=True)
    assert not (tmp_path / "s").exists()
    rows = sweep.run(tmp_path / "s", config(tmp_path, "local"), order, quiet=True)
    (chosen,) = (row.settings for row in rows if row.standing == BEST)
    best = toml.load(tmp_path / "s" / "best.toml")
    assert best.train.batch_size == chosen["train.batch_size"]
    assert best.data.normalize == chosen["data.normalize"]


def test_faults_are_told_before_anything_is_trained(tmp_path: Path, trained: list[str]) -> None:
    given = config(tmp_path, "fedavg")
    no_validation = replace(given, data=replace(given.data, split=(0.8, 0.0, 0.2)))
    for wrong, order in (
        (given, Order(("method.lr=0.1,-1",))),
        (given, Order(("method.mu=0.1",))),
        (given, Order(("method.lr=uniform:-1.0:1.0",), optuna=3)),
        (given, Order(("method.lr=0.1",), metric="best")),
        (given, Order(("method.lr=0.1",), seeds=(1, 1))),
        (no_validation, Order(("method.lr=0.1",))),
    ):
        with raises("E201"):
            sweep.run(tmp_path / "s", wrong, order, quiet=True)
    assert trained == []
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("optuna", [0, 3])
def test_a_sweep_that_was_stopped_ends_as_if_it_had_not_been(
    optuna: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    over = "method.lr=log:0.001:0.5" if optuna else "method.lr=0.001,0.1,0.5"
    given, order = config(tmp_path, "fedavg"), Order((over,), optuna=optuna)
    whole = sweep.run(tmp_path / "whole", given, order, quiet=True)
    assert len(trained) == 3
    trained.clear()

    def halting(job: sweep.Job, perform: Any = sweep.perform) -> None:
        if len(trained) == 1:
            raise Halt
        perform(job)

    with monkeypatch.context() as stopped:
        stopped.setattr(sweep, "perform", halting)
        with pytest.raises(Halt):
            sweep.run(tmp_path / "s", given, order, quiet=True)
    with raises("E408"):
        sweep.read_rows(tmp_path / "s")
    assert sweep.resume(tmp_path / "s", quiet=True) == whole
    assert len(trained) == len(set(trained)) == 3
    # Nothing is left to do, also for the same command; another sweep is refused.
    assert sweep.run(tmp_path / "s", given, order, quiet=True) == whole
    assert len(trained) == 3
    with raises("E402"):
        sweep.run(tmp_path / "s", given, replace(order, seeds=(2,)), quiet=True)


def test_optuna_stays_in_the_ranges_and_gives_methods_as_many_trials(
    tmp_path: Path, trained: list[str]
) -> None:
    over = ("method.lr=log:0.001:0.5", "method.local_epochs=uniform:1:3", "method.mu=0.1,1.0")
    given = config(tmp_path, "fedavg", "fedprox")
    rows = sweep.run(tmp_path / "s", given, Order(over, optuna=2), quiet=True)
    assert [row.method for row in rows] == ["fedavg"] * 2 + ["fedprox"] * 2
    for row in rows:
        lr, epochs = row.settings["method.lr"], row.settings["method.local_epochs"]
        assert isinstance(lr, float)
        assert 0.001 <= lr <= 0.5
        assert epochs in (1, 2, 3)
        assert (row.settings.get("method.mu") in (0.1, 1.0)) == (row.method == "fedprox")
    assert [row.standing for row in rows].count(BEST) == 2
    assert len(trained) == 4


def tried(method: str, lr: float, seeds: Sequence[Summary]) -> Tried:
    return Tried(method, {"method.lr": lr}, (f"trials/{lr}",), seeds)


def seeds(*own: float, **changes: Any) -> list[Summary]:
    """Invent a summary for each figure on own data."""
    return [
        result("fedavg", seed=seed, accuracy=accuracy(value), **changes)
        for seed, value in enumerate(own, 1)
    ]


def test_trials_are_told_apart_by_paired_differences() -> None:
    # Seeds differ by 20 points; what counts is that the second is behind by about 2 in each.
    rows = stand(
        [
            tried("fedavg", 0.1, seeds(60.0, 70.0, 80.0)),
            tried("fedavg", 0.2, seeds(57.9, 68.0, 78.1)),
            tried("fedavg", 0.3, seeds(64.0, 67.0, 78.5)),
        ],
        Objective(),
    )
    assert [row.standing for row in rows] == [BEST, BEHIND, CLOSE]
    # Differences 2.1, 2.0 and 1.9: mean 2, deviation 0.1, and t is 4.303 for two degrees.
    ahead = rows[1].difference
    assert ahead is not None
    assert (ahead.value, ahead.half) == pytest.approx((2.0, 4.30265 * 0.1 / math.sqrt(3)))


def test_equal_trials_are_not_separated_and_the_first_is_best() -> None:
    rows = stand([tried("fedavg", lr, seeds(60.0, 70.0)) for lr in (0.1, 0.2)], Objective())
    assert [row.standing for row in rows] == [BEST, CLOSE]


def test_a_further_metric_is_paired_by_its_clients() -> None:
    def trial(lr: float, own: float) -> Tried:
        (found,) = seeds(70.0, metrics={"balanced_accuracy": accuracy(own)})
        values = tuple(own + id % 3 for id in range(20))
        figures = replace(found.per_client, metrics={"balanced_accuracy": ClientMetric(values)})
        return tried("fedavg", lr, [replace(found, per_client=figures)])

    rows = stand([trial(0.1, 80.0), trial(0.2, 52.0)], Objective("balanced_accuracy"))
    assert [row.standing for row in rows] == [BEST, BEHIND]
    assert rows[1].difference is not None
    assert (rows[1].difference.value, rows[1].difference.by) == (28.0, "clients")
    # By accuracy, which is the same for both, they are not told apart.
    equal = stand([trial(0.1, 80.0), trial(0.2, 52.0)], Objective())
    assert [row.standing for row in equal] == [BEST, CLOSE]


def test_too_few_seeds_and_clients_are_said_to_be_no_test() -> None:
    few = [[replace(each, per_client=None) for each in seeds(own)] for own in (80.0, 52.0)]
    rows = stand([tried("fedavg", lr, each) for lr, each in enumerate(few)], Objective())
    assert [row.standing for row in rows] == [BEST, UNTESTED]
    assert rows[1].behind == 28.0
    assert table.cells(rows)[1][3:] == ["28.00", UNTESTED]
    assert "Cannot be tested" in listing.markdown([table.listing(rows, "own")])


def test_a_trial_that_diverged_is_never_best() -> None:
    high = [*seeds(99.0), *(replace(each, seed=2, diverged=3) for each in seeds(99.0))]
    rows = stand([tried("fedavg", 0.1, high), tried("fedavg", 0.2, seeds(1.0, 2.0))], Objective())
    assert [row.standing for row in rows] == [LOST, BEST]
    assert math.isnan(rows[0].mean)


def test_where_lower_is_better_the_lowest_is_best() -> None:
    trials = [seeds(own, better="lower") for own in (3.0, 2.0)]
    rows = stand([tried("fedavg", lr, each) for lr, each in enumerate(trials)], Objective())
    assert rows[1].standing == BEST


def test_the_metric_decides_what_is_best() -> None:
    first = [replace(each, per_client=listed({0: 1.0})) for each in seeds(80.0)]
    (other,) = seeds(70.0)
    other = replace(other, accuracy=accuracy(70.0, slope=0.0))
    trials = [tried("fedavg", 0.1, first), tried("fedavg", 0.2, [other])]
    # Over all shifts the first has 80 - 20 / 2 = 70 and the other 70: it is the first of equals.
    for metric, best in (("own", 0), ("own_bottom_decile", 0), ("pooled_shift", 0)):
        standings = [row.standing for row in stand(trials, Objective(metric))]
        assert standings.index(BEST) == best
    steeper = [replace(each, accuracy=accuracy(80.0, slope=30.0)) for each in first]
    trials = [tried("fedavg", 0.1, steeper), tried("fedavg", 0.2, [other])]
    assert [row.standing for row in stand(trials, Objective("shift"))].index(BEST) == 1


def test_where_all_trials_diverge_none_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def diverged(folder: Path) -> list[Summary]:
        return [replace(each, diverged=0) for each in read_results(folder)]

    monkeypatch.setattr(sweep, "read_results", diverged)
    with raises("E208") as refusal:
        sweep.run(tmp_path / "s", config(tmp_path, "fedavg"), Order(("method.lr=0.1",)), quiet=True)
    golden(refusal.value)
    assert not (tmp_path / "s" / "best.toml").exists()
    # The table can be seen all the same.
    assert [row.standing for row in sweep.read_rows(tmp_path / "s")] == [LOST]


def test_the_table_says_what_is_best_and_what_is_not_separated() -> None:
    rows = stand(
        [
            tried("fedavg", 0.1, seeds(60.0, 70.0, 80.0)),
            tried("fedavg", 0.2, seeds(57.9, 68.0, 78.1)),
            tried("fedavg", 0.3, [replace(each, diverged=1) for each in seeds(1.0, 1.0, 1.0)]),
        ],
        Objective(),
    )
    texts = table.cells(rows)
    assert [line[1] for line in texts] == ["method.lr=0.1", "method.lr=0.2", "method.lr=0.3"]
    assert [line[2].split(" ")[0] for line in texts] == ["70.00", "68.00", LOST]
    assert texts[1][3] == "2.00 (1.75 … 2.25)"
    assert [line[4] for line in texts] == [BEST, "", ""]
    assert [
        line in listing.markdown([table.listing(rows, "own")]) for line in ("68.00", "95 %")
    ] == [True, True]


def test_what_is_alarming_is_said_of_the_best_trial_alone(tmp_path: Path) -> None:
    # Samples that are all alike get one answer, whatever is trained.
    client = np.repeat(np.arange(5), 20)
    x, y = np.zeros((100, 4), dtype=np.float32), np.arange(100) % 3
    np.savez(tmp_path / "data.npz", x=x, y=y, client=client)
    order = Order(("method.lr=0.1,0.2",))
    with pytest.warns(MasqueradeWarning) as heard:
        sweep.run(tmp_path / "out", config(tmp_path, "fedavg"), order, quiet=True)
    assert [str(each.message)[:4] for each in heard] == ["W310"]
