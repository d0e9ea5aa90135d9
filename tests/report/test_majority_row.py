"""The row of the majority class: where it stands, and what it never has."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from masquerade.cost.bandwidth import FEDMASK
from masquerade.report import clients as by_client
from masquerade.report.costs import records
from masquerade.report.footnotes import footnotes
from masquerade.report.leads import leads
from masquerade.report.main_table import cells, markdown
from masquerade.report.page import About, page
from masquerade.report.tables import by_row, rows
from masquerade.report.terminal import terminal
from masquerade.results import Baseline, RuleFigures, Summary
from masquerade.results.lead import led, with_lead
from tests.report.invented import accuracy, clients, novel, result

pytestmark = pytest.mark.usefixtures("plain_pages")

BASE = Baseline(accuracy(99.0), {"auroc": accuracy(50.0)}, clients([99.0] * 20))


def two(**changes) -> list[Summary]:
    """Two methods, of which the second is ahead, over three seeds; the majority beats both."""
    further = {"auroc": accuracy(80.0)}
    return [
        result(name, seed, own=own + seed / 10, metrics=further, majority=BASE, **changes)
        for seed in (1, 2, 3)
        for name, own in (("a", 70.0), ("b", 90.0))
    ]


def test_it_is_the_first_row_once_and_has_no_costs() -> None:
    first, *others = rows(two())
    assert [row["Method"] for row in (first, *others)] == ["Majority class", "A", "B"]
    assert first["Own data"].startswith("99.0 ± 5.0")
    assert first["AUROC"].startswith("50.0 ± 5.0")
    assert {first[name] for name in ("MB", "GFLOP", "Density")} == {"–"}
    assert "–" not in {others[0][name] for name in ("MB", "GFLOP", "Density")}
    assert [note for note in footnotes(two()) if note.startswith("Majority class: ")]


def test_methods_that_are_not_above_it_are_named() -> None:
    def said(base: float, metric: str = "accuracy") -> str:
        about = Baseline(accuracy(base), {"auroc": accuracy(75.0)}, clients([base] * 20))
        found = led(with_lead([replace(each, majority=about) for each in two()], metric))
        (note,) = [note for note in footnotes(found) if note.startswith("Majority class: ")]
        return note

    assert "Not above it" not in said(50.0)
    assert " Not above it: A. Where classes are rare, evaluate.metrics=" in said(80.0)
    assert " Not above it: A, B. " in said(99.0)
    # In the metric that leads, here one in which both are above it.
    assert "Not above it" not in said(99.0, "auroc")


def test_it_is_never_bold_and_takes_nobodys_lead() -> None:
    _, body = cells(two())
    assert not any(cell.best for cell in body[0])
    assert leads(two())["Own data"].rows == {2}
    without = [replace(each, majority=None) for each in two()]
    assert leads(without)["Own data"].rows == {1}


def test_every_form_of_the_table_has_it() -> None:
    stream = io.StringIO()
    Console(file=stream, width=120).print(terminal(two()))
    for text in (stream.getvalue(), markdown(two()), page(two(), About("", ""))):
        assert "Majority class" in text
    assert two()[0].to_json()["majority"]["accuracy"]["own"]["mean"] == 99.0
    assert Summary.from_json(two()[0].to_json()) == two()[0]


def test_files_without_it_are_shown_without() -> None:
    plain = [replace(each, majority=None) for each in two()]
    assert "majority" not in plain[0].to_json()
    assert list(by_row(plain)) == ["a", "b"]
    assert "Majority" not in markdown(plain)
    assert not [note for note in footnotes(plain) if "Majority" in note]


def test_it_stands_above_the_methods_as_they_are_where_there_are_rules() -> None:
    ruled = [replace(each, rules={"r": RuleFigures(accuracy(60.0))}) for each in two()]
    assert [row["Method"] for row in rows(ruled)] == ["Majority class", "A", "B", "A, r", "B, r"]
    lines = markdown(ruled).splitlines()
    titles = [line.split("|")[1].strip() for line in lines if line.startswith("| *")]
    assert titles == ["*As they are*", "*Under a rule, several samples together*"]


def test_clients_are_compared_with_it_where_it_is_named() -> None:
    found = by_client.own(two())
    assert found["majority_class"] == dict.fromkeys(range(20), 99.0)
    gain = by_client.difference(two(), "b", "majority_class")
    assert gain.mean == pytest.approx(sum(found["b"].values()) / 20 - 99.0)
    assert [each["method"] for each in records(two(), FEDMASK)] == ["a", "b"]


def test_novel_clients_and_the_global_view_have_further_metrics_on_the_page() -> None:
    kept_out = replace(novel([70.0, 72.0]), metrics={"macro_f1": accuracy(41.5)})
    shared = {"macro_f1": accuracy(43.5)}
    (one, *_) = two(novel=kept_out, global_view=accuracy(88.0), global_metrics=shared)
    text = page([one], About("", ""))
    assert "<h2>Novel clients</h2>" in text
    for figure in ("41.5", "43.5"):
        assert figure in text
    assert "<h2>Novel clients</h2>" not in page(two(), About("", ""))


def test_a_metric_that_is_no_percentage_has_its_digits() -> None:
    loss = replace(accuracy(0.1234, 0.0), better="lower", percent=False)
    (row,) = rows([result(metrics={"log_loss": loss, "recall:old cat": accuracy(12.34)})])
    assert row["Log loss"] == "0.123 ± 5.000"
    assert row["Recall, old cat"] == "12.3 ± 5.0"


def test_alarms_stand_under_the_table_and_at_the_top_of_the_page() -> None:
    alarming = clients([50.0] * 20)
    results = [result(name, per_client=alarming) for name in "ab"]
    stream = io.StringIO()
    Console(file=stream, width=120).print(terminal(results))
    for text in (stream.getvalue(), markdown(results)):
        assert "W311 A and B have the same figures" in text
    shown = page(results, About("", ""))
    assert 0 < shown.index("W311 A and B") < shown.index("<h2>Results</h2>")
