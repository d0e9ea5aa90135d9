"""Rows of a frame become samples: columns by name, words as numbers, gaps as NaN."""

import math
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import masquerade as mq
from masquerade.config.arguments import rows_of
from masquerade.tables.frame import is_frame
from masquerade.tables.schema import KnownColumn, Schema
from tests.support import raises

WARD, STAGE = KnownColumn("ward", ("east", "west")), KnownColumn("stage", ("1", "2", "3"))
SCHEMA = Schema((KnownColumn("age"), WARD, STAGE), impute=True)
COLUMNS: dict[str, list[Any]] = {
    "y": [0, 1, 1],
    "stage": [3, None, 1],
    "ward": ["west", "east", None],
    "age": [40.0, None, 31.5],
}
EXPECTED = [[40.0, 1.0, 2.0], [math.nan, 0.0, math.nan], [31.5, math.nan, 0.0]]
FRAMES = {
    "pandas": pandas.DataFrame,
    "nullable": lambda columns: pandas.DataFrame(columns).convert_dtypes(),
    "categorical": lambda columns: pandas.DataFrame(columns).astype({"ward": "category"}),
    "polars": polars.DataFrame,
    "arrow": pyarrow.table,
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_columns_are_found_by_name_and_words_and_gaps_become_numbers(make: Any) -> None:
    frame = make(COLUMNS)
    assert is_frame(frame)
    found = rows_of(frame, SCHEMA)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(EXPECTED, np.float32))


@pytest.mark.parametrize("name", ["pandas", "polars", "arrow"])
def test_without_names_all_columns_are_taken_in_their_order(name: str) -> None:
    make: Any = FRAMES[name]
    found = rows_of(make({"b": [1, 2], "a": [3, 4]}), None)
    np.testing.assert_array_equal(np.asarray(found, np.float64), [[1, 3], [2, 4]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"age": None}, ("E302", "`age`")),
        ({"ward": ["west", "north", "east"]}, ("E302", "'north'", "east, west")),
        ({"age": [1, "old", 2]}, ("E302", "'old'")),
    ],
    ids=["missing", "category", "word"],
)
def test_what_does_not_fit_is_refused_with_the_column(
    change: dict[str, Any], said: tuple[str, ...]
) -> None:
    columns = {name: each for name, each in (COLUMNS | change).items() if each is not None}
    with raises(*said):
        rows_of(pandas.DataFrame(columns), SCHEMA)


def test_a_frame_that_is_not_in_memory_is_refused() -> None:
    with raises("E302"):
        rows_of(polars.LazyFrame({"age": [1]}), SCHEMA)


@pytest.mark.parametrize("x", [np.zeros(3), [1.0], None, "text"], ids=str)
def test_arrays_and_lists_are_no_frames(x: Any) -> None:
    assert not is_frame(x)


NUMBERED = pandas.DataFrame(
    {0: [1.0, 2.0, 3.0], 1: [4.0, 5.0, 6.0], 2: ["a", "b", "a"], 3: ["east", "west", "east"]}
)


def test_columns_that_pandas_numbers_are_found_by_their_numbers() -> None:
    given = {"label": 2, "client": np.int64(3), "drop": [1]}
    found = mq.from_frame(NUMBERED, **given)
    assert [each.name for each in found.features] == ["0"]
    assert found.x.tolist() == [[1.0], [2.0], [3.0]]
    assert (found.class_names, found.names) == (("a", "b"), ("east", "west"))
    words = mq.from_frame(NUMBERED, label="2", categorical=[3])
    assert [each.name for each in words.features] == ["0", "1", "3"]
    schema = Schema((KnownColumn("1"), KnownColumn("0")), impute=False)
    np.testing.assert_array_equal(rows_of(NUMBERED, schema)[0], [4.0, 1.0])


def test_a_column_called_1_and_another_called_1_are_refused() -> None:
    with raises("E302", "1"):
        mq.from_frame(pandas.DataFrame([[1, 2, 0]], columns=[1, "1", "y"]), label="y")


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: mq.from_frame(NUMBERED, label=NUMBERED[0].rename("dose")), "label='dose'"),
        (lambda: mq.from_frame(NUMBERED, label=2, client=["a"] * 3), "`client`"),
        (lambda: mq.load(NUMBERED), "mq.from_frame"),
        (lambda: mq.load(NUMBERED.to_numpy()), "mq.from_arrays"),
    ],
    ids=["series", "list", "frame", "array"],
)
def test_what_is_no_name_is_refused_with_what_to_write(call: Any, wanted: str) -> None:
    with raises("E201", wanted):
        call()
