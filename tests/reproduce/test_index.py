"""The index and the queue: what is run, what is near, what waits and for how long."""

import json
from pathlib import Path

import pytest

from masquerade.errors import MasqueradeError
from masquerade.reproduce import index
from masquerade.reproduce.command import listing
from masquerade.reproduce.table import Table, read
from tests.reproduce.test_page import store
from tests.reproduce.tiny import edit, lay_out

PAPERS = """
[[item]]
paper = "A paper"
name = "Table 9"
title = "Accuracy"
table = "paper/table9"
worth = 2
[[item]]
paper = "A paper"
name = "Table 10"
title = "Costs"
table = "paper/table10"
worth = 1
minutes = 30
[[item]]
paper = "Another"
name = "Figure 1"
title = "Energy"
not_here = "it needs a power monitor"
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    path = lay_out(tmp_path) / "runs/paper/table9/table.toml"
    edit(path, "[1e-9, 0.5]", "[]")
    edit(path, "[figures]", "seeds = [1, 2]\nminutes = { fedavg = 2, fedprox = 1.5 }\n[figures]")
    (tmp_path / index.FILE).write_text(PAPERS, encoding="utf-8")
    return read("paper/table9", tmp_path)


def state_of(root: Path, place: int = 0) -> index.State:
    return index.states(root)[place]


def test_cells_are_counted_where_the_table_has_a_bar(table: Table, tmp_path: Path) -> None:
    # Three rows, and two columns with a bar, of which one is a share of FedAvg, whose own is none.
    assert (state_of(tmp_path).cells, state_of(tmp_path).run) == (5, 0)
    store(table, "fedavg", 1, 56.9, 2000)
    found = state_of(tmp_path)
    assert (found.run, found.within, found.explained) == (1, 0, 0)
    table.results.joinpath("notes.md").write_text("## fedavg\n\nThe rate.\n", encoding="utf-8")
    assert state_of(tmp_path).explained == 1
    # Its share is of FedAvg's, which is there.
    store(table, "fedprox", 1, 58, 2000)
    found = state_of(tmp_path)
    assert (found.run, found.within, found.explained) == (3, 2, 1)
    assert "| 3 of 5 | 2 | 1 of 1 |" in index.index_page(index.states(tmp_path))
    assert "within the bar 2, misses explained 1 of 1" in listing(tmp_path)


def test_a_table_that_is_compared_with_nothing_has_a_page_and_no_cells(
    table: Table, tmp_path: Path
) -> None:
    edit(table.folder / "table.toml", "miss = 3", "unit = 1")
    store(table, "fedavg", 1, 56.9, 2000)
    assert (state_of(tmp_path).cells, state_of(tmp_path).begun) == (0, True)
    assert "no figures to be compared with; 3 rows wait" in listing(tmp_path)
    text = index.index_page(index.states(tmp_path))
    assert "[page](paper-table9.md)" in text


def test_what_diverged_is_run_and_missed(table: Table, tmp_path: Path) -> None:
    store(table, "fedavg", 1, 60, 2000)
    path = table.results / "fedavg-seed1.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["result"]["diverged"] = 3
    path.write_text(json.dumps(record), encoding="utf-8")
    found = state_of(tmp_path)
    assert (found.run, found.within, found.explained) == (1, 0, 0)


def test_rows_wait_with_their_seeds_and_minutes(table: Table, tmp_path: Path) -> None:
    store(table, "fedprox", 1, 58, 2000)
    waiting = {each.row: each for each in state_of(tmp_path).waiting}
    assert (waiting["fedavg"].seeds, waiting["fedavg"].minutes) == ([1, 2], 4)
    assert (waiting["fedprox"].seeds, waiting["fedprox"].minutes) == ([2], 1.5)
    # Of FedAvg+FT nothing is said.
    assert waiting["fedavg_ft"].minutes is None
    text = index.queue_page(index.states(tmp_path))
    assert "| 1 | paper/table9 | fedavg | 1, 2 | 0 | 4.0 | ready |" in text
    assert "| 1 | A paper | Table 10 | Costs | 30 |" in text
    assert "takes about 36 GPU minutes" in index.summary(index.states(tmp_path))
    assert "not runnable here: it needs a power monitor" in listing(tmp_path)


def test_tries_count_by_their_rounds(table: Table, tmp_path: Path) -> None:
    edit(table.folder / "table.toml", "values = []", "values = [0.1, 0.5]")
    (first, *_) = state_of(tmp_path).waiting
    # Two seeds of two minutes, and two tries of one round in the place of four.
    assert (first.tries, first.minutes) == (2, 5)


def test_what_two_tables_share_waits_once_and_the_worthier_comes_first(
    table: Table, tmp_path: Path
) -> None:
    folder = tmp_path / "runs/paper/table10"
    folder.mkdir()
    text = (table.folder / "table.toml").read_text(encoding="utf-8")
    text = text.replace("seeds = [1, 2]", 'rows = "../table9"\nseeds = [2, 3]')
    (folder / "table.toml").write_text(text, encoding="utf-8")
    found = [(each.table[6:], each.row, each.seeds) for each in index.queue(index.states(tmp_path))]
    rows = ("fedavg", "fedavg_ft", "fedprox")
    assert found == [
        *(("table10", row, [2, 3]) for row in rows),
        *(("table9", row, [1]) for row in rows),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("worth = 2\n", ""),
        ("worth = 2\n", 'worth = 2\nnot_here = "no"\n'),
        ("minutes = 30", "minuts = 30"),
        ('title = "Energy"\n', ""),
    ],
)
def test_an_entry_that_says_too_little_or_too_much_is_refused(
    table: Table, tmp_path: Path, old: str, new: str
) -> None:
    edit(tmp_path / index.FILE, old, new)
    with pytest.raises(MasqueradeError) as refused:
        index.states(tmp_path)
    assert refused.value.code == "E201"


def test_both_files_are_written(table: Table, tmp_path: Path) -> None:
    written = index.write(tmp_path)
    assert len(written) == 2
    for path in written:
        assert path.read_text(encoding="utf-8") == index.pages(tmp_path)[path]
