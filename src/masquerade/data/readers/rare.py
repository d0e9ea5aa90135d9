"""Classes, clients and categories that are hardly there, or written in two ways."""

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from masquerade.errors import listed, nearest, warn
from masquerade.tables.columns import Column, Table, marks_of
from masquerade.tables.faults import Array, written

FEWEST = 5
"""Rows below which a class or a client can hardly be trained, validated and tested on."""
ENOUGH = 30
"""Rows of a table, at least, in which a value can be called rare."""


def warn_of_rare(table: Table, roles: Mapping[str, str], categories: Iterable[str]) -> None:
    """Warn of values that may be mistakes, with their lines (W312).

    Classes and clients, columns by their `roles`, may have hardly a row. These and categories may
    differ from another one by capitals, spaces or punctuation alone.
    """
    found = [text for name in (*roles.values(), *categories) for text in _alike(table, table[name])]
    for role, name in roles.items():
        found += _rare(table, table[name], role)
    if found:
        text = f"W312 {table.source}: {'; '.join(found)}"
        warn(f"{text}; correct them if they are mistakes")


def warn_of_nines(table: Table, numbers: Mapping[str, Array]) -> None:
    """Warn of columns whose largest or least number is of nines alone and far off (W315)."""
    found = {name: mark for name, values in numbers.items() if (mark := _nines(values))}
    if found:
        said = [f"`{name}` {mark}" for name, mark in found.items()]
        option = written([("missing", *found.values())], table.in_python)[0]
        text = f"W315 {table.source}: numbers that often mean a missing value are far from all"
        text += f" others of their column ({listed(said)}); {option} says that they mean one"
        warn(text)


def _nines(values: Array) -> str:
    """Return the number of nines that is farther from all others than these are apart."""
    known = values[~np.isnan(values)]
    found = np.unique(known) if len(known) >= ENOUGH else known[:0]
    for mark, others in ((found[-1:], found[:-1]), (found[:1], found[1:])):
        nines = len(others) > 1 and re.fullmatch(r"999+\.0|-9+\.0", str(float(mark[0])))
        if nines and np.abs(others - mark).min() > np.ptp(others):
            return str(int(mark[0]))
    return ""


def warn_of_marks(table: Table, names: Iterable[str]) -> None:
    """Warn of words that were read as categories, and may mean a missing value (W315)."""
    found = {name: marks_of(table[name].texts[~table[name].missing]) for name in names}
    said = [f"`{name}` {', '.join(map(repr, marks))}" for name, marks in found.items() if marks]
    if said:
        words = [mark for marks in found.values() for mark in marks]
        option = written([("missing", *words)], table.in_python)[0]
        text = f"W315 {table.source}: words that often mean a missing value are categories"
        text += f" ({listed(said)}); {option} says that they do"
        warn(text)


def _alike(table: Table, column: Column) -> Iterator[str]:
    """Say which words differ by capitals or spaces alone."""
    words, first = np.unique(column.texts, return_index=True)
    seen: dict[str, int] = {}
    for word, row in zip(words.tolist(), first.tolist(), strict=True):
        other = seen.setdefault(_spelled(word), row)
        if other != row and not column.missing[row]:
            shown = table.places.shown(sorted((other, row)), column.texts)
            text = f"column `{column.name}` has words that differ by capitals, spaces or"
            yield f"{text} punctuation alone ({shown})"


def _spelled(word: str) -> str:
    """Return a word without what is written in several ways: `St. Josef` and `st josef` are one.

    Signs that stand alone or at an end mean something: A+ and A- are two blood groups.
    """
    if not any(map(str.isalpha, word)):
        return word
    return re.sub(r"(?<=\w)[\s._/-]+(?=\w)|\.$", "", word.casefold())


def _rare(table: Table, column: Column, role: str) -> Iterator[str]:
    """Say which values have hardly a row, where most have more."""
    words, first, counts = np.unique(column.texts, return_index=True, return_counts=True)
    rare = np.flatnonzero(counts < FEWEST)
    if len(column.texts) >= ENOUGH and 0 < 2 * len(rare) <= len(words):
        shown = table.places.shown(np.sort(first[rare]), column.texts)
        near = (
            nearest(str(words[rare[0]]), np.delete(words, rare).tolist()) if len(rare) == 1 else ""
        )
        text = f"column `{column.name}` ({role}) has {len(rare)} of {len(words)} values in fewer"
        yield f"{text} than {FEWEST} rows ({shown}){near}"
