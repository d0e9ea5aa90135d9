"""Tables: what is averaged over what, who is bold, and what is refused."""

import html
import io
import math
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from typing import Any, Literal

import pytest
from rich.console import Console

from masquerade.data.registry import NAMED
from masquerade.report import frames, plots, tables
from masquerade.report.footnotes import footnotes
from masquerade.report.leads import leads
from masquerade.report.main_table import markdown
from masquerade.report.page import About, page
from masquerade.report.tables import half_width, rows
from masquerade.report.terminal import terminal
from masquerade.results import (
    AVERAGED,
    Accuracy,
    Bytes,
    ClassWeights,
    ClientMetric,
    Flops,
    Preprocessing,
    RuleFigures,
    Statistics,
    Summary,
)
from tests.report.invented import accuracy, clients, corrupted, costs, result, six_methods, spent
from tests.report.test_page import Reader
from tests.support import raises

NONE = Statistics(math.nan, math.nan)


def printed(results: list[Summary], color: Literal["standard"] | None = None) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80, color_system=color, force_terminal=color is not None)
    console.print(terminal(results))
    return stream.getvalue()


def test_importing_reports_needs_neither_rich_nor_what_draws() -> None:
    code = "import sys, masquerade.report; print(sorted({'rich', 'vl_convert'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_seed_shows_the_mean_and_the_std_over_clients() -> None:
    (row,) = rows([result(own=80.0, slope=20.0, per_client=None)])
    assert row["Own data"] == "80.0 ± 5.0"
    assert row["Own data, by samples"] == "81.0"
    assert row["Bottom decile"] == "71.0"
    assert row["100 % shift"] == "60.0 ± 10.0"
    assert row["All shifts"] == "70.0 ± 7.5"


def test_several_seeds_get_an_interval() -> None:
    # Mean 83, deviations -3, -1, 4, variance 26 / 2 = 13; with t = 4.303 for two degrees of
    # freedom, half of the interval is 4.303 · √13 / √3 = 8.957.
    results = [result(seed=seed, own=own) for seed, own in ((1, 80.0), (2, 82.0), (3, 87.0))]
    (row,) = rows(results)
    assert row["Own data"] == "83.0 ± 5.0 (9.0)"
    assert half_width([80.0, 82.0, 87.0]) == pytest.approx(8.957, abs=1e-3)


@pytest.mark.parametrize(("count", "t"), [(3, 4.303), (11, 2.228), (12, 2.201), (31, 2.042)])
def test_interval_follows_students_t_for_any_number_of_seeds(count: int, t: float) -> None:
    values = [float(value) for value in range(count)]
    expected = t * statistics.stdev(values) / math.sqrt(count)
    assert half_width(values) == pytest.approx(expected, rel=2e-3)


def test_fewer_than_three_seeds_get_an_interval_over_clients_and_a_word_of_it() -> None:
    # Clients lie evenly from 10 below to 9 above, with a standard deviation of √35 = 5.92: the
    # interval of a mean of twenty is about 2.09 · 5.92 / √20 = 2.77 to either side, of evenly
    # spread clients a little less, and the same of two seeds that have the same clients.
    two = [result(seed=seed, own=own) for seed, own in ((1, 80.0), (2, 83.0))]
    for results, mean in ((two[:1], 80.0), (two, 81.5)):
        (row,) = rows(results)
        assert row["Own data"] == f"{mean} ± 5.0 (2.7)"
        # Nobody is listed behind a decile.
        assert "(" not in row["Bottom decile"]
    three = [result("b", seed=seed) for seed in (1, 2, 3)]
    over_seeds = "In parentheses: half of the 95 % interval over seeds (Student's t)."
    for results, words in (
        (two[:1], ["over the clients of one training (bootstrap), which says nothing about other"]),
        (two, ["In parentheses: half of the 95 % interval over the clients of two trainings"]),
        (three, [over_seeds]),
        (two + three, [over_seeds, "In parentheses, of fewer than three seeds: half of the 95 %"]),
    ):
        text = markdown(results)
        assert text.count("In parentheses") == len(words)
        assert all(word in text for word in words)
    bare = [replace(each, per_client=None) for each in two]
    assert "In parentheses" not in markdown(bare)


def test_methods_keep_the_order_in_which_they_came() -> None:
    results = six_methods(1) + six_methods(2)
    titles = [row["Method"] for row in rows(results)]
    assert titles == ["Local", "FedAvg", "FedAvg+FT", "FedProx", "DM-PFL", "DM-PFL+"]


def test_costs_are_in_both_directions_and_small_ones_keep_two_digits() -> None:
    small = costs(spent(700.0, 530.0, flops=Flops(3e9, 0.0, 3.5e9)))
    first, second = rows([result("a"), result("b", costs=small)])
    assert (first["MB"], first["GFLOP"], first["Density"]) == ("2.30", "2.00", "1.00")
    assert (second["MB"], second["GFLOP"]) == ("0.0012", "0")


def ahead(results: list[Summary], column: str = "Own data") -> int | None:
    """The row that is separated from all others."""
    (row,) = leads(results)[column].rows or (None,)
    return row


def test_a_row_leads_where_it_is_separated_from_every_other_one() -> None:
    # Every client of B is ten points better off, and at full shift every one of A 11.
    a, b = result("a", own=70.0, slope=9.0), result("b", own=80.0, slope=30.0)
    assert (ahead([a, b]), ahead([b, a]), ahead([a, b], "100 % shift")) == (1, 0, 0)
    # C has the mean of B, and other clients: B leads A, but nobody leads all others.
    level = clients([80.0 + (id * 3 % 20) - 9.5 for id in range(20)])
    c = result("c", own=80.1, per_client=level)
    assert ahead([a, b, c]) is None
    assert ahead([a, c]) == 1
    # Where all clients are alike nobody leads.
    assert ahead([b, result("d", own=80.0, slope=30.0)]) is None


def test_one_row_leads_nobody() -> None:
    assert ahead([result()]) is None
    assert "old" not in markdown([result()])


def test_seeds_decide_where_there_are_three_and_clients_where_there_are_fewer() -> None:
    # B is ahead of A by 1, 2 and 3 points: 2 ± 4.303 · 1 / √3 = 2 ± 2.48 is no lead over seeds, and
    # every client gains.
    seeds = [
        result(name, seed, own=80.0 + gain * (name == "b"))
        for seed, gain in ((1, 1.0), (2, 2.0), (3, 3.0))
        for name in "ab"
    ]
    assert ahead(seeds) is None
    assert ahead(seeds[:4]) == 1
    # By 2, 3 and 4: 3 ± 2.48.
    more = [result("b", seed, own=81.0 + seed) for seed in (1, 2, 3)]
    assert ahead([*more, *seeds[::2]]) == 0
    # A column without clients behind it needs three seeds.
    assert [ahead(some, "Bottom decile") for some in ([*more, *seeds[::2]], seeds[:4])] == [0, None]


def test_a_metric_that_should_be_low_is_led_by_the_lowest() -> None:
    error: dict[str, Any] = {"metric": "error", "better": "lower"}
    results = [result("a", own=0.51234, **error), result("b", own=0.6, **error)]
    assert ahead(results) == 0
    assert rows(results)[0]["Own data"].startswith("0.512 ± 5")


def test_what_leads_is_bold_and_nothing_else() -> None:
    results = [result("a", own=80.0), result("b", own=90.0)]
    text = markdown(results)
    first, second = text.splitlines()[2:4]
    assert "**" not in first
    # No clients stand behind the decile, so that one seed says nothing of a lead.
    assert second.startswith("| B | **90.0** ± 5.0 (2.7) | **91.0** (2.7) | 81.0 |")
    assert second.endswith("| 2.30 | 2.00 | 1.00 |")
    assert "Bold is the best row" in text
    assert "pairs are the same clients of a training" in text

    colored = printed(results, color="standard")
    bold = re.findall("\x1b\\[1m([0-9.]+)\x1b", colored)
    assert bold == ["90.0", "70.0", "80.0", "81.0"]


def test_where_nothing_is_bold_the_reason_is_given() -> None:
    alike = [result("a"), result("b")]
    assert "Nothing is bold: in no column does a paired 95 % interval" in markdown(alike)
    bare = [replace(each, per_client=None) for each in (result("a"), result("b", own=90.0))]
    text = markdown(bare)
    assert "**" not in text
    assert "Nothing is bold, as leads cannot be tested" in text


def test_a_seed_that_diverged_is_shown_and_not_left_out_of_the_mean() -> None:
    seeds = [result("a", seed, own=80.0 + seed) for seed in (1, 2, 3)]
    others = [result("b", seed, own=70.0) for seed in (1, 2, 3)]
    lost = [*seeds[:2], replace(seeds[2], diverged=4)]
    row = rows([*lost, *others])[0]
    assert row["Own data"] == row["100 % shift"] == "diverged (1 of 3)"
    # What it cost it did cost.
    assert row["MB"] == "2.30"
    assert "no mean is given" in markdown(lost)
    assert "Diverged" not in markdown(seeds)
    assert "diverged" in printed([*lost, *others])
    assert (ahead([*seeds, *others]), ahead([*lost, *others])) == (0, None)
    assert Reader(page([*lost, *others], About("", ""))).faults == []


def test_a_figure_that_is_not_finite_is_shown_as_such() -> None:
    fine = result(seed=1)
    for bad in (math.nan, math.inf):
        own = Statistics(bad, math.nan, weighted=bad, bottom_decile=bad)
        seeds = [fine, result(seed=2, accuracy=replace(fine.accuracy, own=own))]
        (row,) = rows(seeds)
        assert row["Own data"] == row["Bottom decile"] == "non-finite (1 of 2)"
        assert row["All shifts"].startswith("70.0 ")


def test_a_metric_that_no_client_has_is_absent() -> None:
    undefined = Accuracy(Statistics(math.nan, math.nan, weighted=math.nan))
    (row,) = rows([result(metrics={"auroc": undefined})])
    assert row["AUROC"] == "–"


def test_both_means_and_the_decile_are_defined_where_they_stand() -> None:
    text = markdown([result()])
    assert "Own data is the mean over clients; by samples it is the mean over the test" in text
    assert "Bottom decile: nine clients in ten do at least as well." in text
    assert "only products (matrix products and convolutions) are counted as FLOPs" in text
    (row,) = rows([result(accuracy=Accuracy(Statistics(80.0, 5.0)))])
    assert "Own data, by samples" not in row


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_terminal_table_of_the_demo_fits_in_eighty_columns(seeds: int) -> None:
    lines = printed([r for seed in range(seeds) for r in six_methods(seed, 0.3 * seed)]).split("\n")
    assert max(map(len, lines)) <= 80
    (tuned,) = [line for line in lines if line.strip().startswith("FedAvg+FT ")]
    # Method, own, decile, full shift, all shifts, pooled, MB, GFLOP and density.
    assert len(tuned.split()) == 9
    left_out = "Own data, by samples, 20 % shift, 40 % shift, 60 % shift, 80 % shift."
    assert f"without: {left_out}" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_a_terminal_shows_what_it_has_room_for_and_folds_no_word(width: int) -> None:
    results = [corrupted("dmpfl_plus"), corrupted("fedavg", own=90.0)]
    table = terminal(results)
    shown = table.shown(width)
    assert sum(shown.values()) + len(shown) - 1 <= width
    assert {"Method", "Own data", "100 % shift", "All shifts", "Corrupt images"} <= set(shown)
    assert len(shown) == {60: 8, 80: 11, 100: 12, 120: 17, 160: 17}[width]
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    (line,) = [line for line in lines if line.strip().startswith("DMPFL_PLUS ")]
    assert len(line.split()) == len(shown)


def test_what_adaptation_costs_is_said_apart() -> None:
    note = "Counted apart, once before use: FedAvg+FT 20 kB and 0.04 GFLOP."
    assert note in markdown(six_methods())
    assert "apart" not in markdown([result()])
    # A download alone is a cost too, and methods that cost the same are named together.
    sent = costs(adapt=spent(5e4, 0.0, flops=Flops(0.0, 0.0, 0.0)))
    same = [result(name, costs=sent) for name in "ab"]
    assert "Counted apart, once before use: A, B 50 kB." in markdown(same)


def test_titles_are_text_and_not_markup() -> None:
    results = [result(title="[b]a|b[/b]")]
    assert "[b]a|b[/b]" in printed(results)
    assert r"| [b]a\|b[/b] |" in markdown(results)


def test_what_has_no_standard_deviation_is_a_bare_number() -> None:
    shift = {"20": NONE, AVERAGED: Statistics(71.25, math.nan)}
    row = rows([result(accuracy=accuracy(shift=shift), per_client=None)])[0]
    assert (row["All shifts"], row["20 % shift"]) == ("71.2", "non-finite (1 of 1)")


def test_shift_by_one_other_client_and_pooled_stand_side_by_side() -> None:
    (row,) = rows([result(own=80.0, slope=20.0)])
    assert (row["All shifts"], row["Pooled shifts"]) == ("70.0 ± 7.5 (2.7)", "71.0 ± 2.0 (2.7)")


def test_without_degrees_there_is_nothing_to_say_of_shift() -> None:
    only = {"0": Statistics(80.0, 5.0)}
    alone = result(accuracy=accuracy(shift=only, pooled=only))
    assert not [heading for heading in rows([alone])[0] if "shift" in heading]


def test_corruption_has_a_column_a_note_and_a_table_of_kinds() -> None:
    results = [corrupted("a"), corrupted("b", own=90.0)]
    first, second = rows(results)
    assert (first["Corrupt images"], second["Corrupt images"]) == ("60.0 ± 4.0", "70.0 ± 4.0")
    text = markdown(results)
    assert "under fog and jpeg compression at severity 1, 5" in text
    assert "made from the clean ones" in text
    lines = text.splitlines()[-5:]
    assert lines == [
        "| Corruption | A | B |",
        "|---|--:|--:|",
        "| Fog | 70.0 ± 4.0 | 80.0 ± 4.0 |",
        "| JPEG compression | 50.0 ± 4.0 | 60.0 ± 4.0 |",
        "| All kinds | 60.0 ± 4.0 | 70.0 ± 4.0 |",
    ]
    assert "orrupt" not in markdown([result()])


def test_a_stand_in_for_the_papers_data_is_called_so() -> None:
    note = NAMED["har_signals"].note
    assert "stand-in" in note
    noted = [replace(each, data_note=note) for each in six_methods()]
    for shown in (markdown(noted), " ".join(printed(noted).split()), page(noted, About("", ""))):
        assert note in html.unescape(shown)
    assert note not in markdown(six_methods())


def test_results_without_shift_have_no_columns_of_shift() -> None:
    (row,) = rows([result(accuracy=Accuracy(Statistics(80.0, 5.0)))])
    assert not [heading for heading in row if "shift" in heading]
    assert row["Bottom decile"] == "–"


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([], "no results"),
        ([result(), result()], "`fedavg` with seed 1 is there twice"),
        ([result(), result("b", data="other")], "`data` is 'invented' for `fedavg` but 'other'"),
        ([result(), result("b", rounds=9)], "`rounds` is 60"),
    ],
)
def test_what_must_not_stand_in_one_table_is_refused(results: list[Summary], words: str) -> None:
    for report in (rows, leads, markdown, terminal):
        with raises("E305") as caught:
            report(results)
        assert words in str(caught.value)


def test_what_is_done_to_samples_is_said_where_results_have_it() -> None:
    said = Preprocessing("samples are halved", Bytes(0.0, 0.0))
    sentence = "Before the network reads them, samples are halved."
    both = [result(preprocessing=said), result("b", preprocessing=said)]
    assert footnotes(both).count(sentence) == 1
    assert not [note for note in footnotes([result()]) if "network reads" in note]


def test_a_mean_that_is_not_over_all_clients_says_over_how_many() -> None:
    def defined(count: int) -> Accuracy:
        return Accuracy(Statistics(90.0, 2.0, defined=count))

    def told(*counts: int) -> str:
        some = [
            result(seed=seed, metrics={"auroc": defined(count)})
            for seed, count in enumerate(counts)
        ]
        return " ".join(note for note in footnotes(some) if " of 20" in note)

    assert "AUROC 17 of 20." in told(17)
    assert "AUROC 15 to 17 of 20." in told(17, 15)
    assert told(20) == ""
    # Those that have none are named where the data name them.
    known = clients([80.0] * 20)
    names = tuple(f"site {place}" for place in range(20))
    metric = ClientMetric((None, *[90.0] * 18, None))
    listed = replace(known, names=names, metrics={"auroc": metric})
    (note,) = (
        note
        for note in footnotes([result(metrics={"auroc": defined(18)}, per_client=listed)])
        if " of 20" in note
    )
    assert "AUROC 18 of 20 (not site 0, site 19)." in note
    # A client without test data has no figure at all.
    assert "Own data 19 of 20." in " ".join(footnotes([result(accuracy=defined(19))]))


def test_what_is_sent_for_preprocessing_is_counted_for_every_method() -> None:
    fitted = Preprocessing("numbers are standardized", Bytes(100.0, 1900.0))
    weighed = ClassWeights((1.0, 2.0), Bytes(0.0, 1000.0))
    silent = result("local", costs=costs(spent(0.0, 0.0)), preprocessing=fitted)
    other = result("fedavg", preprocessing=fitted, class_weights=weighed)
    (note,) = [each for each in footnotes([silent, other]) if "before training" in each]
    assert "LOCAL 2 kB" in note
    assert "FEDAVG 3 kB" in note
    assert [row["bytes_before"] for row in frames.rows([silent, other])] == [2000.0, 3000.0]


def test_a_further_metric_has_a_column_where_a_result_has_it() -> None:
    further = {"macro_f1": accuracy(70.0), "auroc": accuracy(95.0)}
    results = [result("a", metrics=further), result("b", own=90.0)]
    first, second = rows(results)
    assert (first["Macro F1"], first["AUROC"]) == ("70.0 ± 5.0", "95.0 ± 5.0")
    assert (second["Macro F1"], second["AUROC"]) == ("–", "–")
    for text in (markdown(results), page(results, About("", ""))):
        assert "Macro F1" in text
    assert "Macro F1" not in rows([result()])[0]


def test_the_best_of_a_further_metric_may_be_the_lowest() -> None:
    errors = (replace(accuracy(value), better="lower") for value in (0.2, 0.4))
    one, two = (result(n, metrics={"error": e}) for n, e in zip("ab", errors, strict=True))
    # Nobody lists clients of a further metric: it takes three seeds.
    assert ahead([one, two], "Error") is None
    many = [replace(each, seed=seed) for seed in (1, 2, 3) for each in (two, one)]
    assert ahead(many, "Error") == 1


RULED = [
    result("a", rules={"smoothed": RuleFigures(accuracy(90.0), {"auroc": accuracy(99.0)})}),
    result("b", own=85.0),
]


def test_a_method_under_a_rule_is_a_row_of_its_own_after_all_methods() -> None:
    found = {row["Method"]: row for row in rows(RULED)}
    assert list(found) == ["A", "B", "A, smoothed"]
    assert [row["Own data"][:10] for row in found.values()] == [
        "80.0 ± 5.0",
        "85.0 ± 5.0",
        "90.0 ± 5.0",
    ]
    # It costs what its method costs.
    assert found["A, smoothed"]["MB"] == found["A"]["MB"]


def test_seeds_are_averaged_under_a_rule_too() -> None:
    seeds = [replace(each, seed=seed) for seed in (1, 2, 3) for each in RULED]
    assert [row["Own data"] for row in rows(seeds)] == [
        "80.0 ± 5.0 (0.0)",
        "85.0 ± 5.0 (0.0)",
        "90.0 ± 5.0 (0.0)",
    ]


def test_a_page_has_a_row_under_a_rule_once_in_every_table() -> None:
    text = page(RULED, About("", ""))
    results = text.partition("<h2>Results</h2>")[2].partition("<h2>")[0]
    assert re.findall(r'<th scope="row">(?:<svg.*?</svg>)?(.*?)</th>', results) == [
        "A",
        "B",
        "A, smoothed",
    ]
    assert all(table.count('<th scope="row">A, smoothed</th>') <= 1 for table in tables_of(text))
    # The curve over rounds was measured without the rule.
    curves = plots.over_rounds(tables.under_rules(RULED))
    assert curves is not None
    assert {row["method"] for row in curves.spec["data"]["values"]} == {"A", "B"}


def tables_of(text: str) -> list[str]:
    """Return the tables of a page; operations by layer have several rows of a method."""
    body = text.partition("<summary>Operations by phase and layer</summary>")[0]
    found = re.findall(r"<table>.*?</table>", body, re.DOTALL)
    assert len(found) > 5
    return found
