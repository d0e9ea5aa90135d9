"""The summary: its schema, its rules, and clients by number or name."""

import json
from dataclasses import replace

import pytest

from masquerade.results import AVERAGED, ClientFigures, RuleFigures, Summary
from masquerade.results.json_records import Json
from masquerade.results.summary import SCHEMA
from tests.report.invented import accuracy, corrupted, novel, result, six_methods
from tests.support import raises


@pytest.mark.parametrize("summary", [corrupted("a"), *six_methods()], ids=lambda each: each.title)
def test_a_summary_is_read_as_it_was_written_with_its_schema(summary: Summary) -> None:
    text = json.dumps(summary.to_json(), allow_nan=False)
    assert json.loads(text)["schema"] == SCHEMA
    assert Summary.from_json(json.loads(text)) == summary


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (None, ("0.2",)),
        ([], ("0.2",)),
        ({"method": "fedavg", "accuracy": {}}, ("0.2",)),
        ({**result().to_json(), "schema": SCHEMA + 1}, (SCHEMA + 1, SCHEMA)),
        ({**result().to_json(), "schema": None}, ("None",)),
        ({**result().to_json(), "sede": 1}, ("Summary", "sede")),
        ({**result().to_json(), "seed": "1"}, ("Summary.seed", "'1'")),
        ({"schema": SCHEMA}, ("Summary", "accuracy, better, clients")),
        (
            {**result().to_json(), "accuracy": {"own": {"mean": 1.0}}},
            ("Summary.accuracy.own", "std"),
        ),
    ],
)
def test_another_schema_or_a_damaged_summary_is_refused(
    data: Json, named: tuple[object, ...]
) -> None:
    with raises("E401", *named):
        Summary.from_json(data)


def test_figures_of_clients_are_read_as_they_were_written_and_are_none_in_older_files() -> None:
    listed = ClientFigures(
        ids=(0, 2),
        samples=(9, 8),
        own=(80.0, None),
        tests=(3, 0),
        shift={"0": (80.0, None), "100": (40.0, 50.0), AVERAGED: (60.0, 50.0)},
        pooled={"0": (80.0, None), AVERAGED: (80.0, None)},
    )
    ruled = {"smoothed": RuleFigures(accuracy(90.0), per_client=listed)}
    summary = result(per_client=listed, rules=ruled)
    text = json.dumps(summary.to_json(), allow_nan=False)
    assert Summary.from_json(json.loads(text)) == summary
    older = json.loads(text)
    for name in ("tests", "shift", "pooled"):
        del older["per_client"][name]
    del older["rules"]["smoothed"]["per_client"]
    read = Summary.from_json(older)
    assert read.per_client == ClientFigures(ids=(0, 2), samples=(9, 8), own=(80.0, None))
    assert read.rules["smoothed"].per_client is None


def test_a_summary_under_rules_has_their_figures_and_nothing_that_is_not_theirs() -> None:
    own, further = accuracy(90.0), {"macro_f1": accuracy(70.0)}
    plain = replace(corrupted("fedavg"), global_view=accuracy())
    listed = replace(NAMED, own=(7.0, 8.0, 9.0))
    ruled = replace(plain, rules={"smoothed": RuleFigures(own, further, listed)})
    first, second = ruled.under_rules()
    assert first == plain
    assert (second.method, second.title) == ("fedavg+smoothed", "FEDAVG, smoothed")
    assert (second.accuracy, second.metrics) == (own, further)
    assert (second.costs, second.per_client) == (plain.costs, listed)
    # Curves, masks, novel clients and the shared model were measured without the rule.
    assert (second.history, second.overlap) == ((), None)
    assert (second.global_view, second.novel) == (None, None)
    # Rows are made once, however often they are asked for.
    assert [row for each in (first, second) for row in each.under_rules()] == [first, second]


NAMED = ClientFigures(ids=(0, 2, 5), samples=(1, 1, 1), own=(1.0, 2.0, 3.0), names=("a", "b", "c"))
NUMBERED = replace(NAMED, names=("2", "7", "0"))


def test_a_client_is_found_by_its_number_or_its_name() -> None:
    named, bare = result(per_client=NAMED), result(per_client=replace(NAMED, names=()))
    assert [named.place_of(who) for who in (0, 2, 5, "a", "c", "5")] == [0, 1, 2, 0, 2, 2]
    assert [bare.place_of(who) for who in (5, "5")] == [2, 2]


def test_a_text_is_a_name_and_never_a_number_where_names_are_numbers() -> None:
    summary = result(per_client=NUMBERED)
    assert [summary.place_of(who) for who in ("2", 2, "0", 0)] == [0, 1, 2, 0]
    with raises("E202", "`5`"):
        summary.place_of("5")
    kept_out = replace(novel([1.0]).clients, names=("9",))
    # A name of a novel client is a name too.
    apart = result(per_client=NAMED, novel=replace(novel([1.0]), clients=kept_out))
    with raises("E202", "`5`"):
        apart.place_of("5")


@pytest.mark.parametrize(
    ("client", "named"),
    [
        (1, ("`1`", "0, 2, 5")),
        ("bb", ("`bb`", "`b`")),
        (20, ("`20`", "0, 2, 5", "a")),
        ("20", ("`20`",)),
    ],
)
def test_a_client_without_a_model_is_refused_and_those_with_one_are_named(
    client: int | str, named: tuple[str, ...]
) -> None:
    summary = result(per_client=NAMED, novel=novel([70.0]))
    with raises("E202", *named):
        summary.place_of(client)
