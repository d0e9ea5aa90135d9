"""Comparisons: from Python, `mq.compare`; of a configuration, data that are loaded once."""

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import masquerade as mq
from masquerade.config import resolve as plan
from masquerade.config import toml
from masquerade.config.resolve import row_names
from masquerade.config.settings import Data
from masquerade.core import tree
from masquerade.experiments import run as experiment
from masquerade.experiments.callbacks import Callback, Run
from masquerade.methods import DMPFL, FedAvg, FedSelect, Local
from masquerade.storage.results import is_comparison, read_results
from tests.experiments.test_callbacks import Noting
from tests.experiments.test_resume import Halt, HaltAfter, problem, timeless, write_data
from tests.support import federation, network, raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app

FAST, SLOW = FedAvg(local_epochs=1, lr=0.2), FedAvg(local_epochs=1, lr=0.1)
pytestmark = pytest.mark.usefixtures("plain_pages")
ALONE = Local(local_epochs=1)


def compare(
    methods: Any, model: Any = None, callbacks: Sequence[Callback] = (), **more: Any
) -> mq.Comparison:
    """Two rounds on the toy of whatever is compared."""
    return mq.compare(
        methods,
        model or network(),
        federation(),
        2,
        batch_size=4,
        evaluate=mq.Evaluate(every=0, degrees=(0,)),
        compute=mq.Compute(engine="loop", commit_every=0.0),
        callbacks=callbacks,
        **more,
    )


def figures(found: Sequence[mq.Summary]) -> list[Any]:
    """All that is known, without what time and memory it took."""
    return [timeless(summary.to_json()) for summary in found]


def test_methods_of_a_dict_are_called_by_its_keys() -> None:
    found = compare({"quick": FAST, "by hand": SLOW, "twin": SLOW, "alone": ALONE})
    assert [(each.title, each.view) for each in found.summaries] == [
        ("quick", "global"),
        ("quick (tuned)", "tuned"),
        ("by hand", "global"),
        ("by hand (tuned)", "tuned"),
        ("twin", "global"),
        ("twin (tuned)", "tuned"),
        ("alone", "personal"),
    ]
    assert [each.method for each in found.summaries] == [each.title for each in found.summaries]
    assert [result.method for result in found.results] == [FAST, SLOW, SLOW, ALONE]


def test_a_row_of_the_table_leads_to_its_training() -> None:
    found = compare({"quick": FAST, "alone": ALONE}, seeds=(1, 2))
    assert found.result("alone").method == ALONE
    for row, view in (("quick", "global"), ("quick (tuned)", "tuned")):
        result = found.result(row, seed=2)
        assert result.models is found.results[2].models
        shown = result.client(3).summary
        assert (shown.title, shown.seed) == (row, 2)
        assert result.client(3, view="global").parts is found.results[2].client(3).parts
        assert (result.client(3).parts is found.results[2].client(3).parts) == (view == "global")
    with raises("E202", "tuned (quick (tuned))"):
        found.result("quick").client(3, view="quick (tuned)")
    for wrong in ({"row": "quik"}, {"row": "quick", "seed": 3}):
        with raises("E202", "quick"):
            found.result(**wrong)


def test_a_method_of_one_s_own_is_called_by_its_class() -> None:
    class Mine(FedAvg):
        views = ("global", "tuned")

    found = compare([Mine(local_epochs=1)])
    assert [each.title for each in found.summaries] == ["Mine", "Mine (tuned)"]
    assert repr(found).startswith("<Comparison of 1 training:")


def test_methods_of_one_class_in_a_list_are_called_by_what_is_different() -> None:
    found = compare([FAST, ALONE, SLOW])
    assert [each.title for each in found.summaries] == [
        "FedAvg, lr=0.2",
        "FedAvg+FT, lr=0.2",
        "Local",
        "FedAvg, lr=0.1",
        "FedAvg+FT, lr=0.1",
    ]
    assert [each.method for each in found.summaries] == [
        "fedavg lr=0.2",
        "fedavg_ft lr=0.2",
        "local",
        "fedavg lr=0.1",
        "fedavg_ft lr=0.1",
    ]


@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """A method that is in no table."""


@pytest.mark.parametrize(
    ("method", "names", "titles"),
    [
        (SLOW, ["fedavg", "fedavg_ft"], ["FedAvg", "FedAvg+FT"]),
        # A view that the table has no entry for.
        (
            DMPFL(first_dense=False, local_epochs=1),
            ["dmpfl", "dmpfl_plus", "dmpfl (global)"],
            ["DM-PFL", "DM-PFL+", "DM-PFL (global)"],
        ),
        (
            FedSelect(select="growth", local_epochs=1, search_epochs=1),
            ["fedselect_grow"],
            ["FedSelect, growing"],
        ),
        (Mine(local_epochs=1), ["mine", "mine (tuned)"], ["Mine", "Mine (tuned)"]),
    ],
)
def test_rows_have_one_kind_of_name_in_runs_lists_and_mappings(
    method: mq.Method, names: list[str], titles: list[str]
) -> None:
    for views in ([row_names(method, view) for view in method.views], rows(compare([method]))):
        assert [*map(list, zip(*views, strict=True))] == [names, titles]
    # A key stands for name and title of the first view, and in parentheses are the others.
    called = ["key", *(f"key ({view})" for view in method.views[1:])]
    assert rows(compare({"key": method})) == list(zip(called, called, strict=True))


def rows(found: mq.Comparison) -> list[tuple[str, str]]:
    """The name and the title of every row."""
    return [(each.method, each.title) for each in found.summaries]


def test_a_name_of_a_list_has_no_comma_that_a_difference_would_be_parted_at() -> None:
    methods = [DMPFL(first_dense=False, phases=(1, a, 1 - a), lr=a) for a in (0.25, 0.5)]
    names = [each.method for each in compare(methods).summaries]
    assert len(set(names)) == len(names) == 6
    assert not [name for name in names if "," in name]


def test_a_comparison_has_the_figures_of_its_runs_one_by_one() -> None:
    """Also of further seeds, each with a network of its own where `model` is a function."""
    begun: list[int] = []

    def model(seed: int) -> nn.Module:
        begun.append(seed)
        made = network()
        with torch.no_grad():
            for value in made.parameters():
                value.mul_(seed / 3)
        return made

    found = compare([SLOW, ALONE], model, seeds=(3, 4))
    assert begun == [3, 3, 4, 4]
    assert [each.seed for each in found.summaries] == [3, 3, 3, 4, 4, 4]
    singles = [
        mq.run(
            method,
            model(seed),
            federation(),
            2,
            batch_size=4,
            seed=seed,
            evaluate=mq.Evaluate(every=0, degrees=(0,)),
            compute=mq.Compute(engine="loop"),
        )
        for seed in (3, 4)
        for method in (SLOW, ALONE)
    ]
    assert figures(found.summaries) == figures([s for one in singles for s in one.summaries])
    for result, single in zip(found.results, singles, strict=True):
        models = tree.named(single.personal)
        assert all(torch.equal(v, models[n]) for n, v in tree.named(result.personal).items())
    # The seeds began with other weights, and did not end alike.
    assert not torch.equal(
        found.results[0].client(0).parts["params"].values["0.weight"],
        found.results[2].client(0).parts["params"].values["0.weight"],
    )


def test_a_comparison_that_is_done_is_read_and_shown_and_not_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    first = compare([SLOW, ALONE], seeds=(1, 2), out=out)
    page = (out / "report.html").read_text()
    assert all(title in page for title in ("FedAvg+FT", "Local"))
    noting = Noting()
    again = compare([SLOW, ALONE], seeds=(1, 2), out=out, callbacks=[noting])
    assert {name for name, _ in noting.events} == {"end"}
    assert figures(again.summaries) == figures(first.summaries)
    assert is_comparison(out)
    assert figures(read_results(out)) == figures(first.summaries)
    # One directory for each training, with models of its clients.
    runs = sorted(path.parent.name for path in out.glob("*/summary.json"))
    assert len(runs) == 4
    assert all(any((out / name / "clients").iterdir()) for name in runs)
    (out / "report.html").unlink()
    capsys.readouterr()
    app(["report", str(out)], standalone_mode=False)
    shown = capsys.readouterr().out
    assert all(title in shown for title in ("FedAvg", "FedAvg+FT", "Local"))
    assert (out / "report.html").is_file()


def test_a_comparison_that_was_interrupted_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = compare([SLOW, ALONE])

    class Second(HaltAfter):
        def on_round(self, run: Run, record: mq.RoundRecord) -> None:
            if run.place == 1:
                super().on_round(run, record)

    with pytest.raises(Halt):
        compare([SLOW, ALONE], out=tmp_path / "out", callbacks=[Second(1)])
    noting = Noting()
    resumed = compare([SLOW, ALONE], out=tmp_path / "out", callbacks=[noting])
    assert [event for event in noting.events if event[0] == "round"] == [("round", 2)]
    assert figures(resumed.summaries) == figures(whole.summaries)


def test_callbacks_know_how_much_of_all_trainings_is_done() -> None:
    shares: list[float] = []

    class Sharing(Callback):
        def on_round(self, run: Run, record: mq.RoundRecord) -> None:
            shares.append(run.share)

    compare([SLOW, ALONE], callbacks=[Sharing()])
    assert shares == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("methods", "seeds", "named"),
    [
        ([], (1,), ()),
        ({}, (1,), ()),
        ([SLOW], (), ()),
        ([SLOW, ALONE, replace(SLOW)], (1,), ("FedAvg(", "dict")),
    ],
)
def test_what_cannot_be_compared_is_refused(
    methods: Any, seeds: tuple[int, ...], named: tuple[str, ...], tmp_path: Path
) -> None:
    with raises("E202", *named):
        compare(methods, seeds=seeds, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_wrong_setting_of_the_last_method_is_refused_before_the_first_is_trained() -> None:
    noting = Noting()
    with raises("E201", "`method.lr`"):
        compare([ALONE, replace(SLOW, lr=-1.0)], callbacks=[noting])
    assert noting.events == []


def test_a_run_from_python_leaves_models_a_summary_and_a_page(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = mq.run(SLOW, network(), federation(), 2, batch_size=4, out=out)
    assert figures(read_results(out)) == figures(result.summaries)
    assert "FedAvg+FT" in (out / "report.html").read_text()
    models = {path.name for path in (out / "clients").iterdir()}
    assert models == {f"{id}-{view}.safetensors" for id in range(6) for view in FedAvg.views}
    assert [each["schema"] for each in json.loads((out / "summary.json").read_text())] == [2, 2]


def test_data_are_loaded_and_partitioned_once_for_all_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Data] = []
    plain = plan.federations_of

    def counted(data: Data, seeds: Sequence[int]) -> tuple[dict[int, mq.Federation], Data]:
        loaded.append(data)
        return plain(data, seeds)

    monkeypatch.setattr(plan, "federations_of", counted)
    # The budget of Local is a forecast of another method, for which data are looked at as well.
    config = problem(write_data(tmp_path / "mine.npz"), "local_flops", "fedavg", "dmpfl")
    config = replace(config, train=replace(config.train, rounds=1, seeds=(1, 2)))
    results = experiment.compare(tmp_path / "out", config)
    assert len(results) == 6
    assert len(loaded) == 1
    # So they are when it is resumed.
    for path in (tmp_path / "out").glob("*/hashes.json"):
        if re.match("fedavg|dmpfl", path.parent.name):
            path.unlink()
    again = experiment.compare(tmp_path / "out", None)
    assert len(loaded) == 2
    assert figures(again) == figures(results)


def test_a_seed_that_is_a_partition_is_found_again_in_its_run_directory(tmp_path: Path) -> None:
    config = problem(write_data(tmp_path / "mine.npz"), "fedavg")
    data = replace(config.data, partition="client", clients=4, partition_per_seed=True)
    train = replace(config.train, rounds=2, seeds=(1, 2))
    config = replace(config, data=data, train=train)
    made = plan.LoadedConfig.of(config).federations
    assert made[1].fingerprint() != made[2].fingerprint()
    results = experiment.compare(tmp_path / "out", config)
    for seed in (1, 2):
        path = tmp_path / "out" / f"fedavg-seed{seed}"
        alone = toml.load(path / "config.toml")
        (training,) = plan.trainings(alone)
        # Resuming and exporting make a run's federation of its configuration.
        assert plan.resolve(alone, training).federation.fingerprint() == made[seed].fingerprint()
        (path / "hashes.json").unlink()
        assert figures(experiment.resume(path)) == figures([results[seed - 1]])


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    compare([FAST], out=tmp_path / "both")
    with raises("E402"):
        compare([FAST, ALONE], out=tmp_path / "both")
    mq.run(FAST, network(), federation(), 1, batch_size=4, out=tmp_path / "run")
    with raises("E402"):
        compare([FAST], out=tmp_path / "run")
