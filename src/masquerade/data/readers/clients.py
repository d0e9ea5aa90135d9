"""Columns of a table that may say whose a row is, where nobody has named one."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from masquerade.errors import listed, warn
from masquerade.tables.columns import WHOLE, Column, Table

WORDS = (
    *("client", "site", "hospital", "clinic", "center", "centre", "institution", "institute"),
    *("facility", "practice", "ward", "department", "branch", "store", "shop", "school", "bank"),
    *("station", "plant", "region", "country", "household", "device", "sensor", "machine"),
    *("vehicle", "user", "customer", "subject", "patient", "person", "participant", "student"),
    *("writer", "speaker", "driver", "doctor", "operator", "owner"),
    *("klinik", "krankenhaus", "standort", "zentrum", "praxis", "station", "abteilung", "filiale"),
)
"""What columns of clients are called, the likeliest first."""
FLAGS = {"0", "1"}
"""What is no name of a client, unless its column is called so."""
ROWS = 5
"""Rows that half of the values have at least, where each is a client with something to learn."""
MOST = 50
"""Different values, at most, of a column that is not called as clients are."""


@dataclass(frozen=True)
class Candidate:
    """A column that may be the client."""

    name: str
    values: int
    """How many different ones there are."""
    by_name: bool
    """Whether it is called as clients are."""

    @property
    def text(self) -> str:
        """Describe it."""
        return f"`{self.name}` ({self.values} values)"


def candidates(
    table: Table, left: Collection[str], categorical: Collection[str]
) -> list[Candidate]:
    """Find columns that may be the client, the likeliest first; those of `left` are others.

    They hold words or whole numbers, of which most come several times. Those that were said to be
    `categorical` may be it by their name alone.
    """
    found = [each for column in table.columns if column.name not in left for each in _seen(column)]
    named = [each for each in found if each.by_name]
    others = [each for each in found if each.name not in categorical]
    return sorted(named, key=lambda each: _rank(each.name)) or others


def _seen(column: Column) -> list[Candidate]:
    """Return a column that may be the client, or nothing."""
    texts = column.texts[~column.missing] if not column.refused else np.array([], dtype=str)
    whole = list(map(bool, map(WHOLE.fullmatch, texts.tolist())))
    words = column.values.dtype.kind == "U" and not any(whole)
    if not len(texts) or column.values.dtype.kind == "b" or not (words or all(whole)):
        return []
    counts = np.unique(texts, return_counts=True)[1]
    by_name = _rank(column.name) < len(WORDS)
    if (
        len(counts) < 2
        or np.median(counts) < ROWS
        or not (by_name or (len(counts) < MOST and not set(texts) <= FLAGS))
    ):
        return []
    return [Candidate(column.name, len(counts), by_name)]


def _rank(name: str) -> int:
    """Return the place of the likeliest word in a name: site_id, HospitalNr, Sites."""
    parts = words_of(name)
    ranks = [
        WORDS.index(word) for part in parts for word in (part, part.rstrip("s")) if word in WORDS
    ]
    return min(ranks, default=len(WORDS))


def words_of(name: str) -> list[str]:
    """Return the words of a name, in small letters: of `siteID` site and id."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-zäöüß]+|[A-Z]+", name)]


def warn_of_clients(table: Table, found: Sequence[Candidate]) -> None:
    """Warn that no column is the client (W304), and say which may be.

    Of a frame only where one is called so: a program partitions samples by its own word.
    """
    likely, shown = bool(found) and found[0].by_name, listed((each.text for each in found), 5)
    written = "client='{}'" if table.in_python else "--client {}"
    text = f"W304 {table.source}: no column is named that says whose a row is, so samples will be "
    text += "given to clients that are made up"
    if likely:
        text += f"; {shown} may be it: {written.format(found[0].name)}"
    else:
        text += f"; {written.format('COLUMN')} names it, if there is one"
        text += f" (of few values are {shown})" if found else ""
    if likely or not table.of_frame:
        warn(text)
