"""What rows look like to a model: they are found by column names, and checked by what it knows."""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

import numpy as np

from masquerade.errors import MasqueradeError, MasqueradeWarning, listed, nearest
from masquerade.tables.columns import Column, Table, no_numbers, numbers_of, places_of
from masquerade.tables.faults import Array, Fault, refusal


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
class KnownColumn:
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
class Schema:
    """What rows look like: their columns, in the order in which the model reads them."""

    columns: tuple[KnownColumn, ...]
    impute: bool = False
    """Whether values may be missing."""
    ignored: tuple[str, ...] = ()
    """Columns of a file that are not read, as that of the labels."""
    missing: tuple[str, ...] = ()
    """Texts that mean a missing value, besides the usual ones."""

    @classmethod
    def of(
        cls,
        features: Sequence[Named],
        x: Array,
        impute: bool,
        ignored: Sequence[str] = (),
        missing: Sequence[str] = (),
    ) -> Self:
        """Describe the columns of training samples x [samples, columns]."""
        found = []
        for feature, values in zip(features, x.T, strict=True):
            known = values[~np.isnan(values)]
            numbers = len(known) and not feature.categories
            range = (float(known.min()), float(known.max())) if numbers else None
            found.append(KnownColumn(feature.name, tuple(feature.categories), range))
        return cls(tuple(found), impute, tuple(ignored), tuple(missing))

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
            columns.append(KnownColumn(str(each["name"]), categories, range))
        # Bundles that are older than the key know the usual texts alone.
        texts = (given["ignored"], given.get("missing", []))
        return cls(tuple(columns), bool(given["impute"]), *(tuple(map(str, t)) for t in texts))

    def to_json(self) -> dict[str, Any]:
        """Return it as a manifest holds it."""
        return asdict(self)

    @property
    def names(self) -> list[str]:
        """Name the columns."""
        return [each.name for each in self.columns]

    def samples(self, table: Table) -> Array:
        """Return rows as samples [rows, columns], found by the names of their columns.

        Categories become their places, and what is missing becomes NaN. All that does not fit is
        refused at once (E302). Columns of a file that the model does not know are, too; a frame may
        have others.
        """
        faults = [*table.faults, *self._unknown(table)]
        read = [
            _read(table, known, self.impute) for known in self.columns if known.name in table.names
        ]
        faults += [fault for each in read for fault in each[1]]
        if faults:
            raise refusal(table.source, faults, table.in_python)
        return np.stack([numbers for numbers, _ in read], axis=1)

    def _unknown(self, table: Table) -> Iterator[Fault]:
        """Find columns that are missing, and that are too many."""
        unknown = [name for name in table.names if name not in (*self.names, *self.ignored)]
        absent = [name for name in self.names if name not in table.names]
        for name in absent:
            yield Fault(f"there is no column `{name}`{nearest(name, unknown)}")
        if not table.in_python:
            for name in unknown:
                yield Fault(f"`{name}` is no column of this model", advice="leave it out")
        if absent or (unknown and not table.in_python):
            yield Fault(f"the model reads {listed(self.names, 30)}")

    def check(self, x: Array, source: str) -> None:
        """Refuse samples x [rows, columns] that no training sample could be (E302).

        Values may be missing where the model imputes, categories are places of theirs, and two
        columns that fit when exchanged are swapped. Numbers outside their ranges are warned of
        (W308).
        """
        self._check_complete(x, source)
        self._check_categories(x, source)
        numbers = [(place, each) for place, each in enumerate(self.columns) if each.range]
        known = {each.name: x[~np.isnan(x[:, place]), place] for place, each in numbers}
        columns = [column for _, column in numbers if len(known[column.name])]
        for column in columns:
            if not column.fits(known[column.name]).any():
                _refuse_swapped(source, column, columns, known)
        for place, column in numbers:
            _warn_outside(source, column, x[:, place])

    def _check_complete(self, x: Array, source: str) -> None:
        counts = np.isnan(x).sum(axis=0).tolist()
        found = [
            f"`{column.name}` ({count})"
            for column, count in zip(self.columns, counts, strict=True)
            if count
        ]
        if found and not self.impute:
            text = f"{source}: values are missing in {len(found)} columns: {listed(found)}"
            text += ", and the model was trained without missing values"
            raise MasqueradeError("E302", f"{text}; fill them in, or train with --impute median")

    def _check_categories(self, x: Array, source: str) -> None:
        """Refuse numbers that are no place of a category, as arrays may hold them."""
        for column, values in zip(self.columns, x.T, strict=True):
            known = values[~np.isnan(values)]
            strange = known[~np.isin(known, np.arange(len(column.categories)))]
            if column.categories and len(strange):
                text = f"{source}: column `{column.name}` holds {strange[0]:g}; its categories are"
                named = [f"{place} ({each})" for place, each in enumerate(column.categories)]
                raise MasqueradeError("E302", f"{text} {listed(named, 20)}")


def _read(table: Table, known: KnownColumn, impute: bool) -> tuple[Array, list[Fault]]:
    """Read a column as the model knows it, and find what is wrong with it."""
    column, faults = table[known.name], []
    name, gone = known.name, np.flatnonzero(column.missing)
    if column.refused:
        return column.values, [Fault(f"column `{name}`: it holds {column.refused}")]
    if len(gone) and not impute:
        text = f"column `{name}`: {column.counted(gone)} are missing ({table.places.shown(gone)})"
        advice = "fill them in: this model was trained without missing values"
        faults.append(Fault(text, advice=advice))
    if not known.categories:
        # Training has never taken a comma for one of thousands.
        numbers, wrong = numbers_of(column, table.decimal_comma, thousands=False)
        return numbers, faults + ([no_numbers(table, column, wrong)] if wrong.any() else [])
    places = places_of(column, known.categories)
    strange = np.flatnonzero(np.isnan(places) & ~column.missing)
    if len(strange):
        faults.append(_no_category(table, column, known, strange))
    return places, faults


def _no_category(table: Table, column: Column, known: KnownColumn, rows: Array) -> Fault:
    """Say which values are none of the categories."""
    texts = column.texts
    text = f"column `{known.name}`: {column.counted(rows)} are no category of it"
    near = nearest(str(texts[rows[0]]), known.categories)
    shown = f"{table.places.shown(rows, texts)}){near}"
    return Fault(f"{text} ({shown}", advice=f"known are {listed(known.categories, 20)}")


def _refuse_swapped(
    source: str, column: KnownColumn, columns: Sequence[KnownColumn], known: dict[str, Array]
) -> None:
    """Refuse a column none of whose values fit, where it and another one fit when exchanged."""
    for other in columns:
        exchanged = other.fits(known[column.name]).all() and column.fits(known[other.name]).all()
        if other is not column and exchanged:
            text = f"{source}: the columns `{column.name}` and `{other.name}` seem to be swapped: "
            text += f"no value of `{column.name}` is {column.text.removeprefix('a number ')}, its "
            text += "range in training, and both columns fit when exchanged"
            raise MasqueradeError("E302", f"{text}; put them right")


def _warn_outside(source: str, column: KnownColumn, values: Array) -> None:
    """Warn of numbers that no training sample of the client has; NaN is none."""
    rows = np.flatnonzero(~column.fits(values) & ~np.isnan(values))
    if len(rows) and column.range:
        low, high = column.range
        count, strange = np.sum(~np.isnan(values)), values[rows]
        text = f"W308 {source}: column `{column.name}` has {len(rows)} of {count} values"
        text += f" outside {low:g} to {high:g}, the range of the client's training samples"
        text += f" (from {strange.min():g} to {strange.max():g}, the first in row {rows[0]})"
        warnings.warn(MasqueradeWarning(f"{text}: answers may be wrong"), stacklevel=2)
