"""Tables: named columns and options become a dataset, or a list of all that is wrong with them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from masquerade.core.features import Feature
from masquerade.data.dataset import FEW, Array, Dataset, are_few, from_arrays, numbered
from masquerade.data.readers.clients import Candidate, candidates, warn_of_clients, words_of
from masquerade.data.readers.options import TableOptions
from masquerade.data.readers.rare import warn_of_marks, warn_of_nines, warn_of_rare
from masquerade.errors import listed, near, nearest, warn
from masquerade.tables.columns import (
    DATE,
    NUMBER,
    POINT_THOUSANDS,
    WHOLE,
    Column,
    Flags,
    Table,
    marks_of,
    no_numbers,
    numbers_of,
    places_of,
)
from masquerade.tables.faults import SHOWN, Fault, Option, refusal, written
from masquerade.tables.layout import Layout

WORDS = 10
"""Different words that are shown of a column of categories."""
LEAST = 10
"""Rows from which a column can be said to tell nothing."""
MANY = 100
"""Rows in which whole numbers that measure something hardly are all different."""
KEYS = {"id", "ids", "nr", "no", "num", "number", "mrn", "key", "uid", "index", "nummer"}
"""What columns are called that number rows."""
TRAIN = {"true": True, "1": True, "train": True, "false": False, "0": False, "test": False}
"""What a column `train` may hold."""


def dataset_of(
    table: Table, options: TableOptions, name: str, images: Array | None = None
) -> Dataset:
    """Make a dataset: features raw, categories as their places, what is missing as NaN.

    Where there are `images`, these are the samples, and columns that are no label or client are
    left out. All faults are reported at once (E302). Columns that say nothing are warned of (W306).
    """
    table = replace(table, in_python=table.in_python or options.in_python)
    _check_header(table, options)
    faults = [*table.faults, *_unknown_columns(table, options)]
    options = _as_meant(options, table.names)
    roles = _roles(table, options)
    left = (*options.drop, *roles.values())
    used = [each for each in table.columns if images is None and each.name not in left]
    faults += _role_faults(table, roles)
    if "label" in roles:
        faults += _label_faults(table, table[roles["label"]], options.task)
    known = "client" in roles or options.one_client
    clients = [] if known else candidates(table, left, options.categorical)
    asked = _Asked("label" in roles, clients)
    found = [_feature(table, column, options, asked) for column in used]
    faults += [fault for each in found for fault in each.faults]
    if images is None and not used and table.columns:
        faults.append(Fault(f"no column is left for features; columns are {listed(table.names)}"))
    if faults:
        raise refusal(table.source, faults, table.in_python)
    _warn(table, found)
    if not known and images is None:
        warn_of_clients(table, clients)
    y, class_names = _labels(table, table[roles["label"]], options.task)
    counted = ("client",) if y.dtype.kind == "f" else ("label", "client")
    named = {role: roles[role] for role in counted if role in roles}
    worded = [each.name for each in found if each.categories]
    warn_of_rare(table, named, worded)
    warn_of_marks(table, [*named.values(), *worded])
    warn_of_nines(table, {each.name: each.numbers for each in found if not each.categories})
    if images is None:
        x = np.stack([each.numbers for each in found], axis=1).astype(np.float32)
    dataset = from_arrays(
        x if images is None else images,
        y,
        _clients(table, table[roles["client"]]) if "client" in roles else None,
        name,
        train=_train_flags(table[roles["train"]]) if "train" in roles else None,
        features=[Feature(each.name, each.categories) for each in found],
        impute=options.impute,
        task="regression" if y.dtype.kind == "f" else "",
        copy=False,
    )
    others = tuple(each for each in table.names if each in left) if images is None else ()
    names, owner = class_names or dataset.class_names, roles.get("client", "")
    layout = Layout(others, owner, options.missing, table.sep, options.encoding)
    return replace(dataset, class_names=names, layout=layout)


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
                meant = near(name, table.names, 3)
                text = f"{option}: there is no column `{name}`"
                text += nearest(name, table.names, 3) or f"; {columns}"
                yield Fault(text, ((option, meant[0]),) if len(meant) == 1 else ())
    named = [name for names in said.values() for name in names]
    for name in dict.fromkeys(named):
        if named.count(name) > 1:
            where = " and ".join(option for option, names in said.items() if name in names)
            yield Fault(f"column `{name}` is named by {where}", advice="name it once")


def _check_header(table: Table, options: TableOptions) -> None:
    """Refuse names of columns that seem to be a row: numbers are among them, and none is as said.

    Nothing else that could be said of such a table would help.
    """
    named = (options.label or "y", options.client, *options.drop, *options.categorical)
    numbers = [name for name in table.names if NUMBER.fullmatch(name)]
    if numbers and not table.of_frame and set(named).isdisjoint(table.names):
        which = "alone" if len(numbers) == len(table.names) else "among the names of columns"
        text = f"line 1 has numbers {which} ({listed(numbers, 3)})"
        advice = "if it is a row, put a line with the names of the columns above it; if it is none,"
        advice += f" name one of its columns with {'label=' if table.in_python else '--label'}"
        raise refusal(table.source, [Fault(text, advice=advice)], table.in_python)


def _as_meant(options: TableOptions, names: Sequence[str]) -> TableOptions:
    """Return options with the names that must be meant: what else is wrong is said of these."""

    def meant(name: str) -> str:
        found = near(name, names, 3) if name and name not in names else []
        return found[0] if len(found) == 1 else name

    return replace(
        options,
        label=meant(options.label),
        client=meant(options.client),
        drop=tuple(map(meant, options.drop)),
        categorical=tuple(map(meant, options.categorical)),
    )


def _role_faults(table: Table, roles: dict[str, str]) -> Iterable[Fault]:
    """Find rows without a label or a client, and what is no part."""
    for role, name in roles.items():
        column = table[name]
        rows = np.flatnonzero(column.missing)
        if column.refused:
            yield Fault(f"column `{name}` ({role}): it holds {column.refused}")
        elif len(rows):
            text = f"column `{name}` ({role}): {column.counted(rows)} are missing"
            yield Fault(f"{text} ({table.places.shown(rows)})", advice="fill or delete these rows")
    if "train" in roles:
        texts = table[roles["train"]].texts
        rows = np.flatnonzero([text.lower() not in TRAIN for text in texts.tolist()])
        if len(rows):
            text = f"column `train`: not true or false ({table.places.shown(rows, texts)})"
            yield Fault(text, (("drop", "train"),), "or rename it, if it is a feature")


def _label_faults(table: Table, column: Column, task: str) -> Iterable[Fault]:
    """Find labels that are no numbers, where they have to be."""
    if task == "regression" and not column.refused:
        _, wrong = numbers_of(table, column)
        if wrong.any():
            yield replace(no_numbers(table, column, wrong), options=(("task", "classification"),))


@dataclass(frozen=True)
class _Asked:
    """What is still to be named: by what a column of words may be."""

    labeled: bool
    """Whether the label is known."""
    clients: Sequence[Candidate]
    """Columns that may be the client, the likeliest first."""


@dataclass(frozen=True, eq=False)
class _Feature:
    """A column as numbers, and what is wrong with it."""

    name: str
    numbers: Array
    categories: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


def _feature(table: Table, column: Column, options: TableOptions, asked: _Asked) -> _Feature:
    """Read a column as numbers or categories."""
    faults: list[Fault] = []
    name, drop = column.name, ("drop", column.name)
    if column.refused:
        fault = Fault(f"column `{name}`: it holds {column.refused}", (drop,))
        return _Feature(name, column.values, faults=(fault,))
    categories: tuple[str, ...] = ()
    if column.categories or name in options.categorical:
        numbers, categories = _places(column)
    else:
        numbers, wrong = numbers_of(table, column)
        if wrong.any():
            faults.append(_no_numbers(table, column, wrong, asked))
    rows = np.flatnonzero(column.missing)
    if len(rows) == len(column.values):
        faults.append(Fault(f"column `{name}`: all values are missing", (drop,)))
    elif len(rows) and not options.impute:
        text = f"column `{name}`: {column.counted(rows)} are missing"
        # What is read as missing may be a name: NA is Namibia, too.
        words = rows[column.texts[rows] != ""] if column.values.dtype.kind == "U" else rows[:0]
        shown = table.places.shown(words, column.texts) if len(words) else table.places.shown(rows)
        faults.append(Fault(f"{text} ({shown})", (("impute", "median"), drop)))
    return _Feature(name, numbers, categories, tuple(faults))


def _places(column: Column) -> tuple[Array, tuple[str, ...]]:
    """Return every value's place among the categories."""
    known = column.categories or tuple(_ordered(column.texts[~column.missing]))
    return places_of(column, known), known


def _ordered(texts: Array) -> list[str]:
    """Return the different texts: in the order of numbers if they are such, else the alphabet's."""
    words = np.unique(texts).tolist()
    return sorted(words, key=int) if all(map(WHOLE.fullmatch, words)) else words


def _no_numbers(table: Table, column: Column, wrong: Flags, asked: _Asked) -> Fault:
    """Say which values of a column are no numbers, and what such a column may be."""
    fault, rows = no_numbers(table, column, wrong), np.flatnonzero(wrong)
    texts, drop = column.texts[rows].tolist(), ("drop", column.name)
    if column.values.dtype.kind == "U" and len(rows) > np.sum(~column.missing) / 2:
        if all(map(DATE.fullmatch, texts)):
            said = f"column `{column.name}`: it holds dates ({_first(table, column, rows)})"
            return Fault(said, (drop,), "or write them as numbers, such as days")
        if not all(NUMBER.fullmatch(text) or POINT_THOUSANDS.fullmatch(text) for text in texts):
            return _words(table, column, rows, asked)
    # A few wrong values are no reason to lose a column; they may mean that there is none.
    words = sorted(set(texts))
    unsaid = column.values.dtype.kind == "U" and len(words) <= SHOWN
    numeric = any(map(NUMBER.fullmatch, words))
    missing = (("missing", *words),) if unsaid and not numeric else ()
    sure = bool(missing) and marks_of(column.texts[rows]) == words
    return replace(fault, options=(*missing, drop), advice=f"or {fault.advice}", sure=sure)


def _first(table: Table, column: Column, rows: Array) -> str:
    return table.places.shown(rows, column.texts)


def _words(table: Table, column: Column, rows: Array, asked: _Asked) -> Fault:
    """Say that a column holds words; those of a category come again, and are not all the same."""
    name, texts = column.name, column.texts
    different = rows[np.sort(np.unique(texts[rows], return_index=True)[1])]
    words = "one word alone" if len(different) == 1 else f"{len(different)} different words"
    # Categories come again; names of rows do not, and need no list.
    most = WORDS if len(different) < len(rows) else SHOWN
    shown = f"{words} ({table.places.shown(different, texts, most)})"
    if len(different) in (1, len(rows)):
        return Fault(f"column `{name}`: it holds {shown}", (("drop", name),))
    options: list[Option] = [("categorical", name), ("drop", name)]
    named = [each.name for each in asked.clients if each.by_name]
    likeliest = named[:1] == [name]
    if name in named:
        options.insert(0 if likeliest else 1, ("client", name))
    advice = "" if asked.labeled else "unless it is the label"
    if marks := marks_of(texts[rows]):
        what = "these mean" if len(marks) > 1 else "it means"
        option = written([("missing", *marks)], table.in_python)[0]
        also = f"{option} if {what} a missing value"
        advice = f"{advice}; {also}" if advice else f"and {also}"
    sure = asked.labeled or likeliest
    return Fault(f"column `{name}`: it holds {shown}", tuple(options), advice, sure)


def _warn(table: Table, features: Sequence[_Feature]) -> None:
    """Warn of columns that say nothing: constant ones, and names or numbers of rows (W306)."""
    said: dict[str, list[str]] = {
        "has one value alone": [],
        "is another in every row": [],
        "has differences that float32 does not hold": [],
    }
    constant, keys, lost = said.values()
    for each in features:
        here = each.numbers[~np.isnan(each.numbers)]
        different = len(np.unique(here))
        if len(here) < LEAST:
            continue
        if different == 1:
            constant.append(each.name)
        elif different == len(here) and (each.categories or _names_rows(each.name, here)):
            keys.append(each.name)
        elif len(np.unique(here.astype(np.float32))) * 2 < different:
            lost.append(each.name)
    found = [f"`{name}` {what}" for what, names in said.items() for name in names]
    if found:
        names = [name for each in said.values() for name in each]
        drop = written([("drop", *names)], table.in_python)[0]
        also = ", or subtract a number from what is so large" if lost else ""
        text = f"W306 {table.source}: {listed(found, 20)}; nothing can be learned from it"
        warn(f"{text}: {drop}{also}")


def _names_rows(name: str, numbers: Array) -> bool:
    """Tell whether different whole numbers count rows, are many, or are called as names are."""
    counts = np.ptp(numbers) == len(numbers) - 1
    called = not KEYS.isdisjoint(words_of(name))
    return bool((numbers % 1 == 0).all() and (counts or called or len(numbers) >= MANY))


def _labels(table: Table, column: Column, task: str) -> tuple[Array, tuple[str, ...]]:
    """Return labels as `from_arrays` takes them, and the names of classes that are numbered here.

    Unless `task` says it, whole numbers are classes, other numbers make a regression, and words are
    names of classes.
    """
    if task == "regression":
        return numbers_of(table, column)[0], ()
    if column.categories:
        places, known = _places(column)
        return places.astype(np.int64), known
    values = _typed(table, column)
    if values.dtype.kind not in "iuf":
        return values, ()
    few, count = are_few(values), len(np.unique(values))
    if values.dtype.kind == "f" and not few and not task:
        return values, ()
    if not task and (few or count > FEW):
        _warn_of_amounts(table, column, count)
    return numbered(values)


def _warn_of_amounts(table: Table, column: Column, count: int) -> None:
    """Warn of numbers that are read as classes, and may be amounts."""
    shown = listed(_ordered(column.texts), 3)
    text = f"W305 {table.source}: column `{column.name}` (label) holds {count} different whole"
    text += f" numbers ({shown}), which are read as classes"
    written = "task='{}'" if table.in_python else "--task {}"
    regression, classification = map(written.format, ("regression", "classification"))
    text += f"; {regression} if they are amounts, {classification} if they are not"
    warn(text)


def _clients(table: Table, column: Column) -> Array:
    values = _typed(table, column)
    return values if values.dtype.kind in "iu" else column.texts


def _typed(table: Table, column: Column) -> Array:
    """Return texts as whole numbers or as numbers, if all of them are such."""
    values = column.values
    if values.dtype.kind != "U":
        return values
    if all(map(WHOLE.fullmatch, values.tolist())):
        return values.astype(np.int64)
    numbers, wrong = numbers_of(table, column)
    return values if wrong.any() else numbers


def _train_flags(column: Column) -> Array:
    return np.array([TRAIN[text.lower()] for text in column.texts.tolist()])
