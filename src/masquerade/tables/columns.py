"""Columns as they were given, texts or numbers, and what is missing of them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from masquerade.errors import MasqueradeError
from masquerade.tables.faults import Array, Fault, Places

Flags = npt.NDArray[np.bool_]

MISSING = ("", "NA", "N/A", "NaN", "null", "?")
"""Texts that mean a missing value, in capitals or not."""
MARKS = (
    *("-", "--", "–", ".", "k.a.", "n.a.", "n.b.", "#n/a", "#nv", "unknown", "not known"),
    *("missing", "unbekannt", "nichtbekannt", "keineangabe", "fehlt"),
)
"""Texts that may mean a missing value, in small letters and without spaces; a person has to say."""
WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
COMMA = re.compile(r"[+-]?\d+,\d+")
"""A decimal comma; where all of a column are THOUSANDS, nobody knows which of the two it is."""
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
POINT = re.compile(r"[+-]?\d+\.\d+")
POINT_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
"""A point for thousands, where other columns have decimal commas."""
DATE = re.compile(r"(\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d{2,4})([T ].*)?")


WIDEST = 4 << 30
"""Bytes of a column of texts, at most: every row has room for its longest."""


def texts_of(words: Sequence[str], name: str) -> Array:
    """Return texts as an array; E302 where a long one among many rows would take all memory."""
    longest = max(map(len, words), default=0)
    if 4 * longest * len(words) > WIDEST:
        text = f"column `{name:.60}` has a text of {longest} letters among {len(words)} rows"
        raise MasqueradeError("E302", f"{text}; shorten it, or leave the column out")
    return np.array(words, dtype=str)


@dataclass(frozen=True, eq=False)
class Column:
    """A column as it was given."""

    name: str
    values: Array
    """Texts, numbers or booleans [rows]; what stands where one is missing means nothing."""
    missing: Flags
    categories: tuple[str, ...] = ()
    """Where the data say that these are categories: those that occur, in their order."""
    refused: str = ""
    """What the values are, where they can be no feature."""

    @property
    def texts(self) -> Array:
        """Return all values as texts; whole numbers have no point."""
        if self.values.dtype.kind != "f":
            return self.values.astype(str)
        return np.array([str(int(v)) if v.is_integer() else str(v) for v in self.values.tolist()])

    def counted(self, rows: Sequence[int] | Array) -> str:
        """Say how many of the values some rows are."""
        return f"{len(rows)} of {len(self.values)} values"


@dataclass(frozen=True, eq=False)
class Table:
    """Columns, and what is known of where they come from."""

    source: str
    columns: tuple[Column, ...]
    places: Places
    faults: tuple[Fault, ...] = ()
    """What was found wrong in reading them."""
    sep: str = ""
    """What separates the fields of a line; "" where it is no CSV file."""
    in_python: bool = False
    """Whether options are written as arguments of a function."""
    of_frame: bool = False
    """Whether it is a frame, and no file."""

    def __getitem__(self, name: str) -> Column:
        return next(each for each in self.columns if each.name == name)

    @property
    def names(self) -> list[str]:
        """Name the columns."""
        return [each.name for each in self.columns]

    def where(self, flags: Flags) -> "Table":
        """Return a table of some of the rows."""
        columns = tuple(
            replace(each, values=each.values[flags], missing=each.missing[flags])
            for each in self.columns
        )
        places = Places(self.places.word, self.places.numbers[flags])
        return replace(self, columns=columns, places=places)

    @cached_property
    def has_decimal_commas(self) -> bool:
        """Tell whether a column has numbers with a comma that is for decimals, as far as seen."""
        return any(map(_has_decimal_commas, self.columns))


def missing_of(texts: Array, further: Iterable[str] = ()) -> Flags:
    """Tell which texts mean a missing value: the usual ones, and further ones."""
    small = np.char.lower(texts)
    found = np.zeros(len(texts), dtype=np.bool_)
    for word in (*MISSING, *further):
        found |= small == word.strip().lower()
    return found


def marks_of(texts: Array) -> list[str]:
    """Return those of some texts that may mean a missing value."""
    words = np.unique(texts).tolist()
    return [word for word in words if "".join(word.lower().split()) in MARKS]


def _has_decimal_commas(column: Column) -> bool:
    if column.values.dtype.kind != "U":
        return False
    commas = list(filter(COMMA.fullmatch, column.values.tolist()))
    return not all(map(THOUSANDS.fullmatch, commas))


def numbers_of(table: Table, column: Column, thousands: bool = True) -> tuple[Array, Flags]:
    """Return values as numbers, NaN where they are missing or none, and which are none.

    A column has none where its commas may be decimal and may stand for `thousands`, or its points
    may, because other columns have decimal commas.
    """
    if column.values.dtype.kind in "fiub":
        numbers = np.where(column.missing, np.nan, column.values.astype(np.float64))
        return numbers, _beyond(numbers, column.missing)
    texts = np.where(column.missing, "nan", column.values)
    try:
        numbers = texts.astype(np.float64)
    except ValueError:
        numbers = np.array(list(map(_number, texts.tolist())))
        left = texts[np.isnan(numbers) & ~column.missing].tolist()
        commas = [text for text in left if COMMA.fullmatch(text)]
        doubtful = thousands and all(map(THOUSANDS.fullmatch, commas))
        if commas and not doubtful:
            numbers = np.array(list(map(_with_comma, texts.tolist())))
    # Python reads 1_000 as a number, and people write such names.
    numbers[np.char.find(texts, "_") >= 0] = np.nan
    points = list(filter(POINT.search, texts.tolist()))
    if points and table.has_decimal_commas and all(map(POINT_THOUSANDS.fullmatch, points)):
        numbers[np.char.find(texts, ".") >= 0] = np.nan
    return numbers, _beyond(numbers, column.missing)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _with_comma(text: str) -> float:
    return _number(text.replace(",", ".") if COMMA.fullmatch(text) else text)


def _beyond(numbers: Array, missing: Flags) -> Flags:
    """Tell which numbers are none, infinite, or beyond float32, although they are not missing."""
    with np.errstate(over="ignore"):
        return ~np.isfinite(numbers.astype(np.float32)) & ~missing


def no_numbers(table: Table, column: Column, wrong: Flags) -> Fault:
    """Say which values of a column are no numbers."""
    rows, texts = np.flatnonzero(wrong), column.texts
    what, advice = "are no numbers", "correct these values"
    if column.values.dtype.kind != "U":
        what = "are infinite or beyond float32"
    elif all(map(THOUSANDS.fullmatch, texts[rows].tolist())):
        what, advice = "have a comma, for thousands or for decimals", "write 1234 or 1.234"
    elif table.has_decimal_commas and all(map(POINT_THOUSANDS.fullmatch, texts[rows].tolist())):
        what = "have a point, for thousands or for decimals, and other columns have decimal commas"
        advice = "write 1234 or 1,234"
    text = f"column `{column.name}`: {column.counted(rows)} {what}"
    return Fault(f"{text} ({table.places.shown(rows, texts)})", advice=advice)


def places_of(column: Column, known: Sequence[str]) -> Array:
    """Return every value's place among categories; NaN where it is none of them."""
    place = {text: number for number, text in enumerate(known)}
    return np.array([place.get(text, np.nan) for text in column.texts.tolist()], dtype=np.float64)
