"""Frames of pandas, polars and Arrow as datasets."""

from collections.abc import Iterable
from typing import Any

from masquerade.data.dataset import Dataset
from masquerade.data.readers.options import TableOptions, names_of
from masquerade.data.readers.table import dataset_of
from masquerade.tables.frame import table_of


def from_frame(
    frame: Any,
    *,
    label: str,
    client: str = "",
    drop: str | Iterable[str] = (),
    categorical: str | Iterable[str] = (),
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
    labels are ("classification" or "regression") where their values leave it open.
    """
    options = TableOptions(
        label,
        client,
        names_of(drop),
        names_of(categorical),
        impute,
        missing=names_of(missing),
        task=task,
    )
    table = table_of(frame, "the frame", options.missing, in_python=True)
    return dataset_of(table, options, name)
