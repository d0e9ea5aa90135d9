"""Blocks of a table: methods as they are, then under rules, grouped by what a rule may read."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from masquerade.results import Summary

Row = TypeVar("Row")

TITLES = {
    "baseline": "As they are",
    "": "As they are",
    "sample": "Under a rule, every sample by itself",
    "several": "Under a rule, several samples together",
}
"""By the scope of a rule, in the order of the table."""
NOTES = {
    "sample": "Rules of the block “every sample by itself” know the client's training labels and"
    " its model's outputs on samples of its own that are not evaluated.",
    "several": "Rules of the block “several samples together” also read the outputs for other test"
    " samples of the client, all or earlier ones, without their labels: compare them with one"
    " another.",
}


def in_blocks(results: Iterable[Summary]) -> list[Summary]:
    """Return results block after block, in the order given within each."""
    return sorted(results, key=lambda each: list(TITLES).index(each.scope))


def parted(rows: Iterable[Row], groups: Iterable[Sequence[Summary]]) -> dict[str, list[Row]]:
    """Return the rows of a table, one for each group of results, by the title of their block."""
    pairs = zip(groups, rows, strict=True)
    return {
        title: [row for _, row in part]
        for title, part in groupby(pairs, key=lambda pair: TITLES[pair[0][0].scope])
    }


def notes(results: Iterable[Summary]) -> list[str]:
    """Say what the rules of each block that is there may look at."""
    there = {scope for each in results for scope in (each.scope, *_scopes(each))}
    return [text for scope, text in NOTES.items() if scope in there]


def _scopes(summary: Summary) -> list[str]:
    return [rule.scope for rule in summary.rules.values()]
