"""The arithmetic of a page, worked by hand on results that were made up."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from masquerade.config.settings import Config
from masquerade.methods import METHODS
from masquerade.reproduce import page
from masquerade.reproduce.record import Circumstances, RowRecord
from masquerade.reproduce.table import Column, Run, Table, meaning, parsed, read, settings
from masquerade.results import AVERAGED, Overlap, PaperCosts, Spent, Statistics
from tests.report.invented import costs, result, spent
from tests.reproduce.tiny import edit, lay_out
from tests.support import raises


@pytest.fixture
def table(tmp_path: Path) -> Table:
    edit(lay_out(tmp_path) / "runs/paper/table9/table.toml", "[1e-9, 0.5]", "[]")
    return read("paper/table9", tmp_path)


MADE = Circumstances(
    date="2026-01-02",
    masquerade="0",
    python="3",
    torch="2",
    numpy="2",
    device="a GPU",
    compute={"engine": "loop", "precision": "tf32"},
    at_a_time=1,
    wall_seconds=100.0,
)


def store(
    table: Table, row: str, seed: int, own: float, size: float, adapt: Spent | None = None
) -> None:
    """Write down a result that a training might have had."""
    run = table.run(row, seed)
    assert isinstance(run, Run)
    training = spent(paper=PaperCosts(size, 2.5e9))
    summary = result(row, seed, own, costs=costs(training, adapt=adapt, seconds={"training": 90.0}))
    record = RowRecord(table.name, row, MADE, summary, settings(run.config))
    write(table, run, record)


def write(table: Table, run: Run, record: RowRecord) -> None:
    table.path(run).parent.mkdir(parents=True, exist_ok=True)
    table.path(run).write_text(json.dumps(record.to_json()), encoding="utf-8")


def cells(table: Table) -> list[list[str]]:
    return page.lines(table, page.done(table))


def test_paper_ours_and_the_difference_stand_below_one_another(table: Table) -> None:
    store(table, "fedavg", 1, 61.5, 2000)
    store(table, "fedavg_ft", 1, 75.0, 2000, adapt=spent(paper=PaperCosts(500.0, 0.0)))
    assert cells(table) == [
        ["Method", "", "own", "bytes", "share"],
        ["FedAvg", "paper", "60.00 ± 8.00", "2.00", "100.00"],
        ["", "seed 1", "61.50 ± 5.00", "2.00", "100.00"],
        ["", "difference", "+1.50", "+0.00", "+0.00"],
        ["FedAvg+FT", "paper", "80.00 ± 9.00", "2.00", "100.00"],
        # What is spent before use is added where a column asks for it: 2000 + 500 bytes.
        ["", "seed 1", "75.00 ± 5.00", "2.50", "100.00"],
        ["", "difference", "-5.00 †", "+0.50", "+0.00"],
        ["FedProx", "paper", "58.00 ± 7.00", "2.00", "100.00"],
        ["", "ours", "not done", "–", "–"],
    ]


def test_where_no_paper_prints_anything_ours_stand_alone(table: Table) -> None:
    bare = replace(table, figures={"fedavg": [[], [], []], "fedprox": [[], [], []]})
    store(bare, "fedavg", 1, 61.5, 2000)
    assert cells(bare) == [
        ["Method", "", "own", "bytes", "share"],
        ["FedAvg", "seed 1", "61.50 ± 5.00", "2.00", "100.00"],
        ["FedProx", "ours", "not done", "–", "–"],
    ]
    text = page.page(bare)
    assert "paper's" not in text


def test_a_path_leads_through_names_with_dots_to_the_mean_of_some_clients() -> None:
    shared = {"fc1.weight": (4, 6, 20), "fc1.bias": (1, 1, 1)}
    summary = replace(result("dmpfl", 1, 50), overlap=Overlap(0.5, {}, with_global=shared))
    path = "overlap.with_global.fc1.weight"
    assert page.pick_of(f"{path}[0:2]")(summary) == 5
    assert page.pick_of(f"{path}[2:3]")(summary) == 20
    assert page.pick_of(f"{path}[3:5]")(summary) is None
    assert page.pick_of(f"{path}[0:2]")(result("fedavg", 1, 50)) is None
    with raises("E201", path):
        page.pick_of(path)(summary)


def test_several_seeds_have_their_mean_and_its_interval(table: Table) -> None:
    # The mean of 62 and 66 is 64, and both are 2 from it. With 64 beside them s = √((2² + 2²) / 2)
    # = 2, and half of the interval t · s / √3 = 4.303 · 2 / 1.732 = 4.97.
    store(table, "fedavg", 1, 62, 2000)
    store(table, "fedavg", 2, 66, 2000)
    assert cells(table)[2][1:3] == ["seeds 1, 2", "64.00 ± 5.00 (2.00)"]
    assert "no interval" in page.text(table)
    store(table, "fedavg", 3, 64, 2000)
    assert cells(table)[2][1:3] == ["seeds 1, 2, 3", "64.00 ± 5.00 (4.97)"]
    assert "no interval" not in page.text(table)
    assert cells(table)[3][2] == "+4.00 †"


def test_a_row_with_a_seed_that_diverged_has_no_figure_and_misses_nothing(table: Table) -> None:
    for seed in (1, 2, 3):
        store(table, "fedavg", seed, 62, 2000)
    path = table.results / "fedavg-seed2.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["result"]["diverged"] = 3
    path.write_text(json.dumps(record), encoding="utf-8")
    lost = "diverged (1 of 3)"
    assert cells(table)[2:4] == [
        ["", "seeds 1, 2, 3", lost, lost, lost],
        ["", "difference", "–", "–", "–"],
    ]
    assert page.misses(table, page.done(table)) == {}
    assert page.values(table)[0].columns["own"] == page.Cell(60, None, None, lost=True)
    assert "Diverged, so that the figures mean nothing: fedavg." in page.text(table)


def test_a_share_is_of_our_own_figures_and_needs_them(table: Table) -> None:
    store(table, "fedprox", 1, 58, 900)
    assert cells(table)[-2][-1] == "–"
    store(table, "fedavg", 1, 60, 1800)
    assert cells(table)[-2][-1] == "50.00"
    assert page.misses(table, page.done(table)) == {"fedprox": {"share": -50.0}}
    (line,) = [line for line in page.values(table) if line.row == "fedprox"]
    assert line.columns["share"] == page.Cell(paper=100, ours=50.0, difference=-50.0)


def test_a_miss_needs_a_paragraph_and_the_page_says_when_it_has_none(table: Table) -> None:
    store(table, "fedavg", 1, 56.9, 2000)
    assert page.unexplained(table, page.done(table)) == ["fedavg"]
    assert "Misses without a paragraph" in page.text(table)
    assert "### FedAvg\n\nMisses: own -3.10.\n\n*No paragraph yet.*" in page.page(table)
    notes = "# Notes\n\nIn general.\n\n## fedavg\n\nThe rate\nwas low.\n\n## fedprox\n"
    (table.results / "notes.md").write_text(notes, encoding="utf-8")
    assert table.notes() == {"fedavg": "The rate\nwas low."}
    assert page.unexplained(table, page.done(table)) == []
    assert "Misses: own -3.10.\n\nThe rate\nwas low." in page.page(table)


@pytest.mark.parametrize(
    ("kind", "chosen", "told"),
    [
        # By values only the next one is near: 0.1, and not 1.0.
        ("values = [0.01, 0.1, 1.0]", "0.01", ["FedProx 0.1 69.90 (0.01 80.00)"]),
        # Of tables also what differs in one setting, however far it stands in the list.
        (
            "trials = [{ lr = 0.01 }, { lr = 0.1 }, { lr = 0.01, mu = 1.0 }]",
            "lr=0.01",
            [
                "FedProx lr=0.1 69.90 (lr=0.01 80.00)",
                "FedProx lr=0.01,mu=1.0 diverged (lr=0.01 80.00)",
            ],
        ),
    ],
)
def test_a_collapse_beside_the_chosen_trial_is_told_and_so_is_another_precision(
    tmp_path: Path, kind: str, chosen: str, told: list[str]
) -> None:
    path = lay_out(tmp_path) / "runs/paper/table9/table.toml"
    edit(path, "values = [1e-9, 0.5]", kind)
    table = read("paper/table9", tmp_path)
    # 69.9 is 10.1 points below; what diverged is never chosen, whatever it reached.
    outcomes = [(80.0, None), (69.9, None), (99.0, 3)]
    for run, (own, diverged) in zip(table.tries("fedprox"), outcomes, strict=True):
        summary = result("fedprox", 1, own, diverged=diverged)
        made = replace(MADE, compute={"engine": "loop", "precision": "bfloat16"})
        write(table, run, RowRecord(table.name, "fedprox", made, summary, settings(run.config)))
    assert table.chosen("fedprox") == chosen
    assert page.collapses(table) == told
    assert told[0] in " ".join(page.page(table).split())
    assert "Settings were chosen with products" not in page.text(table)
    store(table, "fedprox", 1, 60, 2000)
    assert "chosen with products in bfloat16." in page.text(table)
    assert "run with products in tf32." in page.text(table)


def test_weighted_means_and_pooled_shift_stand_in_a_table_of_their_own(table: Table) -> None:
    store(table, "fedavg", 1, 61.5, 2000)
    text = page.page(table)
    # The invented weighted mean is one above, and the bottom decile nine below.
    assert "| Method | own data | weighted | bottom decile |\n" in text
    assert "| FedAvg | 61.50 ± 5.00 | 62.50 | 52.50 |\n" in text
    wide = [Column("own", ["accuracy.shift.0.mean"]), Column("40 %", ["accuracy.shift.40.mean"])]
    text = page.page(replace(table, columns=wide, figures={"fedavg": [[60.0], [50.0]]}))
    # Shifted by one client it is 61.5 − 20 · 0.4, and pooled one more.
    assert "| weighted | bottom decile | 40 %, pooled |\n" in text
    assert "| 62.50 | 52.50 | 54.50 ± 2.00 |\n" in text
    costs = replace(table, columns=table.columns[1:], figures={"fedavg": [[2.0], [100]]})
    assert "## Other means" not in page.page(costs)


def test_a_page_has_date_device_file_and_every_setting(table: Table) -> None:
    store(table, "fedavg", 1, 60, 2000)
    store(table, "fedprox", 1, 58, 2000)
    text = page.page(table)
    assert "| FedAvg | 1 | 2026-01-02 | a GPU | loop | tf32 | 2 | 1 | 1.5 |" in text
    assert "[result](paper-table9/fedavg-seed1.json)" in text
    assert "## Not done yet\n\nFedAvg+FT\n" in text
    common, _, own = text.partition("FedProx:\n\n")
    assert "train.rounds = 4\n" in common
    assert own.splitlines()[:3] == ["```", "method.mu = 0.5", "```"]


def test_what_is_done_to_samples_stands_also_with_results_older_than_the_setting(
    table: Table,
) -> None:
    store(table, "fedavg", 1, 61.5, 2000)
    path = next(table.results.glob("fedavg-seed1.json"))
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["settings"]["data"]["normalize"]
    path.write_text(json.dumps(record), encoding="utf-8")
    assert page.page(table).count("\ndata.normalize = unit\n") == 1


def test_a_path_leads_to_a_figure_with_its_standard_deviation_or_to_none() -> None:
    found = result(own=80.0, slope=20.0)
    assert page.pick_of("accuracy.own.mean")(found) == found.accuracy.own
    assert page.pick_of("accuracy.own.std")(found) == 5.0
    assert page.pick_of(f"accuracy.shift.{AVERAGED}.mean")(found) == Statistics(70.0, 7.5)
    assert page.pick_of("costs.train.bytes.both")(found) == 2.3e6
    assert page.pick_of("costs.seconds.training")(found) == 9.0
    # What a summary may have and this one has not is no figure, and no fault.
    for path in ("costs.adapt.paper.bytes", "accuracy.shift.33.mean", "novel.gap", "diverged"):
        assert page.pick_of(path)(found) is None


@pytest.mark.parametrize(
    "path",
    ["paper.bytes", "accuracy.onw.mean", "costs.train.paper.bytes.more", "costs.train", "title"],
)
def test_a_path_that_no_summary_has_is_refused(path: str) -> None:
    with raises("E201", f"`{path}`"):
        page.pick_of(path)(result())


def test_a_cell_that_the_paper_does_not_print_is_compared_with_nothing(tmp_path: Path) -> None:
    path = lay_out(tmp_path) / "runs/paper/table9/table.toml"
    edit(path, "[1e-9, 0.5]", "[]")
    edit(path, "fedavg = [[60.0, 8.0], [2.0], [100]]", "fedavg = [[], [2.0], [100]]")
    table = read("paper/table9", tmp_path)
    store(table, "fedavg", 1, 20, 2000)
    assert [row[2] for row in cells(table)[1:4]] == ["–", "20.00 ± 5.00", "–"]
    assert page.misses(table, page.done(table)) == {}
    (line,) = [line for line in page.values(table) if line.row == "fedavg"]
    assert line.columns["own"] == page.Cell(paper=None, ours=20.0, difference=None)


def test_a_difference_from_a_row_is_taken_seed_by_seed(tmp_path: Path) -> None:
    path = lay_out(tmp_path) / "runs/paper/table9/table.toml"
    edit(path, "[1e-9, 0.5]", "[]")
    edit(path, 'share_of = "fedavg"', 'difference_from = "fedavg"')
    table = read("paper/table9", tmp_path)
    store(table, "fedprox", 1, 58, 900)
    assert cells(table)[-2][-1] == "–"
    # 900 − 1000 and 1900 − 2100, whose mean is −150 and from which both are 50.
    for seed, (own, other) in enumerate([(900, 1000), (1900, 2100)], start=1):
        store(table, "fedprox", seed, 58, own)
        store(table, "fedavg", seed, 58, other)
    # A seed that the other row lacks has no difference.
    store(table, "fedprox", 3, 58, 5000)
    assert cells(table)[-2][-1] == "-150.00 (50.00)"
    assert cells(table)[2][-1] == "0.00 (0.00)"


def test_a_table_names_its_rows_and_says_what_a_reader_has_to_know(tmp_path: Path) -> None:
    path = lay_out(tmp_path) / "runs/paper/table9/table.toml"
    edit(path, 'title = "Accuracy"', 'title = "Accuracy"\nnote = "Best rounds."')
    edit(path, "[search]", '[titles]\nfedprox = "FedProx, μ = 0.5"\n[search]')
    table = read("paper/table9", tmp_path)
    assert [row[0] for row in cells(table) if row[0]] == [
        "Method",
        "FedAvg",
        "FedAvg+FT",
        "FedProx, μ = 0.5",
    ]
    assert "\n\n- Best rounds.\n- ± is" in page.page(table)


def test_settings_survive_their_file_also_where_they_are_infinite() -> None:
    for clip in (math.inf, 3.0):
        for name in METHODS:
            config = Config(methods=(name,), method={name: {"clip": clip}})
            again = parsed(json.loads(json.dumps(settings(config), allow_nan=False)))
            assert meaning(again) == meaning(config)
