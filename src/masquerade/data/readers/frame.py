"""Frames of pandas, polars, Arrow and others that narwhals knows: their columns, by type."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from masquerade.data.dataset import Dataset
from masquerade.data.readers.faults import Places
from masquerade.data.readers.options import TableOptions, names_of
from masquerade.data.readers.table import Column, Table, dataset_of
from masquerade.errors import MasqueradeError, told

if TYPE_CHECKING:
    from narwhals.stable.v2 import Series


def from_frame(
    frame: Any,
    *,
    label: str,
    client: str = "",
    drop: str | Iterable[str] = (),
    categorical: str | Iterable[str] = (),
    impute: str = "",
    name: str = "frame",
) -> Dataset:
    """Make a dataset of a frame: a row is a sample, a column a feature.

    `label` is the column of the labels: words, booleans and whole numbers are classes, other
    numbers make a regression. `client` is the column that says whose a row is. Columns of words are
    features where `categorical` names them or where their type says so. `impute` says what stands
    in for missing values ("mean", "median" or "most_frequent"); without it none may be missing.
    """
    options = TableOptions(label, client, names_of(drop), names_of(categorical), impute)
    return dataset_of(table_of(frame, options, "the frame", in_python=True), options, name)


def table_of(frame: Any, options: TableOptions, source: str, in_python: bool = False) -> Table:
    """Return the columns of a frame."""
    import narwhals.stable.v2 as narwhals
    from narwhals.exceptions import DuplicateError

    try:
        known = narwhals.from_native(frame, eager_only=True)
    except TypeError:
        text = f"`frame` is {told(frame)}; give a frame of pandas or polars, or a table of Arrow"
        raise MasqueradeError("E302", text) from None
    except DuplicateError as fault:
        text = f"two columns have one name ({fault}); rename one"
        raise MasqueradeError("E302", text) from None
    columns = tuple(_column(each, options) for each in known.iter_columns())
    return Table(source, columns, Places("row", np.arange(len(known))), in_python=in_python)


def _column(series: "Series[Any]", options: TableOptions) -> Column:
    """Return a column of numbers, booleans or texts; of other types only what they are."""
    import narwhals.stable.v2 as nw

    name, dtype = str(series.name), series.dtype
    absent = np.array(series.is_null().to_list(), dtype=np.bool_)
    if dtype.is_numeric():
        numbers = series.cast(nw.Float64).to_numpy().astype(np.float64)
        absent |= np.isnan(numbers)
        whole = dtype.is_integer() and not absent.any()
        return Column(name, series.to_numpy() if whole else numbers, absent)
    values = series.to_list()
    if dtype == nw.Boolean:
        flags = [not gone and bool(value) for value, gone in zip(values, absent, strict=True)]
        return Column(name, np.array(flags, dtype=np.bool_), absent)
    if dtype not in (nw.String, nw.Categorical, nw.Enum, nw.Object):
        return Column(name, absent, absent, refused=f"values of type {dtype}")
    texts = ["" if gone else str(value).strip() for value, gone in zip(values, absent, strict=True)]
    words = {word.lower() for word in options.missing}
    absent |= np.array([text.lower() in words for text in texts], dtype=np.bool_)
    categories: tuple[str, ...] = ()
    if dtype in (nw.Categorical, nw.Enum):
        occurring = {text for text, gone in zip(texts, absent, strict=True) if not gone}
        order = [str(each).strip() for each in series.cat.get_categories().to_list()]
        categories = tuple(each for each in order if each in occurring)
    return Column(name, np.array(texts, dtype=str), absent, categories)
