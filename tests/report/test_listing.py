"""Tables as texts: leads are bold, blocks part rows, what a format reads otherwise is escaped."""

import csv
import io

from masquerade.report import listing, main_table
from masquerade.report.listing import Cell, Listing
from tests.report.invented import result

TABLE = Listing(
    "Two & more",
    ["Method", "Own data (%)"],
    [["a_b|c", Cell("80.0", "± 5.0", best=True)], ["d", Cell("–")]],
    "All of\nit.",
    {0: "As they are", 1: "Under a rule"},
)


def test_markdown_has_bold_leads_and_blocks() -> None:
    assert listing.markdown([TABLE]).splitlines() == [
        "Two & more:",
        "",
        "| Method | Own data (%) |",
        "|---|--:|",
        "| *As they are* | |",
        r"| a_b\|c | **80.0** ± 5.0 |",
        "| *Under a rule* | |",
        "| d | – |",
        "",
        "All of it.",
    ]


def test_latex_has_rules_bold_leads_and_no_letter_that_means_more() -> None:
    assert listing.latex([TABLE]).splitlines() == [
        "% Two & more",
        "% All of",
        "% it.",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"Method & Own data (\%) \\",
        r"\midrule",
        r"\multicolumn{2}{l}{\emph{As they are}} \\",
        r"a\_b|c & \textbf{80.0} $\pm$ 5.0 \\",
        r"\midrule",
        r"\multicolumn{2}{l}{\emph{Under a rule}} \\",
        r"d & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_csv_has_a_column_for_every_key_and_is_read_back() -> None:
    rows = [{"a": 1, "b": 'x,"y"'}, {"a": 2.5, "c": None}]
    text = listing.csv(rows)
    assert list(csv.DictReader(io.StringIO(text))) == [
        {"a": "1", "b": 'x,"y"', "c": ""},
        {"a": "2.5", "b": "", "c": ""},
    ]


def test_the_table_of_results_is_the_same_in_all_forms() -> None:
    (found,) = main_table.listings([result("a"), result("b", own=90.0)])
    (markdown, latex) = (listing.markdown([found]), listing.latex([found]))
    for value in ("80.0", "90.0"):
        assert value in markdown
        assert value in latex
    assert [each["Method"] for each in listing.records([found])] == ["A", "B"]
