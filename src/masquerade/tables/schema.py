"""What rows look like to a model: they are found by column names, and checked by what it knows."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

import numpy as np

from masquerade.errors import MasqueradeError, listed, near, nearest, warn
from masquerade.tables.columns import (
    NUMBER,
    Column,
    Flags,
    Table,
    no_numbers,
    numbers_of,
    places_of,
)
from masquerade.tables.faults import SHOWN, Array, Fault, Places, refusal, rows_by_number, short
from masquerade.tables.known import KnownColumn, quantiles_of
from masquerade.tables.layout import PLAIN, Layout
from masquerade.tables.swapped import SLACK, Found, leave_range, swapped


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
class Schema:
    """What rows look like: their columns, in the order in which the model reads them."""

    columns: tuple[KnownColumn, ...]
    impute: bool = False
    """Whether values may be missing."""
    layout: Layout = PLAIN
    """How a file of rows is read."""
    client: str = ""
    """The client whose model it is, as the data name it."""

    @classmethod
    def of(
        cls,
        features: Sequence[Named],
        x: Array,
        impute: bool,
        layout: Layout = PLAIN,
        client: str = "",
    ) -> Self:
        """Describe the columns of training samples x [samples, columns]."""
        found = []
        for feature, values in zip(features, x.T, strict=True):
            numbers = () if feature.categories else quantiles_of(values[~np.isnan(values)])
            found.append(KnownColumn(feature.name, tuple(feature.categories), numbers))
        return cls(tuple(found), impute, layout, client)

    @classmethod
    def from_json(cls, given: Any) -> Self:
        """Read what `to_json` gave; what does not fit raises ValueError, KeyError or TypeError."""
        columns = []
        for each in given["columns"]:
            quantiles = tuple(map(float, each["quantiles"]))
            if len(quantiles) == 1 or list(quantiles) != sorted(quantiles):
                raise ValueError("quantiles ascend, and are two or more")
            categories = tuple(map(str, each["categories"]))
            columns.append(KnownColumn(str(each["name"]), categories, quantiles))
        layout = Layout.from_json(given["layout"])
        return cls(tuple(columns), bool(given["impute"]), layout, str(given["client"]))

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
        self._check_named(table)
        faults = [*table.faults, *self._unknown(table)]
        read = [
            _read(table, known, self.impute) for known in self.columns if known.name in table.names
        ]
        faults += [fault for each in read for fault in each[1]]
        if faults:
            raise refusal(table.source, faults, table.in_python)
        self._warn_of_others(table)
        return np.stack([numbers for numbers, _ in read], axis=1)

    def is_own(self, table: Table) -> Flags:
        """Tell which rows are of the client whose model it is, where the table says so."""
        self._check_named(table)
        if self.layout.client not in table.names:
            text = f"{table.source} has no column that names the client of a row"
            named = f" (`{self.layout.client}` in training)" if self.layout.client else ""
            raise MasqueradeError("E302", f"{text}{named}; leave out --own-rows")
        found: Flags = table[self.layout.client].texts == self.client
        return found

    def _warn_of_others(self, table: Table) -> None:
        """Warn of rows that another client has: this model is not theirs (W314)."""
        if self.layout.client not in table.names:
            return
        column = table[self.layout.client]
        rows = np.flatnonzero(~self.is_own(table) & ~column.missing)
        if len(rows):
            others, counts = np.unique(column.texts[rows], return_counts=True)
            shown = listed((f"{n} of {other}" for other, n in zip(others, counts, strict=True)), 5)
            text = f"W314 {table.source}: {len(rows)} of {len(table.places.numbers)} rows are of"
            text += f" other clients ({shown}), and the model is that of {self.client}"
            own = "; --own-rows (in Python Asked(own_rows=True)) answers its own alone"
            warn(text if table.in_python else f"{text}{own}")

    def _check_named(self, table: Table) -> None:
        """Refuse a table of which no column is known: what should be their names may be a row."""
        known = (*self.names, *self.layout.ignored)
        numbers = any(map(NUMBER.fullmatch, table.names))
        meant = not numbers and any(near(name, known) for name in table.names)
        if set(known).isdisjoint(table.names) and not meant:
            first = "the frame" if table.of_frame else f"{table.places.word} 1"
            text = f"{first} names no column of this model"
            text += f" (it has {listed(map(short, table.names), SHOWN)})"
            advice = f"the model reads {listed(self.names, 30)}"
            if not table.of_frame:
                advice = f"put a line with the names of the columns above the rows: {advice}"
            raise refusal(table.source, [Fault(text, advice=advice)], table.in_python)

    def _unknown(self, table: Table) -> Iterator[Fault]:
        """Find columns that are missing, and that are too many."""
        unknown = [name for name in table.names if name not in (*self.names, *self.layout.ignored)]
        absent = [name for name in self.names if name not in table.names]
        meant = {name: near(name, unknown) for name in absent}
        for name in absent:
            advice = "rename it" if meant[name] else ""
            yield Fault(f"there is no column `{name}`{nearest(name, unknown)}", advice=advice)
        if not table.of_frame:
            for name in unknown:
                if [name] not in meant.values():
                    yield Fault(f"`{name}` is no column of this model", advice="leave it out")
        if absent or (unknown and not table.of_frame):
            yield Fault(f"the model reads {listed(self.names, 30)}")

    def check(self, x: Array, source: str, places: Places | None = None) -> None:
        """Refuse samples x [rows, columns] that no training sample could be (E302).

        Values may be missing where the model imputes, though not all of a row; categories are
        places of theirs; columns may not be swapped. Numbers outside their ranges are warned of
        (W308). `places` say what rows are called.
        """
        places = places or rows_by_number(len(x))
        self._check_complete(x, source)
        _check_known(x, source, places)
        self._check_categories(x, source)
        found: list[Found] = []
        for column, values in zip(self.columns, x.T, strict=True):
            known = values[~np.isnan(values)]
            if column.quantiles and len(known):
                found.append((column, known))
        for one, other in swapped(found):
            _refuse_swapped(source, one, other)
        for column, values in zip(self.columns, x.T, strict=True):
            _warn_outside(source, column, values, places)

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
        numbers, wrong = numbers_of(table, column, thousands=False)
        return numbers, faults + ([no_numbers(table, column, wrong)] if wrong.any() else [])
    places = places_of(column, known.categories)
    strange = np.flatnonzero(np.isnan(places) & ~column.missing)
    if len(strange):
        faults.append(_no_category(table, column, known, strange, impute))
    return places, faults


def _no_category(
    table: Table, column: Column, known: KnownColumn, rows: Array, impute: bool
) -> Fault:
    """Say which values are none of the categories."""
    texts = column.texts
    text = f"column `{known.name}`: {column.counted(rows)} are no category of it"
    near = nearest(str(texts[rows[0]]), known.categories)
    shown = f"{table.places.shown(rows, texts)}){near}"
    advice = f"known are {listed(known.categories, 20)}"
    empty = "; where it is none of these, leave it empty: it is imputed" if impute else ""
    return Fault(f"{text} ({shown}", advice=advice + empty)


def _check_known(x: Array, source: str, places: Places) -> None:
    """Refuse rows of which nothing is known: their answer would be that of the imputed values."""
    rows = np.flatnonzero(np.isnan(x).all(axis=1))
    if len(rows):
        text = f"{source}: all values are missing in {len(rows)} of {len(x)} rows"
        raise MasqueradeError("E302", f"{text} ({places.shown(rows)}); leave them out")


def _refuse_swapped(source: str, one: Found, other: Found) -> None:
    """Refuse columns that hold each other's numbers; warn where these are in both ranges."""
    outside = [
        f"{np.sum(~column.fits(given))} of {len(given)} values of `{column.name}` are outside "
        f"{column.range[0]:g} to {column.range[1]:g}"
        for column, given in (one, other)
        if column.range and not column.fits(given).all()
    ]
    text = f"{source}: the columns `{one[0].name}` and `{other[0].name}` seem to be swapped: "
    like = f"exchanged, both are as in training ({'; '.join(outside) or 'all are in range'})"
    if leave_range(one, other):
        raise MasqueradeError("E302", f"{text}{like}; put them right")
    warn(f"W308 {text}{like}: answers may be wrong")


def _warn_outside(source: str, column: KnownColumn, values: Array, places: Places) -> None:
    """Warn of numbers that no training sample of the client has; NaN is none."""
    rows = np.flatnonzero(~column.fits(values) & ~np.isnan(values))
    # Someone is the oldest: what is hardly beyond training is no news.
    if not column.fits(values[rows], SLACK).all() and column.range:
        low, high = column.range
        count, strange = np.sum(~np.isnan(values)), values[rows]
        text = f"W308 {source}: column `{column.name}` has {len(rows)} of {count} values"
        text += f" outside {low:g} to {high:g}, the range of the client's training samples"
        which = f"from {strange.min():g} to {strange.max():g}, the first in"
        which = f"{strange[0]:g}," if len(rows) == 1 else which
        text += f" ({which} {places.word} {places.numbers[rows[0]]})"
        most = "; is it in another unit, or another column?" if len(rows) * 2 > count else ""
        warn(f"{text}: answers may be wrong{most}")
