"""Blocks of a table: methods as they are, then under rules, by what these may look at."""

import io

from rich.console import Console

from masquerade.report import blocks, terminal
from masquerade.report.footnotes import footnotes
from masquerade.report.main_table import markdown
from masquerade.report.page import About, page
from masquerade.report.tables import rows
from masquerade.results import RuleFigures, Summary
from tests.report.invented import accuracy, result

RULES = {
    "batch": RuleFigures(accuracy(90.0)),
    "own": RuleFigures(accuracy(88.0), scope="sample"),
}
RULED = [result("a", rules=RULES), result("b", rules=RULES)]
TITLES = list(blocks.TITLES.values())


def test_rows_stand_in_blocks() -> None:
    titles = [row["Method"] for row in rows(RULED)]
    assert titles == ["A", "B", "A, own", "B, own", "A, batch", "B, batch"]


def test_every_block_has_its_title_and_its_note() -> None:
    lines = markdown(RULED).splitlines()
    at = [next(i for i, line in enumerate(lines) if f"*{title}*" in line) for title in TITLES]
    names = {lines[place + 1].split("|")[1].strip() for place in at}
    assert names == {"A", "A, own", "A, batch"}
    assert at == sorted(at)
    widths = {line.count("|") for line in lines[: at[-1]]}
    assert len(widths) == 1
    found = page(RULED, About("", ""))
    assert all(title in found for title in TITLES)
    notes = " ".join(footnotes(RULED))
    assert all(text in notes for text in blocks.NOTES.values())


def test_without_rules_there_are_no_blocks() -> None:
    plain = [result("a"), result("b")]
    text = markdown(plain) + page(plain, About("", ""))
    assert not any(title in text for title in TITLES)
    assert blocks.notes(plain) == []


def test_blocks_are_apart_in_a_terminal() -> None:
    def gaps(results: list[Summary]) -> int:
        console = Console(file=io.StringIO(), width=200)
        with console.capture() as printed:
            console.print(terminal(results))
        return [line.strip() for line in printed.get().splitlines()].count("")

    plain = gaps([result("a"), result("b")])
    assert gaps([result("a"), result("b", rules=RULES)]) == plain + 2
