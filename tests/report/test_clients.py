"""Client by client: means over seeds, and gains with their sign."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from masquerade.report import clients, listing, markdown, rows
from masquerade.results import Baseline, ClientFigures, ClientMetric, RuleFigures, Summary
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
        console.print(listing.terminal(clients.listings(RESULTS)))
        console.print(listing.terminal(clients.difference_listings(RESULTS, "dmpfl", "fedavg")))
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
        console.print(listing.terminal(clients.listings(results)))
        console.print(listing.terminal(clients.difference_listings(results, "dmpfl", "fedavg")))
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
        clients.difference_listings(ruled, "a+smoothed", "b")
    seeds = [replace(each, seed=seed) for seed in (1, 2, 3) for each in ruled]
    assert "client by client" not in drawn(seeds, "a+smoothed", "b")
    assert clients.gains(seeds, "a+smoothed", "b")["Own data"].value == pytest.approx(10)


def drawn(results: list[Summary], left: str, right: str) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(listing.terminal(clients.difference_listings(results, left, right)))
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
        console.print(listing.terminal(clients.listings([first, other])))
    assert "seed 1" in shown.get()


def imbalanced(accuracies: dict[int, float], balanced: dict[int, float]) -> ClientFigures:
    found = listed(accuracies)
    return replace(
        found,
        tests=(20,) * len(found.ids),
        classes={"no": (15,) * len(found.ids), "yes": (5,) * len(found.ids)},
        metrics={"balanced_accuracy": ClientMetric(tuple(balanced.values()))},
    )


def hospital(lead: str) -> list[Summary]:
    """A model that finds the rare class, beside an accuracy that says the opposite."""
    rare = Baseline(
        accuracy(85.0),
        {"balanced_accuracy": accuracy(50.0)},
        imbalanced({0: 80.0, 1: 90.0}, {0: 50.0, 1: 50.0}),
    )
    found = result(
        "ditto",
        own=75.0,
        metrics={"balanced_accuracy": accuracy(75.0)},
        per_client=imbalanced({0: 70.0, 1: 80.0}, {0: 72.0, 1: 78.0}),
        majority=rare,
        lead=lead,
    )
    return [found]


def test_differences_stand_in_every_metric_and_the_one_that_leads_first() -> None:
    results = hospital("balanced_accuracy")
    found = clients.differences(results, "ditto", "majority_class")
    assert list(found) == ["balanced_accuracy", "accuracy"]
    assert found["balanced_accuracy"].clients == {0: 22.0, 1: 28.0}
    assert found["accuracy"].clients == {0: -10.0, 1: -10.0}
    first, *_ = clients.differences(hospital(""), "ditto", "majority_class")
    assert first == "accuracy"
    assert clients.difference(results, "ditto", "majority_class").clients == {0: 22.0, 1: 28.0}
    text = drawn(results, "ditto", "majority_class")
    assert "Balanced accuracy: better for 2, worse for 0 of 2 clients" in text
    assert "Accuracy: better for 0, worse for 2 of 2 clients" in text
    written = listing.markdown(clients.difference_listings(results, "ditto", "majority_class"))
    assert written.count("| +22.0 |") == 1


def test_every_metric_of_every_client_is_listed_with_its_test_samples() -> None:
    first, second = clients.listings(hospital("balanced_accuracy"))
    assert first.title.startswith("Balanced accuracy (%)")
    assert second.title.startswith("Accuracy (%)")
    assert first.headings == ["client", "test samples", "Majority class", "DITTO"]
    assert first.body[0] == ["0", "20 (15 no, 5 yes)", "50.0", "72.0"]
    assert second.body[0] == ["0", "20 (15 no, 5 yes)", "80.0", "70.0"]
    (row, *_) = (each for each in clients.records(hospital("")) if each["method"] == "ditto")
    assert (row["metric"], row["own"], row["balanced_accuracy"]) == ("accuracy", 70.0, 72.0)
    assert (row["test_samples"], row["test_samples:no"], row["test_samples:yes"]) == (20, 15, 5)
    assert json.dumps(row)


def test_metrics_without_figures_of_clients_are_not_listed() -> None:
    old = [replace(each, per_client=listed({0: 70.0})) for each in hospital("")]
    old = [replace(each, majority=None) for each in old]
    assert [each.title for each in clients.listings(old)] == [
        "Accuracy (%) of each client on its own data"
    ]
