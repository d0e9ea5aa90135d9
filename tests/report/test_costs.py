"""Tables of costs: what stands in them, and in which units."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from masquerade.cost.bandwidth import FEDMASK, bandwidth
from masquerade.report import costs, listing, plots
from masquerade.results import Bytes, Participations, Preprocessing
from masquerade.results.costs import Parts
from tests.report.invented import costs as cost
from tests.report.invented import result, six_methods, spent


def test_times_are_those_of_both_directions_and_share_a_unit() -> None:
    # 1.2 MB down and 1.1 MB up at 1 kB/s are 2300 s, 38.33 minutes; a thirtieth in a round.
    (sent, *_) = costs.sections([result(), result("b", costs=cost(spent(0.0, 6e4)))], KB)
    assert sent.columns["min to send, in all"] == pytest.approx([2300 / 60, 1.0])
    assert sent.columns["s to send, a round"] == pytest.approx([2300 / 30, 2.0])


KB = bandwidth("1kB/s")


def test_the_papers_convention_has_shares_of_fedavg_where_it_is_there() -> None:
    (papers,) = costs.sections(six_methods(), FEDMASK, "paper")
    assert papers.columns["Papers: MB, %"] == pytest.approx([100, 100, 100, 100, 40, 40])
    (alone,) = costs.sections([result("dmpfl")], FEDMASK, "paper")
    assert list(alone.columns) == ["Papers: MB", "Papers: GFLOP"]


def test_programs_get_one_record_per_method_with_numbers() -> None:
    records = costs.records(six_methods(), FEDMASK)
    assert [record["method"] for record in records][:2] == ["local", "fedavg"]
    assert records[4]["GFLOP masked"] == 1.3
    assert json.loads(json.dumps(records)) == records


def test_what_no_result_has_is_left_out() -> None:
    bare = result(
        costs=cost(layers={}, seconds={}, memory={}), participation=Participations(0.0, 20, 20)
    )
    found = {section.title: section for section in costs.sections([bare], FEDMASK)}
    assert list(found)[:2] == ["Bytes, and the time they take", "Operations"]
    assert "s to send, a round" not in found["Bytes, and the time they take"].columns
    assert list(found["The run"].columns) == ["Rounds to 80 %"]
    assert costs.layers([bare]) == []
    assert "time" not in plots.figures([bare])


def test_tables_fit_a_terminal_and_are_markdown_too() -> None:
    stream = io.StringIO()
    Console(file=stream, width=90).print(listing.terminal(costs.listings(six_methods(), FEDMASK)))
    lines = stream.getvalue().splitlines()
    assert "…" not in stream.getvalue()
    assert max(len(line.rstrip()) for line in lines) <= 90
    text = listing.markdown(costs.listings([result(title="a|b")], FEDMASK))
    assert r"| a\|b | 1.20 | 1.10 | 8 |" in text
    assert text.count(":\n\n| Method |") == 4


def test_the_bars_of_time_are_down_up_and_computing() -> None:
    chart = plots.over_time([result()], FEDMASK)
    assert chart is not None
    # 1.2 MB and 1.1 MB at 10 MB/s, and 9 s of training for twenty clients.
    spent = {row["part"]: row["seconds"] for row in chart.spec["data"]["values"]}
    assert spent == pytest.approx({"down": 0.12, "up": 0.11, "computing": 0.45})
    assert chart.spec["encoding"]["x"]["axis"]["title"] == "Time per client (s)"


def test_parts_stand_where_a_message_has_several() -> None:
    assert "Bytes by part" not in [s.title for s in costs.sections([result()], FEDMASK)]
    several = Parts({"bits": 2e6, "params": 1e6}, {"bits": 3e6})
    found = costs.sections([result(), result("b", costs=cost(spent(parts=several)))], FEDMASK)[1]
    assert found.title == "Bytes by part"
    assert found.columns == {
        "bits down": [None, 2.0],
        "bits up": [None, 3.0],
        "params down": [None, 1.0],
    }


def test_fitting_the_preprocessing_is_told_in_a_sentence_where_it_cost_something() -> None:
    said = Preprocessing("samples are halved", Bytes(51.0, 84.0))
    free = replace(said, bytes=Bytes(0.0, 0.0))
    notes = [
        costs.sections([result(**changes)], FEDMASK)[0].note
        for changes in ({"preprocessing": said}, {"preprocessing": free}, {})
    ]
    assert "cost a client 51 bytes down and 84 up" in notes[0]
    assert notes[1] == notes[2]
    assert "preprocessing" not in notes[2]
