"""Client by client: means over seeds, and gains with their sign."""

from dataclasses import replace

import pytest
from rich.console import Console

from masquerade.report import clients, markdown, rows
from masquerade.results import RuleFigures, Summary
from tests.report.invented import accuracy, corrupted, listed, novel, result
from tests.support import raises


def given(method, *seeds, better="higher"):
    """Results of a method whose clients 0, 2 and 5 have these figures, by seed."""
    return [
        result(
            method,
            seed,
            per_client=listed(dict(zip((0, 2, 5), own, strict=True))),
            better=better,
        )
        for seed, own in enumerate(seeds)
    ]


RESULTS = [
    *given("fedavg", [80.0, 60.0, 50.0], [90.0, 70.0, None]),
    *given("dmpfl", [90.0, 65.0, 40.0]),
]


def test_figures_are_means_over_the_seeds_that_have_them() -> None:
    assert clients.own(RESULTS) == {
        "fedavg": {0: 85.0, 2: 65.0, 5: 50.0},
        "dmpfl": {0: 90.0, 2: 65.0, 5: 40.0},
    }


def test_gains_are_sorted_and_counted() -> None:
    found = clients.difference(RESULTS, "dmpfl", "fedavg")
    assert list(found.clients.items()) == [(5, -10.0), (2, 0.0), (0, 5.0)]
    assert (found.better, found.worse) == (1, 1)
    assert found.mean == pytest.approx(-5 / 3)


def test_where_less_is_better_a_smaller_figure_is_a_gain() -> None:
    results = [
        *given("a", [1.0, 2.0, 3.0], better="lower"),
        *given("b", [2.0, 2.0, 2.0], better="lower"),
    ]
    assert clients.difference(results, "a", "b").clients == {0: 1.0, 2: 0.0, 5: -1.0}


def test_a_method_without_results_is_refused_with_the_nearest() -> None:
    with raises("E201", "`dmpfl`"):
        clients.difference(RESULTS, "dmplf", "fedavg")


def test_tables_show_every_client_and_who_gains() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(clients.table(RESULTS))
        console.print(clients.difference_table(RESULTS, "dmpfl", "fedavg"))
    text = capture.get()
    for shown in ("85.0", "90.0", "-10.0", "+5.0", "better for 1"):
        assert shown in text
    # Three clients and one common seed are too few for an interval.
    assert "95 %" not in text


def test_novel_clients_have_columns_of_their_own() -> None:
    plain, apart = result("fedavg"), result("dmpfl", novel=novel([70.0, 72.0], gap=9.0))
    assert "Novel clients" not in rows([plain])[0]
    (first, second) = rows([plain, apart])
    assert first["Novel clients"] == first["Gap"] == "–"
    assert second["Novel clients"].startswith("71.0")
    assert second["Gap"].startswith("9.0")
    assert "took no part in training" in markdown([apart])


def test_novel_clients_are_listed_and_marked() -> None:
    results = [corrupted("fedavg"), corrupted("dmpfl", own=90.0)]
    assert clients.novel(results) == {20, 21}
    assert clients.own(results)["dmpfl"][21] == 72.0
    found = clients.difference(results, "dmpfl", "fedavg")
    assert len(found.clients) == 22
    assert found.clients[20] == 0.0
    console = Console(width=120)
    with console.capture() as capture:
        console.print(clients.table(results))
        console.print(clients.difference_table(results, "dmpfl", "fedavg"))
    assert capture.get().count("21 (novel)") == 2
    assert "19 (novel)" not in capture.get()


def test_a_method_on_another_network_is_named() -> None:
    results = [result(name, network="cnn") for name in ("a", "b")]
    assert "another network" not in markdown(results)
    results.append(result("fedbn", title="FedBN", network="cnn_bn"))
    text = "Trained on another network than the rest (cnn): FedBN on cnn_bn."
    assert text in markdown(results)


def test_a_difference_needs_clients_of_both_methods_or_three_seeds() -> None:
    ruled = [result("a", rules={"smoothed": RuleFigures(accuracy(90.0))}), result("b")]
    assert clients.own(ruled)["a+smoothed"] == {}
    with raises("E202", "`a+smoothed`", "`b`"):
        clients.difference_table(ruled, "a+smoothed", "b")
    seeds = [replace(each, seed=seed) for seed in (1, 2, 3) for each in ruled]
    assert "client by client" not in drawn(seeds, "a+smoothed", "b")
    assert clients.gains(seeds, "a+smoothed", "b")["Own data"].value == pytest.approx(10)


def drawn(results: list[Summary], left: str, right: str) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(clients.difference_table(results, left, right))
    return capture.get()


def test_a_difference_has_a_paired_interval_and_says_what_was_paired() -> None:
    # By one seed every client is ten points better off; over three the gains are 9, 10 and 11:
    # 10 ± 4.303 · 1 / √3.
    seeds = [
        result(name, s, own=70.0 + (8 + s) * (name == "b")) for s in (1, 2, 3) for name in "ab"
    ]
    found = clients.gains(seeds, "b", "a")
    assert (found["Own data"].value, found["Own data"].half) == pytest.approx((10, 2.484), abs=1e-3)
    assert found.keys() == rows(seeds)[0].keys() - {"Method", "MB", "GFLOP", "Density"}
    assert {gain.by for gain in found.values()} == {"seeds"}
    text = drawn(seeds, "b", "a")
    assert "+7.5 to +12.5" in text
    assert "By seeds: the differences of trainings of the same seed" in text
    assert "By clients" not in text

    alone = clients.gains(seeds[2:4], "b", "a")
    assert (alone["Own data"].low, alone["Own data"].high) == pytest.approx((10, 10))
    # No client stands behind a decile.
    assert "Bottom decile" not in alone
    assert {gain.by for gain in alone.values()} == {"clients"}
    assert "nothing about other trainings or partitions" in " ".join(
        drawn(seeds[2:4], "b", "a").split()
    )


def test_where_less_is_better_a_smaller_mean_is_a_gain() -> None:
    error = {"metric": "error", "better": "lower"}
    results = [result("a", own=0.5, **error), result("b", own=0.6, **error)]
    gain = clients.gains(results, "a", "b")["Own data"]
    assert (gain.low, gain.value, gain.high) == pytest.approx((0.1, 0.1, 0.1))
    with raises("E201"):
        clients.gains(results, "a", "c")


def test_clients_of_different_partitions_are_never_averaged() -> None:
    first, second = result(seed=1, own=80.0), result(seed=2, own=60.0)
    assert clients.of_one_partition([first, second]) == [first, second]
    assert second.per_client is not None
    dealt = tuple(count + 1 for count in second.per_client.samples)
    other = replace(second, per_client=replace(second.per_client, samples=dealt))
    assert clients.of_one_partition([other, first]) == [first]
    assert clients.own([first, other]) == clients.own([first])
    console = Console(width=120)
    with console.capture() as shown:
        console.print(clients.table([first, other]))
    assert "seed 1" in shown.get()
