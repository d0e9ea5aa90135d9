"""Figures: deterministic, free of global state, legible."""

import itertools
import math
import re
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from masquerade.report import plots
from masquerade.report.drawing import Line, matrix, paint_bands, spaced
from masquerade.report.plots import (
    figures,
    over_gains,
    over_gates,
    over_rounds,
    over_severity,
    over_traffic,
)
from masquerade.results import Accuracy, Statistics, Summary
from tests.report.invented import (
    corrupted,
    costs,
    curve,
    listed,
    novel,
    result,
    six_methods,
    spent,
)


def texts(svg: str) -> list[str]:
    return [
        "".join(node.itertext())
        for node in ElementTree.fromstring(svg).iter()
        if "text" in node.tag
    ]


def sent(method: str, size: float, own: float = 80.0) -> Summary:
    return result(method, own=own, costs=costs(spent(size, 0.0)))


@pytest.fixture(scope="module")
def six() -> dict[str, str]:
    """Return the figures of six invented methods."""
    return figures(six_methods())


def test_figures_are_the_same_under_any_settings_and_leave_these_alone(six: dict[str, str]) -> None:
    with matplotlib.rc_context({"font.size": 33.0, "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        assert figures(six_methods()) == six
        assert dict(matplotlib.rcParams) == before


def test_figures_share_no_id_and_refer_to_their_own(six: dict[str, str]) -> None:
    assert list(six) == ["rounds", "traffic", "time", "clients", "gains", "shift", "pooled"]
    ids = {name: re.findall(r'\bid="([^"]+)"', svg) for name, svg in six.items()}
    every = list(itertools.chain(*ids.values()))
    assert len(every) == len(set(every))
    for name, svg in six.items():
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(ids[name])


def test_every_figure_names_every_method_and_takes_the_color_of_the_page(
    six: dict[str, str],
) -> None:
    assert len(six) > 4
    for name, svg in six.items():
        # Gains are those over the first method.
        for entry in six_methods()[name == "gains" :]:
            assert any(text.startswith(entry.title) for text in texts(svg))
        assert "currentColor" in svg
        assert "#000000" not in svg


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
    assert over_rounds([result("a", history=once), result("b", history=once)]) == ""
    assert over_rounds([result("a", history=once), result("b", history=twice)]) != ""


def test_a_client_without_a_value_is_left_out() -> None:
    drawn = figures([result(per_client=listed({0: 80.0, 1: None, 2: 90.0}), history=())])
    assert "clients" in drawn
    assert "rounds" not in drawn


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect the figures that are drawn."""
    seen: list[Figure] = []
    save = Figure.savefig

    def watched(figure: Figure, *args: Any, **kinds: Any) -> None:
        seen.append(figure)
        save(figure, *args, **kinds)

    monkeypatch.setattr(Figure, "savefig", watched)
    return seen


def test_severities_begin_with_the_clean_image(drawn: list[Figure]) -> None:
    over_severity([corrupted("a", own=80.0)])
    (line,) = drawn[0].axes[0].lines
    # Own data 80; over both kinds 10 less, and 5 and 15 less by severity.
    assert list(line.get_xdata()) == [0, 1, 5]
    assert list(line.get_ydata()) == [80, 65, 55]
    assert over_severity([result()]) == ""


def test_gains_are_those_of_each_client_over_the_first_method(drawn: list[Figure]) -> None:
    one, other = listed({0: 50.0, 3: 70.0}), listed({0: 60.0, 3: 40.0})
    over_gains([result("a", per_client=one), result("b", per_client=other)])
    (dots,) = drawn[0].axes[0].collections
    assert np.asarray(dots.get_offsets())[:, 0].tolist() == [10.0, -30.0]
    assert "A" in drawn[0].axes[0].get_xlabel()
    assert over_gains([result("a")]) == ""


def test_novel_clients_are_rings_and_not_in_the_mean(drawn: list[Figure]) -> None:
    trained = listed({0: 50.0, 3: 70.0})
    figures([result(per_client=trained, novel=novel([10.0], first=5), history=())])
    axes = next(figure for figure in drawn if "each client" in figure.axes[0].get_xlabel()).axes[0]
    (dots,), (bar,) = axes.collections, axes.lines
    assert np.asarray(dots.get_offsets())[:, 0].tolist() == [50.0, 70.0, 10.0]
    filled = [color[3] > 0 for color in np.asarray(dots.get_facecolor())]
    assert filled == [True, True, False]
    assert list(bar.get_xdata()) == [60.0, 60.0]


def test_gates_are_drawn_as_shares_of_their_blocks(drawn: list[Figure]) -> None:
    over_gates([corrupted("a")])
    (stairs,) = drawn[0].axes[0].patches
    # 30 and 10 of 40 blocks, in four bins.
    assert stairs.get_data().values.tolist() == [75.0, 0.0, 25.0, 0.0]
    assert list(stairs.get_data().edges) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_matrix_is_the_mean_of_its_tables_with_a_path_per_shade() -> None:
    svg = matrix([[[1.0, 0.0], [0.4, 1.0]], [[1.0, 0.0], [0.6, 1.0]]], "a & b")
    root = ElementTree.fromstring(svg)
    shades = {float(path.attrib["fill-opacity"]): path.attrib["d"] for path in root}
    assert shades == {1.0: "M0 0h1v1h-1zM1 1h1v1h-1z", 0.5: "M0 1h1v1h-1z"}
    assert root.attrib["viewBox"] == "0 0 2 2"


def test_seeds_are_averaged_round_by_round() -> None:
    one, two, middle = (curve({1: own, 2: own + 2}) for own in (10.0, 30.0, 20.0))
    both = [result(seed=1, history=one), result(seed=2, history=two)]
    assert over_rounds(both) == over_rounds([result(history=middle)])


def test_what_sends_nothing_says_so() -> None:
    assert "A (sends nothing)" in texts(over_traffic([sent("a", 0.0), sent("b", 1e6)]))
    assert "A (sends nothing)" in texts(over_traffic([sent("a", 0.0)]))


@pytest.mark.parametrize(("least", "logarithmic"), [(1e5, False), (1e4, True)])
def test_sizes_far_apart_get_a_logarithmic_axis(least: float, logarithmic: bool) -> None:
    ticks = texts(over_traffic([sent("a", least), sent("b", 1e6), sent("c", 0.0)]))
    assert ("0.01" in ticks) == logarithmic
    assert not [tick for tick in ticks if "$" in tick]


def test_names_of_crowded_points_do_not_cover_each_other(drawn: list[Figure]) -> None:
    crowd = [sent(f"method {i}", 1e6 + 3e4 * (i % 4), own=80.0) for i in range(8)]
    over_traffic([*crowd, sent("far", 1e6, own=95.0)])
    names = [child for child in drawn[0].axes[0].get_children() if isinstance(child, Annotation)]
    boxes = [Text.get_window_extent(name) for name in names]
    assert len(boxes) == 9
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_method_titles_are_escaped_and_never_read_as_formulas() -> None:
    drawn = figures([result(title="<script>$x^2$</script>")])
    assert drawn
    for svg in drawn.values():
        assert "<script" not in svg
        assert any(text.startswith("<script>$x^2$</script>") for text in texts(svg))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_spread_places_keep_their_order_their_distance_and_the_frame(places: list[float]) -> None:
    moved = spaced(sorted(places), 0.1)
    assert all(high - low >= 0.1 - 1e-9 for low, high in itertools.pairwise(moved))
    assert moved[0] >= 0
    assert moved[-1] <= 1 + 1e-9


def test_places_far_enough_apart_stay_and_close_ones_part_evenly() -> None:
    assert spaced([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spaced([0.5, 0.5, 0.9], 0.1) == pytest.approx([0.45, 0.55, 0.9])


def test_bands_end_where_percentages_do() -> None:
    def reach(within: tuple[float, float]) -> tuple[float, float]:
        axes = Figure().subplots()
        lines, stds = ([Line("a", 0, [(0.0, at), (1.0, at)])] for at in (95.0, 20.0))
        paint_bands(axes, lines, stds, within)
        (path,) = axes.collections[0].get_paths()
        return float(path.vertices[:, 1].min()), float(path.vertices[:, 1].max())

    assert reach((0.0, 100.0)) == (75.0, 100.0)
    assert reach((-math.inf, math.inf)) == (75.0, 115.0)


def test_the_page_draws_no_band_above_100_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(plots, "paint_bands", lambda *args: given.append(args[-1]))
    plots.over_shift([result(own=99.0)], "shift", "")
    plots.over_shift([result(own=99.0, metric="mae")], "shift", "")
    assert given == [(0.0, 100.0), (-math.inf, math.inf)]
