"""Frames of pandas, polars, Arrow and others that narwhals knows: their columns, by type."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from masquerade.errors import MasqueradeError, told
from masquerade.tables.columns import Column, Table, missing_of, texts_of
from masquerade.tables.faults import rows_by_number

if TYPE_CHECKING:
    from narwhals.stable.v2 import DataFrame, Series


def is_frame(x: object) -> bool:
    """Tell a frame from arrays and lists."""
    return hasattr(x, "columns")


def table_of(frame: Any, source: str, missing: Sequence[str] = (), of_frame: bool = False) -> Table:
    """Return the columns of a frame; `missing` are further texts that mean a missing value."""
    known = opened(frame)
    # By place: pandas may number its columns, and a number would be taken for a row.
    every = (known[:, place] for place in range(len(known.columns)))
    columns = tuple(_column(series, missing) for series in every)
    _check_apart([each.name for each in columns])
    rows = rows_by_number(len(known))
    return Table(source, columns, rows, in_python=of_frame, of_frame=of_frame)


def opened(frame: Any) -> "DataFrame[Any]":
    """Return a frame as narwhals has it, or refuse what is none."""
    # Training needs torch and numpy alone.
    import narwhals.stable.v2 as nw
    from narwhals.exceptions import DuplicateError

    try:
        return nw.from_native(frame, eager_only=True)
    except TypeError:
        text = f"the frame is {told(frame)}; give one of pandas, polars or Arrow"
        raise MasqueradeError("E302", f"{text} that is in memory") from None
    except DuplicateError as fault:
        text = f"two columns have one name ({fault}); rename one"
        raise MasqueradeError("E302", text) from None


def _check_apart(names: Sequence[str]) -> None:
    """Refuse two columns whose names are one as texts: 1 and "1"."""
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        text = f"two columns are called {twice[0]} (a number and a text?); rename one"
        raise MasqueradeError("E302", text)


def _numbers(texts: Sequence[str]) -> Iterator[float]:
    """Yield those of some texts that are numbers."""
    for text in texts:
        with suppress(ValueError):
            yield float(text)


def _column(series: "Series[Any]", missing: Sequence[str]) -> Column:
    """Return a column of numbers, booleans or texts; of other types only what they are."""
    import narwhals.stable.v2 as nw

    name, dtype = str(series.name), series.dtype
    absent = np.array(series.is_null().to_list(), dtype=np.bool_)
    if dtype.is_numeric():
        numbers = series.cast(nw.Float64).to_numpy().astype(np.float64)
        absent |= np.isnan(numbers) | np.isin(numbers, [*_numbers(missing)])
        whole = dtype.is_integer() and not absent.any()
        return Column(name, series.to_numpy() if whole else numbers, absent)
    values = series.to_list()
    if dtype == nw.Boolean:
        flags = [not gone and bool(value) for value, gone in zip(values, absent, strict=True)]
        return Column(name, np.array(flags, dtype=np.bool_), absent)
    if dtype not in (nw.String, nw.Categorical, nw.Enum, nw.Object):
        what = "dates" if dtype in (nw.Date, nw.Datetime) else f"values of type {dtype}"
        return Column(name, texts_of(list(map(str, values)), name), absent, refused=what)
    words = ["" if gone else str(value).strip() for value, gone in zip(values, absent, strict=True)]
    texts = texts_of(words, name)
    absent |= missing_of(texts, missing)
    categories: tuple[str, ...] = ()
    if dtype in (nw.Categorical, nw.Enum):
        occurring = set(texts[~absent].tolist())
        order = [str(each).strip() for each in series.cat.get_categories().to_list()]
        if dtype == nw.Categorical and not series.implementation.is_pandas():
            # Elsewhere this type has its values in the order in which they came.
            order.sort()
        categories = tuple(each for each in order if each in occurring)
    return Column(name, texts, absent, categories)
