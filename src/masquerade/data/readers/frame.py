"""Frames of pandas, polars and Arrow as datasets."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from masquerade.data.dataset import Dataset
from masquerade.data.readers.options import TableOptions, names_of
from masquerade.data.readers.table import dataset_of
from masquerade.errors import MasqueradeError, told
from masquerade.tables.frame import table_of


def from_frame(
    frame: Any,
    *,
    label: str | int,
    client: str | int = "",
    drop: str | Iterable[str | int] = (),
    categorical: str | Iterable[str | int] = (),
    impute: str = "",
    missing: str | Iterable[str] = (),
    task: str = "",
    name: str = "frame",
) -> Dataset:
    """Make a dataset of a frame: a row is a sample, a column a feature.

    `label` is the column of the labels: words, booleans and whole numbers are classes, other
    numbers make a regression. `client` is the column that says whose a row is. Columns of words are
    features where `categorical` names them or where their type says so. `impute` says what stands
    in for missing values ("mean", "median" or "most_frequent"); without it none may be missing.
    `missing` are texts that mean a missing value besides the usual ones, and `task` says what
    labels are ("classification" or "regression") where their values leave it open. Columns that
    pandas numbers are named by these numbers.
    """
    options = TableOptions(
        _name(label, "label"),
        _name(client, "client"),
        names_of(drop),
        names_of(categorical),
        impute,
        missing=names_of(missing),
        task=task,
    )
    table = table_of(frame, "the frame", options.missing, of_frame=True)
    dataset = dataset_of(table, options, name)
    labels = table[options.label]
    return replace(dataset, worded=labels.values.dtype.kind == "U" and not labels.categories)


def _name(given: Any, option: str) -> str:
    """Return the name of a column, which pandas may have a number for; refuse what is none."""
    if isinstance(given, (str, int, np.integer)):
        return str(given)
    text = f"`{option}` is {told(given)}; give the name of a column of the frame"
    name = getattr(given, "name", None)
    raise MasqueradeError("E201", text if name is None else f"{text}: {option}={name!r}")
