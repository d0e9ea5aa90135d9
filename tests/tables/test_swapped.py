"""Swapped columns are told from new patients, other units and constant columns."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from masquerade.errors import MasqueradeWarning
from masquerade.tables.known import KnownColumn, quantiles_of
from masquerade.tables.schema import Schema
from tests.messages import Golden
from tests.support import raises, warns

Rng = np.random.Generator
DRAWS: dict[str, Callable[[Rng, int], np.ndarray]] = {
    "age": lambda rng, n: rng.normal(66, 13, n).clip(18, 99).round(),
    "weight": lambda rng, n: rng.normal(80, 15, n),
    "pressure": lambda rng, n: rng.normal(128, 18, n).round(),
    "crp": lambda rng, n: rng.lognormal(3, 1, n),
    "lactate": lambda rng, n: rng.lognormal(0.5, 0.5, n),
    "cells": lambda rng, n: rng.normal(9, 3, n).clip(1, 40),
    "ward": lambda rng, n: rng.integers(1, 4, n).astype(float),
    "none": lambda rng, n: np.zeros(n),
    "all": lambda rng, n: np.ones(n),
}
"""Columns as hospitals have them; some overlap, two are constant."""


def rows(seed: int, count: int) -> np.ndarray:
    """New patients."""
    rng = np.random.default_rng(seed)
    return np.column_stack([draw(rng, count) for draw in DRAWS.values()])


TRAINED = rows(0, 80)
SCHEMA = Schema(
    tuple(
        KnownColumn(name, (), quantiles_of(column))
        for name, column in zip(DRAWS, TRAINED.T, strict=True)
    )
)
PLACE = {name: place for place, name in enumerate(DRAWS)}


def exchanged(x: np.ndarray, one: str, other: str) -> np.ndarray:
    """The same rows, two columns swapped."""
    order = np.arange(x.shape[1])
    order[[PLACE[one], PLACE[other]]] = PLACE[other], PLACE[one]
    return x[:, order]


def test_swapped_columns_are_refused_also_where_ranges_overlap(golden: Golden) -> None:
    for one, other in (("age", "pressure"), ("lactate", "cells"), ("crp", "weight")):
        for seed, count in ((1, 1000), (2, 100), (3, 30)):
            with raises("E302", f"`{one}`", f"`{other}`") as refusal:
                SCHEMA.check(exchanged(rows(seed, count), one, other), "x")
    golden(refusal.value)


def test_swapped_columns_in_one_range_are_warned_of(golden: Golden) -> None:
    with warns("W308", "`age`", "`weight`") as told:
        SCHEMA.check(exchanged(rows(1, 300), "age", "weight"), "x")
    golden(next(each.message for each in told if "swapped" in str(each.message)))


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.filterwarnings("ignore:W308")
def test_a_few_rows_are_refused_where_all_are_strange_in_both_columns(count: int) -> None:
    x = np.tile(np.median(TRAINED, axis=0), (count, 1))
    with raises("E302", "`lactate`", "`pressure`"):
        SCHEMA.check(exchanged(x, "lactate", "pressure"), "x")
    # A patient of 101 years, whose age could be a pressure, is none.
    x[0, PLACE["age"]] = 101
    SCHEMA.check(x, "x")


def heard(x: np.ndarray) -> list[str]:
    """What is said of rows, none of which is refused."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", MasqueradeWarning)
        SCHEMA.check(x, "x")
    return [str(each.message) for each in found]


@pytest.mark.parametrize(("count", "files"), [(1, 2000), (5, 40), (20, 40), (300, 40)])
def test_new_patients_are_no_swapped_columns(count: int, files: int) -> None:
    for seed in range(1, files):
        assert not [text for text in heard(rows(seed, count)) if "swapped" in text]


def changed(name: str, change: Callable[[np.ndarray], np.ndarray], count: int) -> np.ndarray:
    x = rows(5, count)
    x[:, PLACE[name]] = change(x[:, PLACE[name]])
    return x


@pytest.mark.parametrize("count", [1, 9, 10, 300])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        # An old hospital, another unit, a ward that is new, flags that nobody had.
        ("age", lambda v: v * 0 + 95),
        ("age", lambda v: v + 25),
        ("lactate", lambda v: v * 9),
        ("weight", lambda v: v * 2.2),
        ("ward", lambda v: v * 0 + 4),
        ("none", lambda v: v + 1),
        ("all", lambda v: v - 1),
    ],
)
def test_a_column_that_differs_alone_is_no_swapped_one(
    name: str, change: Callable[[np.ndarray], np.ndarray], count: int
) -> None:
    assert not [text for text in heard(changed(name, change, count)) if "swapped" in text]


def test_constant_columns_that_change_are_no_swapped_ones() -> None:
    x = changed("none", lambda v: v + 1, 50)
    x[:, PLACE["all"]] = 0
    assert not [text for text in heard(x) if "swapped" in text]
    assert [text.split("`")[1] for text in heard(x)][-2:] == ["none", "all"]


def test_rows_of_one_kind_are_answered() -> None:
    """Ten windows of one activity are all alike, and in the range of training."""
    x = rows(5, 400)
    same = x[np.argsort(x[:, PLACE["crp"]])[150:170]]
    assert not [text for text in heard(same) if "swapped" in text]


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    # A quarter of 8 values is at most 1, whereas training had a share of 0.5 there.
    known = KnownColumn("a", (), (0.0, 1.0, 2.0))
    assert known.distance(np.array([0, 0.5, 1.5, 1.5, 1.5, 1.5, 1.5, 2])) == 0.25
    # Half are beyond the largest.
    assert known.distance(np.array([0, 1, 5, 5])) == 0.5
    assert known.distance(np.array([9.0])) == 1
    # Of values that are mostly alike, quantiles say no more.
    flags = np.array([0.0] * 95 + [1.0] * 5)
    assert KnownColumn("a", (), quantiles_of(flags)).distance(flags) == 0
    assert KnownColumn("a", (), quantiles_of(flags)).distance(1 - flags) == pytest.approx(0.85)


def test_rows_of_which_nothing_is_known_are_refused(golden: Golden) -> None:
    schema = Schema((KnownColumn("a", (), (0.0, 9.0)), KnownColumn("b", ("x", "y"))), impute=True)
    schema.check(np.array([[1, np.nan], [np.nan, 1]]), "x")
    with raises("E302", "1 of 2", "row 1") as refusal:
        schema.check(np.array([[1, np.nan], [np.nan, np.nan]]), "x")
    golden(refusal.value)
