"""Tables: named columns and options become a dataset, or a list of all that is wrong with them."""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from masquerade.core.features import Feature
from masquerade.data.dataset import Array, Dataset, from_arrays
from masquerade.data.readers.faults import Fault, Places, refusal
from masquerade.data.readers.options import TableOptions
from masquerade.errors import MasqueradeWarning, listed, nearest

Flags = npt.NDArray[np.bool_]

LEAST = 10
"""Rows from which a column can be said to tell nothing."""
TRAIN = {"true": True, "1": True, "train": True, "false": False, "0": False, "test": False}
"""What a column `train` may hold."""
WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
COMMA = re.compile(r"[+-]?\d+,\d+")
"""A decimal comma; where all of a column are THOUSANDS, nobody knows which of the two it is."""
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


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


@dataclass(frozen=True, eq=False)
class Table:
    """Columns, and what is known of where they come from."""

    source: str
    columns: tuple[Column, ...]
    places: Places
    faults: tuple[Fault, ...] = ()
    """What was found wrong in reading them."""
    decimal_comma: bool = False
    """Whether 3,5 may be a number."""
    in_python: bool = False
    """Whether options are written as arguments of a function."""

    def __getitem__(self, name: str) -> Column:
        return next(each for each in self.columns if each.name == name)

    @property
    def names(self) -> list[str]:
        """Name the columns."""
        return [each.name for each in self.columns]


def dataset_of(
    table: Table, options: TableOptions, name: str, images: Array | None = None
) -> Dataset:
    """Make a dataset: features raw, categories as their places, what is missing as NaN.

    Where there are `images`, these are the samples, and columns that are no label or client are
    left out. All faults are reported at once (E302). Columns that say nothing are warned of (W306).
    """
    faults = [*table.faults, *_unknown_columns(table, options)]
    roles = _roles(table, options)
    left = (*options.drop, *roles.values())
    used = [each for each in table.columns if images is None and each.name not in left]
    faults += _role_faults(table, roles)
    found = [_feature(table, column, options, "label" in roles) for column in used]
    faults += [fault for each in found for fault in each.faults]
    if images is None and not used and table.columns:
        faults.append(Fault(f"no column is left for features; columns are {listed(table.names)}"))
    if faults:
        raise refusal(table.source, faults, table.in_python)
    _warn(table, found)
    y, class_names = _labels(table, table[roles["label"]])
    if images is None:
        x = np.stack([each.numbers for each in found], axis=1).astype(np.float32)
    dataset = from_arrays(
        x if images is None else images,
        y,
        _clients(table[roles["client"]]) if "client" in roles else None,
        name,
        train=_train_flags(table[roles["train"]]) if "train" in roles else None,
        features=[Feature(each.name, each.categories) for each in found],
        impute=options.impute,
        copy=False,
    )
    others = tuple(each for each in table.names if each in left) if images is None else ()
    names = class_names or dataset.class_names
    return replace(dataset, class_names=names, other_columns=others)


def _roles(table: Table, options: TableOptions) -> dict[str, str]:
    """Return the columns that are no features, by what they are: label, client, train."""
    here = [name for name in table.names if name not in options.drop]
    wanted = {"label": options.label or "y", "client": options.client or "client", "train": "train"}
    found: dict[str, str] = {}
    for role, name in wanted.items():
        if name in here and name not in found.values():
            found[role] = name
    return found


def _unknown_columns(table: Table, options: TableOptions) -> Iterable[Fault]:
    """Find columns that options name and that are not there, or that two options name."""
    columns = f"columns are {listed(table.names, 30)}"
    if not options.label and ("y" not in table.names or "y" in options.drop):
        yield Fault(f"which column is the label? The {columns}", (("label", "NAME"),))
    said: dict[str, tuple[str, ...]] = {
        "label": (options.label,) if options.label else (),
        "client": (options.client,) if options.client else (),
        "drop": options.drop,
        "categorical": options.categorical,
    }
    for option, names in said.items():
        for name in names:
            if name not in table.names:
                near = nearest(name, table.names, 3) or f"; {columns}"
                yield Fault(f"{option}: there is no column `{name}`{near}")
    named = [name for names in said.values() for name in names]
    for name in dict.fromkeys(named):
        if named.count(name) > 1:
            where = " and ".join(option for option, names in said.items() if name in names)
            yield Fault(f"column `{name}` is named by {where}", advice="name it once")


def _role_faults(table: Table, roles: dict[str, str]) -> Iterable[Fault]:
    """Find rows without a label or a client, and what is no part."""
    for role, name in roles.items():
        column = table[name]
        rows = np.flatnonzero(column.missing)
        if column.refused:
            yield Fault(f"column `{name}` ({role}): it holds {column.refused}")
        elif len(rows):
            text = f"column `{name}` ({role}): {_count(rows, column)} are missing"
            yield Fault(f"{text} ({table.places.shown(rows)})", advice="fill or delete these rows")
    if "train" in roles:
        texts = table[roles["train"]].texts
        rows = np.flatnonzero([text.lower() not in TRAIN for text in texts.tolist()])
        if len(rows):
            text = f"column `train`: not true or false ({table.places.shown(rows, texts)})"
            yield Fault(text, (("drop", "train"),), "or rename it, if it is a feature")


def _count(rows: Array, column: Column) -> str:
    return f"{len(rows)} of {len(column.values)} values"


@dataclass(frozen=True, eq=False)
class _Feature:
    """A column as numbers, and what is wrong with it."""

    name: str
    numbers: Array
    categories: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


def _feature(table: Table, column: Column, options: TableOptions, labeled: bool) -> _Feature:
    """Read a column as numbers or categories; `labeled` tells whether the label is another."""
    faults: list[Fault] = []
    name, drop = column.name, ("drop", column.name)
    if column.refused:
        fault = Fault(f"column `{name}`: it holds {column.refused}", (drop,))
        return _Feature(name, column.values, faults=(fault,))
    categories: tuple[str, ...] = ()
    if column.categories or name in options.categorical:
        numbers, categories = _places(column)
    else:
        numbers, wrong = _numbers(column, table.decimal_comma)
        if wrong.any():
            faults.append(_no_numbers(table, column, wrong, labeled))
    rows = np.flatnonzero(column.missing)
    if len(rows) == len(column.values):
        faults.append(Fault(f"column `{name}`: all values are missing", (drop,)))
    elif len(rows) and not options.impute:
        text = f"column `{name}`: {_count(rows, column)} are missing"
        shown = table.places.shown(rows)
        faults.append(Fault(f"{text} ({shown})", (("impute", "median"), drop)))
    return _Feature(name, numbers, categories, tuple(faults))


def _places(column: Column) -> tuple[Array, tuple[str, ...]]:
    """Return every value's place among the categories."""
    texts = column.texts
    known = column.categories or tuple(_ordered(texts[~column.missing]))
    place = {text: number for number, text in enumerate(known)}
    return np.array([place.get(text, np.nan) for text in texts], dtype=np.float64), known


def _ordered(texts: Array) -> list[str]:
    """Return the different texts: in the order of numbers if they are such, else the alphabet's."""
    words = np.unique(texts).tolist()
    return sorted(words, key=int) if all(map(WHOLE.fullmatch, words)) else words


def _numbers(column: Column, decimal_comma: bool) -> tuple[Array, Flags]:
    """Return values as numbers, NaN where they are missing or none, and which are none."""
    if column.values.dtype.kind in "fiub":
        numbers = np.where(column.missing, np.nan, column.values.astype(np.float64))
        return numbers, _beyond(numbers, column.missing)
    texts = np.where(column.missing, "nan", column.values)
    try:
        numbers = texts.astype(np.float64)
    except ValueError:
        numbers = np.array(list(map(_number, texts.tolist())))
        left = texts[np.isnan(numbers) & ~column.missing].tolist()
        commas = all(map(COMMA.fullmatch, left)) and not all(map(THOUSANDS.fullmatch, left))
        if decimal_comma and commas:
            numbers = np.array([_number(text.replace(",", ".")) for text in texts.tolist()])
    # Python reads 1_000 as a number, and people write such names.
    numbers[np.strings.find(texts, "_") >= 0] = np.nan
    return numbers, _beyond(numbers, column.missing)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _beyond(numbers: Array, missing: Flags) -> Flags:
    """Tell which numbers are none, infinite, or beyond float32, although they are not missing."""
    with np.errstate(over="ignore"):
        return ~np.isfinite(numbers.astype(np.float32)) & ~missing


def _no_numbers(table: Table, column: Column, wrong: Flags, labeled: bool) -> Fault:
    """Say which values of a column are no numbers, and what such a column may be."""
    rows, name, texts = np.flatnonzero(wrong), column.name, column.texts
    what, advice = "are no numbers", "or correct these values"
    if column.values.dtype.kind != "U":
        what = "are infinite or beyond float32"
    elif all(map(THOUSANDS.fullmatch, texts[rows].tolist())):
        what, advice = "have a comma, for thousands or for decimals", "or write 1234 or 1.234"
    elif len(rows) > np.sum(~column.missing) / 2:
        return _words(table, column, rows, labeled)
    text = f"column `{name}`: {_count(rows, column)} {what}"
    shown = table.places.shown(rows, texts)
    # A few wrong values are no reason to lose a column.
    return Fault(f"{text} ({shown})", (("drop", name),), advice, sure=False)


def _words(table: Table, column: Column, rows: Array, labeled: bool) -> Fault:
    """Say that a column holds words; those of a category come again, and are not all the same."""
    name, texts = column.name, column.texts
    different = rows[np.sort(np.unique(texts[rows], return_index=True)[1])]
    words = "one word alone" if len(different) == 1 else f"{len(different)} different words"
    shown = f"{words} ({table.places.shown(different, texts)})"
    if len(different) in (1, len(rows)):
        return Fault(f"column `{name}`: it holds {shown}", (("drop", name),))
    advice = "" if labeled else "unless it is the label or the client"
    options = (("categorical", name), ("drop", name))
    return Fault(f"column `{name}`: it holds {shown}", options, advice, sure=labeled)


def _warn(table: Table, features: Sequence[_Feature]) -> None:
    """Warn of columns that say nothing: constant ones, and names or numbers of rows."""
    said: dict[str, list[str]] = {"has one value alone": [], "is another in every row": []}
    for each in features:
        here = each.numbers[~np.isnan(each.numbers)]
        different = len(np.unique(here))
        if len(here) < LEAST:
            continue
        if different == 1:
            said["has one value alone"].append(each.name)
        elif different == len(here) and (each.categories or _counts_rows(here)):
            said["is another in every row"].append(each.name)
    found = [f"`{name}` {what}" for what, names in said.items() for name in names]
    if found:
        names = [name for each in said.values() for name in each]
        drop = f"drop={names}" if table.in_python else f"--drop {','.join(names)}"
        warnings.warn(
            f"W306 {table.source}: {listed(found, 20)}; nothing can be learned from it: {drop}",
            MasqueradeWarning,
            stacklevel=2,
        )


def _counts_rows(numbers: Array) -> bool:
    """Tell whether different numbers are those from one to the next."""
    return bool((numbers % 1 == 0).all() and np.ptp(numbers) == len(numbers) - 1)


def _labels(table: Table, column: Column) -> tuple[Array, tuple[str, ...]]:
    """Return labels as `from_arrays` takes them, and the names of classes that are numbered here.

    Whole numbers are classes, other numbers make a regression, and words are names of classes.
    """
    if column.categories:
        places, known = _places(column)
        return places.astype(np.int64), known
    values = _typed(column, table.decimal_comma)
    if values.dtype.kind not in "iu":
        return values, ()
    found, numbers = np.unique(values, return_inverse=True)
    if found[0] == 0 and found[-1] == len(found) - 1:
        return values, ()
    return numbers, tuple(map(str, found.tolist()))


def _clients(column: Column) -> Array:
    values = _typed(column)
    return values if values.dtype.kind in "iu" else column.texts


def _typed(column: Column, decimal_comma: bool = False) -> Array:
    """Return texts as whole numbers or as numbers, if all of them are such."""
    values = column.values
    if values.dtype.kind != "U":
        return values
    if all(map(WHOLE.fullmatch, values.tolist())):
        return values.astype(np.int64)
    numbers, wrong = _numbers(column, decimal_comma)
    return values if wrong.any() else numbers


def _train_flags(column: Column) -> Array:
    return np.array([TRAIN[text.lower()] for text in column.texts.tolist()])
