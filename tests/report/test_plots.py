"""Figures: what they draw of results, and that they draw it alike everywhere."""

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from masquerade.report import client_plots, mask_plots, plots
from masquerade.report.charts import WIDTH, Chart
from masquerade.report.plots import figures
from masquerade.report.render import svg
from masquerade.results import Accuracy, Statistics, Summary
from masquerade.results.lead import led, with_lead
from tests.report.invented import (
    accuracy,
    clients,
    corrupted,
    costs,
    curve,
    listed,
    novel,
    result,
    six_methods,
    spent,
)


def rows(chart: Chart | None, layer: int | None = None) -> list[dict[str, Any]]:
    """Return the rows that a figure, or a layer of it, is drawn from."""
    assert chart is not None
    of = chart.spec if layer is None else chart.spec["layer"][layer]
    found: list[dict[str, Any]] = of["data"]["values"]
    return found


def texts(drawn: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(drawn).iter() if "text" in node.tag]


def sent(method: str, size: float, own: float = 80.0) -> Summary:
    points = curve({1: own - 10, 2: own})
    history = [replace(point, down=size * point.round, up=0.0) for point in points]
    return result(method, own=own, costs=costs(spent(size, 0.0)), history=tuple(history))


@pytest.fixture(scope="module")
def six() -> dict[str, Chart]:
    """Return the figures of six invented methods."""
    return figures(six_methods())


def test_every_figure_is_drawn_and_names_its_methods(six: dict[str, Chart]) -> None:
    assert list(six) == [
        *("rounds", "traffic", "operations", "time", "clients", "gains", "shift", "pooled"),
    ]
    for name, chart in six.items():
        drawn = svg(chart.alone(title=True), chart.title)
        words = texts(drawn)
        assert chart.title in words
        # Gains are those over the first method; a figure has a legend, or rows with names.
        assert {entry.title for entry in six_methods()[name == "gains" :]} <= set(words)
        assert "currentColor" in drawn
        assert not [word for word in words if "NaN" in word or "undefined" in word]


def test_methods_are_named_once_and_a_legend_is_no_wider_than_its_figure() -> None:
    many = [result(f"method{place}", title=f"A long method {place}") for place in range(9)]
    for name, chart in figures(many, only=("rounds", "time", "clients", "shift")).items():
        drawn = svg(chart.alone(), name)
        assert len([word for word in texts(drawn) if word.startswith("A long method")]) == 9
        legends = re.findall(r'role-legend".*?d="M0,0h(\d+)', drawn)
        assert len(legends) == (name != "clients")
        assert all(float(width) < WIDTH for width in legends)
        # A band is faint, and the method that it belongs to is not.
        symbols = re.findall(r'role-legend-symbol".*? opacity="([^"]+)"', drawn)
        assert name == "time" or set(symbols) <= {"1"}


def test_figures_are_always_the_same(six: dict[str, Chart]) -> None:
    assert figures(six_methods()) == six
    chart = six["shift"]
    assert svg(chart.alone(), "a") == svg(chart.alone(), "a")


def test_figures_of_one_page_have_no_ids_that_could_be_alike(six: dict[str, Chart]) -> None:
    for name, chart in six.items():
        assert not re.search(r'\bid="|url\(#', svg(chart.alone(), name))


def test_what_a_page_is_sent_is_json_without_a_number_that_is_none(six: dict[str, Chart]) -> None:
    lost = result("lost", own=math.nan, history=curve({1: math.nan, 2: math.nan}))
    for chart in (*six.values(), *figures([result("a"), lost]).values()):
        assert json.loads(json.dumps(chart.on_page(), allow_nan=False))["width"] == "container"


def test_a_figure_without_data_is_left_out() -> None:
    bare = result(
        accuracy=Accuracy(Statistics(80.0, 5.0)),
        costs=costs(spent(math.nan, math.nan)),
        history=(),
        per_client=None,
    )
    assert figures([bare]) == {}


def test_one_point_is_no_figure_by_round_unless_others_have_more() -> None:
    once, twice = curve({2: 80.0}), curve({1: 80.0, 2: 80.0})
    assert plots.over_rounds([result("a", history=once), result("b", history=once)]) is None
    assert plots.over_rounds([result("a", history=once), result("b", history=twice)]) is not None


def test_a_curve_of_another_metric_than_the_one_that_leads_says_so() -> None:
    found = result(history=curve({1: 80.0, 2: 80.0}), metrics={"auroc": accuracy(70.0)})
    charts = [plots.over_rounds(led(with_lead([found], name))) for name in ("accuracy", "auroc")]
    said = [chart.caption for chart in charts if chart is not None]
    assert ["accuracy alone" in text for text in said] == [False, True]


def test_seeds_are_averaged_round_by_round() -> None:
    one, two, middle = (curve({1: own, 2: own + 2}) for own in (10.0, 30.0, 20.0))
    both = [result(seed=1, history=one), result(seed=2, history=two)]
    assert plots.over_rounds(both) == plots.over_rounds([result(history=middle)])


def test_a_client_without_a_value_is_left_out() -> None:
    found = figures([result(per_client=listed({0: 80.0, 1: None, 2: 90.0}), history=())])
    assert [row["client"] for row in rows(found["clients"], 0)] == ["0", "2"]
    assert "rounds" not in found


def test_severities_begin_with_the_clean_image() -> None:
    found = rows(plots.over_severity([corrupted("a", own=80.0)]))
    # Own data 80; over both kinds 10 less, and 5 and 15 less by severity.
    assert [(row["step"], row["own"]) for row in found] == [(0, 80), (1, 65), (5, 55)]
    assert plots.over_severity([result()]) is None


def test_gains_are_those_of_each_client_over_the_first_method() -> None:
    one, other = listed({0: 50.0, 3: 70.0}), listed({0: 60.0, 3: 40.0})
    both = [result("a", per_client=one), result("b", per_client=other)]
    chart = client_plots.over_gains(both)
    assert [row["value"] for row in rows(chart, 1)] == [10.0, -30.0]
    assert chart is not None
    assert "over A" in json.dumps(chart.spec).replace('", "', " ")
    assert client_plots.over_gains([result("a")]) is None


def test_novel_clients_are_rings_and_not_in_the_mean() -> None:
    found = result(per_client=listed({0: 50.0, 3: 70.0}), novel=novel([10.0], first=5))
    chart = client_plots.over_clients([found])
    assert [(row["value"], row["novel"]) for row in rows(chart, 0)] == [
        (50.0, False),
        (70.0, False),
        (10.0, True),
    ]
    assert [row["mean"] for row in rows(chart, 1)] == [60.0]


def test_clients_have_the_names_that_data_give_them() -> None:
    named = replace(clients([80.0, 90.0]), names=("Ward <A>", "Ward B"))
    chart = client_plots.over_clients([result(per_client=named)])
    assert [row["client"] for row in rows(chart, 0)] == ["0: Ward <A>", "1: Ward B"]


def test_of_very_many_clients_some_are_drawn_from_the_lowest_to_the_highest() -> None:
    many = clients([float(1 + id % 97) for id in range(5 * client_plots.DRAWN)])
    chart = client_plots.over_clients([result(per_client=many)])
    drawn = [row["value"] for row in rows(chart, 0)]
    assert len(drawn) == client_plots.DRAWN
    assert min(drawn) == 1.0
    assert max(drawn) >= 95.0
    # The mean is that of all of them.
    assert rows(chart, 1)[0]["mean"] == pytest.approx(fmean(each for each in many.own if each))


def test_labels_are_those_of_training_and_in_older_results_of_tests() -> None:
    old = replace(clients([80.0, 90.0]), classes={"cat": (3, 0), "dog": (1, 2)})
    new = replace(old, labels={"cat": (30, 10), "dog": (0, 10)})
    for figure, count, kind in ((old, [3, 1, 2], "test"), (new, [30, 10, 10], "training")):
        chart = client_plots.over_labels([result(per_client=figure)])
        assert [row["samples"] for row in rows(chart)] == count
        assert chart is not None
        assert f"client's {kind} samples" in chart.caption
    assert client_plots.over_labels([result()]) is None


def test_gates_are_drawn_as_shares_of_their_blocks() -> None:
    found = rows(mask_plots.over_gates([corrupted("a")]))
    # 30 and 10 of 40 blocks, in four bins; the last step ends at 1.
    assert [row["share"] for row in found] == [75.0, 0.0, 25.0, 0.0, 0.0]
    assert [row["from"] for row in found] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_density_is_drawn_of_methods_that_have_masks() -> None:
    sparse = replace(result().model, layers={"conv.weight": 0.5, "fc.weight": 0.25})
    chart = mask_plots.over_layers([result("a"), result("b", model=sparse)])
    assert [(row["method"], row["kept"]) for row in rows(chart)] == [("B", 50.0), ("B", 25.0)]
    assert mask_plots.over_layers([result("a")]) is None


def test_overlaps_are_averaged_over_seeds_and_tables() -> None:
    (one,) = mask_plots.over_pairs([corrupted("a")])
    assert one.title == "A: 0.25"
    assert [row["overlap"] for row in rows(one)] == [[1.0, 0.5], [0.5, 1.0]]


def test_clients_whose_masks_are_alike_stand_together() -> None:
    pairs = [(0, 2), (1, 3)]
    alike = {frozenset(pair) for pair in pairs}
    table = [
        [1.0 if a == b else 0.9 if frozenset((a, b)) in alike else 0.1 for b in range(4)]
        for a in range(4)
    ]
    order = mask_plots.by_similarity(table)
    assert {frozenset(order[:2]), frozenset(order[2:])} == alike


def test_what_sends_nothing_is_a_level_and_no_point() -> None:
    chart = plots.over_traffic([sent("a", 0.0), sent("b", 1e6)])
    assert chart is not None
    assert {row["method"] for row in rows(chart)} == {"B"}
    assert "A sends nothing" in texts(svg(chart.alone(), ""))
    assert plots.over_traffic([sent("a", 0.0)]) is None


@pytest.mark.parametrize(("least", "logarithmic"), [(2e5, False), (1e4, True)])
def test_sizes_far_apart_get_a_logarithmic_axis(least: float, logarithmic: bool) -> None:
    chart = plots.over_traffic([sent("a", least), sent("b", 1e6), sent("c", 0.0)])
    assert chart is not None
    assert ("0.1" in texts(svg(chart.alone(), ""))) == logarithmic


def test_method_titles_are_escaped_and_never_read_as_formulas() -> None:
    chart = plots.over_rounds([result(title="<script>$x^2$</script>")])
    assert chart is not None
    drawn = svg(chart.alone(), "<b>")
    assert "<script" not in drawn
    assert "<b>" not in drawn
    assert "<script>$x^2$</script>" in texts(drawn)


def test_bands_end_where_percentages_do() -> None:
    def tops(**changes: Any) -> list[float]:
        found = rows(plots.over_shift([result(own=99.0, **changes)]))
        return [row["high"] for row in found]

    assert max(tops()) == 100.0
    assert max(tops(metric="mae")) == 104.0


def test_overlap_by_round_is_drawn_of_masks_that_differ() -> None:
    def noted(name: str, *values: float) -> Summary:
        points = curve(dict.fromkeys(range(1, 1 + len(values)), 80.0))
        history = [
            replace(point, notes={"mask_overlap": value})
            for point, value in zip(points, values, strict=True)
        ]
        return result(name, history=tuple(history))

    # One mask for all does not move apart, and a single round is no movement.
    chart = mask_plots.over_rounds([noted("a", 0.75, 0.5), noted("b", 1.0, 1.0), result("c")])
    assert rows(chart) == [
        {"method": "A", "round": 1, "overlap": 0.75},
        {"method": "A", "round": 2, "overlap": 0.5},
    ]
    assert mask_plots.over_rounds([noted("a", 0.75)]) is None


def test_masks_that_do_not_move_have_an_axis_that_can_be_read() -> None:
    points = curve({1: 80.0, 2: 80.0})
    still = tuple(replace(point, notes={"mask_overlap": 0.667}) for point in points)
    chart = mask_plots.over_rounds([result("a", history=still)])
    assert chart is not None
    drawn = texts(svg(chart.alone(), "a"))
    assert {"0.60", "0.70"} <= set(drawn)


def test_between_two_rounds_there_is_no_third() -> None:
    chart = plots.over_rounds([result(history=curve({5: 70.0, 6: 80.0}))])
    assert chart is not None
    assert texts(svg(chart.alone(), "a")).count("6") == 1
