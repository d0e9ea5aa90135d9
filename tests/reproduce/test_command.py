"""A table is listed, searched, run, resumed and written; what is done is not done twice."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from masquerade.config import resolve as plan
from masquerade.config import toml as configuration
from masquerade.errors import MasqueradeError
from masquerade.evaluation.evaluate import Evaluator
from masquerade.experiments import run as experiment
from masquerade.reproduce import page
from masquerade.reproduce import table as tables
from masquerade.reproduce.command import Order, listing, overview, reproduce, work_off
from masquerade.reproduce.jobs import group
from tests.reproduce.tiny import edit, lay_out, stored
from tests.support import raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app

NAME = "paper/table9"
QUIET = Order(quiet=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lay_out(tmp_path)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Collect the names of every training that is begun."""
    found: list[tuple[str, ...]] = []
    start = experiment.start

    def counted(config, *rest, **more):
        found.append(config.methods)
        return start(config, *rest, **more)

    monkeypatch.setattr(experiment, "start", counted)
    return found


def test_what_is_missing_is_run_once_and_views_share_their_training(
    root: Path, begun: list[tuple[str, ...]]
) -> None:
    assert [line.missing for line in overview(root)] == [["fedavg", "fedavg_ft", "fedprox"]]
    assert "rows 0 of 3, tries 0 of 6" in listing(root)
    made = reproduce(NAME, QUIET, root)
    both = ("fedavg", "fedavg_ft")
    # Two values are tried, and then the better one is run.
    assert sorted(begun) == [both] * 3 + [("fedprox",)] * 3
    assert overview(root)[0].missing == []
    assert "rows 3 of 3, tries 6 of 6" in listing(root)
    text = made.page.read_text(encoding="utf-8")
    begun.clear()
    reproduce(NAME, QUIET, root)
    assert begun == []
    assert made.page.read_text(encoding="utf-8") == text
    # What is done leaves nothing behind but its results.
    assert list((root / "out" / "reproduce").iterdir()) == []


WORTH = """
[[item]]
paper = "A paper"
name = "Table 9"
title = "Accuracy"
table = "paper/table9"
worth = 2
[[item]]
paper = "A paper"
name = "Table 8"
title = "Accuracy, more worth knowing"
table = "paper/table8"
worth = 1
"""


def test_all_that_waits_is_run_in_order_of_worth(
    root: Path, begun: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    shutil.copytree(root / "runs/paper/table9", root / "runs/paper/table8")
    edit(root / "runs/paper/table8/table.toml", "fedprox = [[58.0, 7.0], [2.0], [100]]\n", "")
    (root / "runs/papers.toml").write_text(WORTH, encoding="utf-8")
    work_off(Order(quiet=True, minutes=0.0), root)
    assert begun == []
    app(["reproduce", "--queue", "--quiet"], standalone_mode=False)
    both, prox = ("fedavg", "fedavg_ft"), ("fedprox",)
    # A table's tries come before its rows, and Table 8 has no FedProx.
    assert begun[:3] == [both] * 3
    assert sorted(begun[3:]) == [both] * 3 + [prox] * 3
    assert [line.missing for line in overview(root)] == [[], []]
    with raises("E201", "--queue"):
        app(["reproduce", NAME, "--queue"], standalone_mode=False)


def test_the_value_that_validation_prefers_is_read_from_the_record(root: Path) -> None:
    made = reproduce(NAME, Order(rows=["fedprox"], quiet=True), root)
    scores = made.scores("fedprox")
    assert scores["0.5"] > scores["1e-09"]
    assert made.chosen("fedprox") == "0.5"
    result = stored(made.results / "fedprox-seed1.json")
    assert result["settings"]["method"]["fedprox"]["lr"] == 0.5
    assert result["settings"]["method"]["fedprox"]["mu"] == 0.5
    assert not (made.results / "fedavg-seed1.json").exists()
    # Had the other value been better, the row would not be done with this one.
    path = made.results / "search" / "fedprox-1e-09.json"
    edit(path, '"mean": ', '"mean": 1')
    assert made.chosen("fedprox") == "1e-09"
    assert made.done("fedprox") == []


TRIALS = """trials = [
    { lr = 1e-9 },
    { lr = 0.5 },
    { lr = 0.5, mu = 0.1 },
    { lr = 0.5, "train.lr_decay" = 0.5 },
]
"""


def test_trials_are_tables_of_settings_the_same_for_every_row(
    root: Path, begun: list[tuple[str, ...]]
) -> None:
    path = root / "runs" / "paper" / "table9" / "table.toml"
    edit(path, 'values = [1e-9, 0.5]\nsettings = ["lr", "tune_lr"]\n', TRIALS)
    made = reproduce(NAME, Order(rows=["fedavg", "fedprox"], search=True, quiet=True), root)
    names = ["lr=1e-09", "lr=0.5", "lr=0.5,mu=0.1", "lr=0.5,train.lr_decay=0.5"]
    for row in ("fedavg", "fedprox"):
        assert list(made.scores(row)) == names
        assert (made.results / "search" / f"{row}-lr=0.5,mu=0.1.json").is_file()
    # FedAvg has no `mu`, so that two of its trials are one training.
    assert sorted(begun) == [("fedavg",)] * 3 + [("fedprox",)] * 4
    found = [made.record(run) for run in made.tries("fedprox")]
    assert [each.settings["method"]["fedprox"]["mu"] for each in found] == [0.5, 0.5, 0.1, 0.5]
    assert [each.settings["train"]["lr_decay"] for each in found] == [1.0, 1.0, 1.0, 0.5]
    assert made.scores("fedavg")["lr=0.5"] == made.scores("fedavg")["lr=0.5,mu=0.1"]
    edit(path, "lr_decay", "lr_decya")
    with pytest.raises(MasqueradeError) as refused:
        overview(root)
    assert refused.value.code == "E201"


def test_a_row_named_as_its_method_needs_no_file_and_one_that_no_paper_prints_no_figures(
    root: Path,
) -> None:
    folder = root / "runs" / "paper" / "table9"
    (folder / "fedprox.toml").unlink()
    text = (folder / "table.toml").read_text(encoding="utf-8")
    head, _, rest = text.partition("[figures]")
    names = 'figures = ["fedavg", "fedprox"]\n'
    (folder / "table.toml").write_text(head + names + rest[rest.index("[search]") :])
    found = tables.read(NAME, root)
    assert found.figures == {"fedavg": [[], [], []], "fedprox": [[], [], []]}
    assert found.tables("fedprox")["methods"] == ["fedprox"]
    assert found.tables("fedavg")["method"]["fedavg"]["tune_epochs"] == 1


def test_rows_of_another_table_under_other_settings_have_results_of_their_own(root: Path) -> None:
    folder = root / "runs" / "paper" / "table10"
    folder.mkdir()
    text = (root / "runs" / NAME / "table.toml").read_text(encoding="utf-8")
    plain, over = f'rows = "../table9"\n{text}', "[over.data]\nclients = 4\n"
    for text, results in ((plain, "paper-table9"), (plain + over, "paper-table10")):
        (folder / "table.toml").write_text(text, encoding="utf-8")
        found = tables.read("paper/table10", root)
        assert found.results.name == results
        assert found.tries("fedprox")[0].config.data.clients == (4 if over in text else 3)
    quick = tables.read("paper/table10", root, quick=True).tables("fedprox")
    assert (quick["data"]["clients"], quick["train"]["rounds"]) == (4, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("values = [1e-9, 0.5]", "values = [0.1]\ntrials = [{ lr = 0.1 }]"),
        ("values = [1e-9, 0.5]", "values = [0.1, 0.1]"),
        ('"tune_lr"', '"tune_rl"'),
        ("[search.over.data]", '[search.over.compute]\nprecision = "tf32"\n[search.over.data]'),
    ],
)
def test_a_search_that_does_not_fit_is_refused(root: Path, old: str, new: str) -> None:
    edit(root / "runs" / "paper" / "table9" / "table.toml", old, new)
    with pytest.raises(MasqueradeError) as refused:
        tables.read(NAME, root)
    assert refused.value.code == "E201"


def test_a_search_reads_no_test_sample_and_the_test_samples_stay_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federations_of = plan.federations_of
    tested = []

    def scores(spoil: str) -> dict[str, float | None]:
        def spoiled(data, seeds):
            made, resolved = federations_of(data, seeds)
            (federation,) = made.values()
            tested.append([index.tolist() for index in federation.test])
            y = federation.y.clone()
            for index in getattr(federation, spoil) if spoil else ():
                y[index] = (y[index] + 1) % 3
            return {seeds[0]: replace(federation, y=y)}, resolved

        monkeypatch.setattr(plan, "federations_of", spoiled)
        again = Order(rows=["fedprox"], search=True, rerun=True, quiet=True)
        return reproduce(NAME, again, root).scores("fedprox")

    plain = scores("")
    assert scores("test") == plain
    assert scores("validation") != plain
    reproduce(NAME, Order(rows=["fedprox"], quiet=True), root)
    assert all(each == tested[0] for each in tested)


def test_a_run_that_was_stopped_goes_on_to_the_same_figures(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reproduce(NAME, Order(rows=["fedprox"], quiet=True), root)
    expected = stored(whole.results / "fedprox-seed1.json")["result"]
    (whole.results / "fedprox-seed1.json").unlink()
    own, resumed, looks = Evaluator.on_own_data, [], []

    def stopping(*arguments):
        looks.append(1)
        if len(looks) == 2:
            raise KeyboardInterrupt
        return own(*arguments)

    monkeypatch.setattr(Evaluator, "on_own_data", stopping)
    with pytest.raises(KeyboardInterrupt):
        reproduce(NAME, Order(rows=["fedprox"], quiet=True), root)
    assert not (whole.results / "fedprox-seed1.json").exists()
    resume = experiment.resume

    def counted(*given, **more):
        resumed.append(1)
        return resume(*given, **more)

    monkeypatch.setattr(experiment, "resume", counted)
    reproduce(NAME, Order(rows=["fedprox"], quiet=True), root)
    found = stored(whole.results / "fedprox-seed1.json")["result"]
    assert resumed == [1]
    assert found["history"] == expected["history"]
    assert found["accuracy"] == expected["accuracy"]


def test_other_settings_are_another_run_also_for_what_was_stopped(root: Path) -> None:
    made = reproduce(NAME, Order(rows=["fedprox"], quiet=True), root)
    assert len(made.done("fedprox")) == 1

    def folders() -> list[Path]:
        return [job.folder for job in group(made, made.tries("fedprox"), root, 1, True)]

    before = folders()
    edit(made.folder / "fedprox.toml", "mu = 0.5", "mu = 0.25")
    assert made.done("fedprox") == []
    assert set(made.scores("fedprox").values()) == {None}
    assert not set(folders()) & set(before)
    edit(made.folder / "fedprox.toml", "mu = 0.25", "mu = 0.5\nmomentum = 0.0")
    # A default that is written out is no other setting.
    assert len(made.done("fedprox")) == 1
    assert folders() == before


def test_seeds_add_up_and_a_row_is_repeated_alone(root: Path, begun: list[tuple[str, ...]]) -> None:
    made = reproduce(NAME, Order(rows=["fedprox"], seeds=[1, 2], quiet=True), root)
    assert [each.result.seed for each in made.done("fedprox")] == [1, 2]
    before = stored(made.results / "fedprox-seed2.json")["result"]["accuracy"]
    begun.clear()
    reproduce(NAME, Order(rows=["fedprox"], seeds=[2], rerun=True, quiet=True), root)
    assert begun == [("fedprox",)]
    assert stored(made.results / "fedprox-seed2.json")["result"]["accuracy"] == before


def test_a_table_says_its_seeds_and_what_they_take(
    root: Path, begun: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = root / "runs" / "paper" / "table9" / "table.toml"
    edit(path, "[figures]", "seeds = [1, 2]\nminutes = { fedavg = 2, fedprox = 1.5 }\n[figures]")
    assert "runs 0 of 6 (2 seeds), GPU minutes left 7 of 7" in listing(root)
    edit(path, "{ fedavg = 2, fedprox = 1.5 }", "9")
    assert "GPU minutes left 9 of 9" in listing(root)
    edit(path, "minutes = 9", "minutes = { fedavg = 2, fedprox = 1.5 }")
    made = reproduce(NAME, Order(rows=["fedprox"], quiet=True), root)
    assert [each.result.seed for each in made.done("fedprox")] == [1, 2]
    assert "rows 1 of 3, tries 2 of 6, runs 2 of 6 (2 seeds), GPU minutes left 4" in listing(root)
    reproduce(NAME, Order(rows=["fedavg"], seeds=[3], quiet=True), root)
    assert [each.result.seed for each in made.done("fedavg")] == [3]
    # A seed that the table does not ask for is no reason to call a row done.
    assert overview(root)[0].missing == ["fedavg", "fedavg_ft"]
    begun.clear()
    reproduce(NAME, Order(rows=["fedprox"], quick=True, quiet=True), root)
    assert len(begun) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        app(["reproduce", "--json"], standalone_mode=False)
        (line,) = json.loads(capsys.readouterr().out)
        assert (line["runs"], line["runs_done"], line["minutes_left"]) == (6, 2, 4)
        app(["reproduce", NAME, "--show", "--json"], standalone_mode=False)
        assert [row["seeds"] for row in json.loads(capsys.readouterr().out)] == [[3], [], [1, 2]]


def test_a_seed_is_a_partition_where_the_data_say_so(root: Path) -> None:
    base = root / "runs" / "paper" / "table9" / "base.toml"
    edit(base, 'partition = "iid"', 'partition = "iid"\npartition_per_seed = true')
    order = Order(rows=["fedavg", "fedprox"], seeds=[1, 2], quiet=True)
    made = reproduce(NAME, order, root)
    first, second = made.done("fedprox")
    assert first.settings["train"]["seeds"] == [1]
    configs = [configuration.parse(each.settings) for each in (first, second)]
    prints = [plan.LoadedConfig.of(config).federations for config in configs]
    assert prints[0][1].fingerprint() != prints[1][2].fingerprint()


def test_what_is_quick_stays_apart_and_what_is_shown_runs_nothing(
    root: Path, begun: list[tuple[str, ...]]
) -> None:
    made = reproduce(NAME, Order(rows=["fedprox"], quick=True, quiet=True), root)
    assert made.page == root / "out" / "quick" / "paper-table9.md"
    assert stored(made.results / "fedprox-seed1.json")["result"]["rounds"] == 2
    text = made.page.read_text(encoding="utf-8")
    assert "--quick" in text
    # Two rounds are not the paper's four, so nothing is said to miss it.
    assert "| difference |" not in text
    assert "no differences" in text
    assert "Misses" not in text
    (line,) = (line for line in page.values(made) if line.row == "fedprox")
    assert {found.difference for found in line.columns.values()} == {None}
    assert overview(root)[0].done == []
    begun.clear()
    shown = reproduce(NAME, Order(show=True), root)
    assert begun == []
    assert "not done" in shown.page.read_text(encoding="utf-8")


def test_a_result_says_all_that_it_depends_on(root: Path) -> None:
    order = Order(rows=["fedprox"], compute=["compute.clients_per_chunk=7"], quiet=True)
    found = stored(reproduce(NAME, order, root).results / "fedprox-seed1.json")
    assert found["row"] == "fedprox"
    assert found["made"].keys() >= {"date", "masquerade", "torch", "numpy", "python", "device"}
    assert found["made"]["compute"]["clients_per_chunk"] == 7
    config = configuration.parse(found["settings"])
    assert config.data.split == (0.75, 0, 0.25)
    assert configuration.method_of("fedprox", config).lr == 0.5


@pytest.mark.parametrize(
    ("order", "named"),
    [
        (Order(rows=["fedprix"]), "`fedprox`"),
        (Order(jobs=0), "`--jobs`"),
        (Order(compute=["train.rounds=3"]), "compute.KEY=VALUE"),
        (Order(compute=["compute.clients_per_chnk=3"]), "`clients_per_chunk`"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(root: Path, order: Order, named: str) -> None:
    with raises("E201", named):
        reproduce(NAME, order, root)


def test_unknown_tables_and_damaged_results_are_refused(root: Path) -> None:
    with raises("E201", "`paper/table9`"):
        reproduce("paper/table8", QUIET, root)
    with raises("E201"):
        reproduce(NAME, QUIET, root / "runs")
    found = tables.read(NAME, root)
    path = found.path(found.tries("fedavg")[0])
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    with raises("E401"):
        page.page(found)


BLOCKED = ("vl_convert", "sklearn", "scipy", "pandas", "PIL", "pooch")
SIDE_BY_SIDE = f"""
import sys
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
sys.modules.update(dict.fromkeys({BLOCKED}))  # The other processes read this line too.
if __name__ == "__main__":
    from masquerade.cli.app import main
    main()
"""


def test_side_by_side_one_failure_stops_no_other_and_little_has_to_be_installed(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root / "runs" / "paper" / "table9"
    edit(folder / "fedavg.toml", "[method", '[data]\nname = "nowhere.npz"\n[method')
    edit(folder / "table.toml", "values = [1e-9, 0.5]", "values = [0.5]")
    script = root / "script.py"
    script.write_text(SIDE_BY_SIDE, encoding="utf-8")
    source = Path(experiment.__file__).parents[2]
    env = os.environ | {"PYTHONPATH": str(source)}
    arguments = ["--jobs", "2", "--row", "fedprox", "--row", "fedavg", "--search", "--no-page"]
    command = [sys.executable, str(script), "reproduce", "paper/table9", *arguments]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "1 of 2 trainings failed (search/fedavg-0.5)" in done.stderr
    found = stored(root / "docs/results/paper-table9/search/fedprox-0.5.json")
    assert found["made"]["at_a_time"] == 2
    # Alone, it reaches the same.
    monkeypatch.chdir(root)
    app(["reproduce", NAME, "--row", "fedprox", "--search", "--rerun"], standalone_mode=False)
    assert "Page: docs/results/paper-table9.md" in capsys.readouterr().out
    alone = stored(root / "docs/results/paper-table9/search/fedprox-0.5.json")
    assert alone["result"]["accuracy"] == found["result"]["accuracy"]
