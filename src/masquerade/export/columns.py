"""Rows of a table for a bundle's model: found by column names, checked against training samples."""

import csv
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from masquerade.errors import MasqueradeError, MasqueradeWarning, listed, nearest

Array = npt.NDArray[Any]

MISSING = ("", "na", "n/a", "nan", "null", "?")
"""Cells that hold nothing, in small letters."""
SEPARATORS = ",;\t|"
"""What may separate the cells of a line; the first of those that cut the header most often."""
SHOWN = 5
"""Faults that are told at once."""


class Named(Protocol):
    """A feature of a dataset."""

    @property
    def name(self) -> str:
        """Return what the column is called."""
        ...

    @property
    def categories(self) -> tuple[str, ...]:
        """Return its categories, none of a number."""
        ...


@dataclass(frozen=True)
class Column:
    """A column: a number, or a category, which the model reads as its place among `categories`."""

    name: str
    categories: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    """The least and the largest number of the client's training samples, where it has any."""

    @property
    def text(self) -> str:
        """Say what it holds."""
        if self.categories:
            return f"one of {listed(self.categories, 20)}"
        return "a number" + (f" from {self.range[0]:g} to {self.range[1]:g}" if self.range else "")

    def fits(self, values: Array) -> Array:
        """Tell which numbers are in the range."""
        low, high = self.range or (-math.inf, math.inf)
        inside: Array = (values >= low) & (values <= high)
        return inside


@dataclass(frozen=True)
class Table:
    """What rows look like: their columns, in the order in which the model reads them."""

    columns: tuple[Column, ...]
    impute: bool = False
    """Whether cells may be empty."""
    ignored: tuple[str, ...] = ()
    """Columns of a file that are not read, as that of the labels."""

    @classmethod
    def of(
        cls, features: Sequence[Named], x: Array, impute: bool, ignored: Sequence[str] = ()
    ) -> Self:
        """Describe the columns of training samples x [samples, columns]."""
        found = []
        for feature, values in zip(features, x.T, strict=True):
            known = values[~np.isnan(values)]
            numbers = len(known) and not feature.categories
            range = (float(known.min()), float(known.max())) if numbers else None
            found.append(Column(feature.name, tuple(feature.categories), range))
        return cls(tuple(found), impute, tuple(ignored))

    @classmethod
    def from_json(cls, given: Any) -> Self:
        """Read what `to_json` gave; what does not fit raises ValueError, KeyError or TypeError."""
        columns = []
        for each in given["columns"]:
            low_high = None if each["range"] is None else tuple(map(float, each["range"]))
            if low_high is not None and len(low_high) != 2:
                raise ValueError("a range has two ends")
            range = None if low_high is None else (low_high[0], low_high[1])
            categories = tuple(map(str, each["categories"]))
            columns.append(Column(str(each["name"]), categories, range))
        return cls(tuple(columns), bool(given["impute"]), tuple(map(str, given["ignored"])))

    def to_json(self) -> dict[str, Any]:
        """Return it as a manifest holds it."""
        return asdict(self)


def read_csv(path: Path, table: Table) -> Array:
    """Read rows by column names, in any order of columns [rows, columns]; what is missing is NaN.

    The file is in UTF-8, or in Latin-1; the separator is found, and where it is no comma, numbers
    may have decimal commas.
    """
    text = _decoded(path.read_bytes())
    first = text.partition("\n")[0]
    sep = max(SEPARATORS, key=lambda sep: len(next(csv.reader([first], delimiter=sep), [])))
    header, *rows = list(_records(text, sep)) or [(1, [])]
    places = _places(path, [name.strip() for name in header[1]], table)
    if not rows:
        raise MasqueradeError("E302", f"{path} has no rows below its line of column names")
    found, faults = np.empty((len(rows), len(table.columns))), []
    for row, (line, cells) in enumerate(rows):
        if len(cells) != len(header[1]):
            faults.append(f"line {line} has {len(cells)} cells, and the first has {len(header[1])}")
            continue
        for number, (column, place) in enumerate(zip(table.columns, places, strict=True)):
            try:
                found[row, number] = _cell(column, cells[place].strip(), table.impute, sep != ",")
            except ValueError as fault:
                faults.append(f"line {line}, column `{column.name}`: {fault}")
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise MasqueradeError("E302", f"{path}: {'; '.join(faults[:SHOWN])}{more}; correct them")
    return found


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _records(text: str, sep: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, with the lines that they begin in."""
    reader, line = csv.reader(io.StringIO(text, newline=""), delimiter=sep), 1
    for row in reader:
        if row:
            yield line, row
        line = reader.line_num + 1


def _places(path: Path, header: list[str], table: Table) -> list[int]:
    """Find the columns in the first line; refuse others, and a line that has no names."""
    wanted = [column.name for column in table.columns]
    if header and all(map(_is_number, header)):
        text = f"{path}: the first line has numbers alone; put one with the names of the columns"
        raise MasqueradeError("E302", f"{text} above it, in any order: {listed(wanted, 30)}")
    twice = [name for name in wanted if header.count(name) > 1]
    missing = [name for name in wanted if name not in header]
    unknown = [name for name in header if name not in (*wanted, *table.ignored)]
    faults = [f"there is no column `{name}`{nearest(name, unknown)}" for name in missing]
    faults += [f"`{name}` is no column of this model" for name in unknown]
    faults += [f"more than one column is called `{name}`" for name in twice]
    if faults:
        text = f"{path}: {'; '.join(faults)}; the model reads {listed(wanted, 30)}"
        raise MasqueradeError("E302", text)
    return [header.index(name) for name in wanted]


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _cell(column: Column, text: str, impute: bool, decimal_comma: bool) -> float:
    """Return the number that stands for a cell; raise ValueError where there is none."""
    if text in column.categories:
        return column.categories.index(text)
    if text.lower() in MISSING:
        if impute:
            return math.nan
        raise ValueError("it is empty, and this model was trained without missing values")
    if column.categories:
        near, known = nearest(text, column.categories), listed(column.categories, 20)
        raise ValueError(f"{text!r} is no known category{near}; known are {known}")
    plain = text.replace(",", ".") if decimal_comma else text
    if "_" in plain or not _is_number(plain) or not math.isfinite(float(plain)):
        raise ValueError(f"{text!r} is no finite number")
    return float(plain)


def check_rows(path: Path, table: Table, x: Array) -> None:
    """Refuse what no training sample could be, and warn of numbers outside their ranges (W308)."""
    _check_categories(path, table, x)
    numbers = [(place, each) for place, each in enumerate(table.columns) if each.range]
    known = {each.name: x[~np.isnan(x[:, place]), place] for place, each in numbers}
    columns = [column for _, column in numbers if len(known[column.name])]
    for column in columns:
        inside = column.fits(known[column.name])
        if not inside.any():
            _refuse_swapped(path, column, columns, known)
    for column in columns:
        values = known[column.name]
        strange = values[~column.fits(values)]
        if len(strange) and column.range:
            low, high = column.range
            text = f"W308 {path}: column `{column.name}` has {len(strange)} of {len(values)} values"
            text += f" outside {low:g} to {high:g}, the range of the client's training samples"
            text += f" (from {strange.min():g} to {strange.max():g}): answers may be wrong"
            warnings.warn(MasqueradeWarning(text), stacklevel=2)


def _refuse_swapped(
    path: Path, column: Column, columns: Sequence[Column], known: dict[str, Array]
) -> None:
    """Refuse a column none of whose values fit, where it and another one fit when exchanged."""
    for other in columns:
        exchanged = other.fits(known[column.name]).all() and column.fits(known[other.name]).all()
        if other is not column and exchanged:
            text = f"{path}: the columns `{column.name}` and `{other.name}` seem to be swapped: no "
            text += f"value of `{column.name}` is {column.text.removeprefix('a number ')}, its "
            text += "range in training, and both columns fit when exchanged"
            raise MasqueradeError("E302", f"{text}; put them right")


def _check_categories(path: Path, table: Table, x: Array) -> None:
    """Refuse numbers that are no place of a category, as arrays may hold them."""
    for column, values in zip(table.columns, x.T, strict=True):
        known = values[~np.isnan(values)]
        strange = known[~np.isin(known, np.arange(len(column.categories)))]
        if column.categories and len(strange):
            text = f"{path}: column `{column.name}` holds {strange[0]:g}; its categories are"
            named = [f"{place} ({each})" for place, each in enumerate(column.categories)]
            raise MasqueradeError("E302", f"{text} {listed(named, 20)}")
