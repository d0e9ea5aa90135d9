"""Preprocessing of tables: by hand, and its median against numpy's."""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from masquerade.core import Task
from masquerade.core.features import Feature
from masquerade.core.preprocess import Unfitted
from masquerade.core.table import FittedTabular, Tabular, check_complete
from tests.support import network, raises
from tests.tables.example import COLUMNS, NAN, WIDTH, linear, table

# Six rows of a number, a category of three, and a constant; two cells are missing.
#
#   age   2, 4, 4, 10, –, 100     ward  a, b, –, b, c, b     one  7 everywhere
#
# Known ages: n = 5, Σ = 120, mean 24; squared deviations 484 + 400 + 400 + 196 + 5776 = 7256,
# variance 1451.2; median 4, most frequent 4. The most frequent ward is b.
SIX = (Feature("age"), Feature("ward", ("a", "b", "c")), Feature("one"))
ROWS = torch.tensor(
    [[2, 0, 7], [4, 1, 7], [4, NAN, 7], [10, 1, 7], [NAN, 2, 7], [100, 1, 7]],
    dtype=torch.float32,
)
STD = 1451.2**0.5


def fitted(
    impute: str, x: Tensor = ROWS, cut: int = 2, features: Sequence[Feature] = SIX
) -> FittedTabular:
    """What clients' sums decide, in as many exchanges as it takes."""
    found = Tabular(features, impute)
    while isinstance(found, Unfitted):
        found = found.fitted(reduce(found.merged, map(found.statistics, torch.split(x, cut))))
    return found


def fill(impute: str, values: Sequence[float], cut: int = 100) -> float:
    """What stands in for a missing value of one column."""
    made = fitted(impute, torch.tensor(values, dtype=torch.float32)[:, None], cut, [Feature("n")])
    assert made.fill is not None
    return float(made.fill)


@pytest.mark.parametrize(("impute", "age"), [("mean", 24), ("median", 4), ("most_frequent", 4)])
def test_six_rows_by_hand(impute: str, age: float) -> None:
    made = fitted(impute)
    assert made.mean.tolist() == [24, 7]
    assert made.std.tolist() == pytest.approx([STD, 1])
    assert made.fill is not None
    assert made.fill.tolist() == [age, 1, 7]
    expected = [
        # age, one, and then a, b, c
        [(2 - 24) / STD, 0, 1, 0, 0],
        [(4 - 24) / STD, 0, 0, 1, 0],
        [(4 - 24) / STD, 0, 0, 1, 0],
        [(10 - 24) / STD, 0, 0, 1, 0],
        [(age - 24) / STD, 0, 0, 0, 1],
        [(100 - 24) / STD, 0, 0, 1, 0],
    ]
    torch.testing.assert_close(made(ROWS), torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)
    assert made.width == Tabular(SIX).width == 5


def test_clients_send_no_more_than_is_needed() -> None:
    rows = ROWS.nan_to_num()
    sent = {impute: set(Tabular(SIX, impute).statistics(rows)) for impute in ("", "mean", "median")}
    assert sent[""] == {"count", "sum", "deviations"}
    assert sent["mean"] == sent["median"] == sent[""] | {"categories"}
    assert set(Tabular([Feature("age")], "mean").statistics(rows[:, :1])) == sent[""]
    first = Tabular(SIX, "median")
    again = first.fitted(first.statistics(rows))
    assert isinstance(again, Unfitted)
    assert set(again.statistics(rows)) == {"histogram", "fractions"}


def test_what_nobody_knows_is_zero_and_the_first_category() -> None:
    made = fitted("median", torch.full((4, 3), NAN))
    assert made.fill is not None
    assert made.fill.tolist() == [0, 0, 0]
    assert made(torch.full((1, 3), NAN)).tolist() == [[0, 0, 1, 0, 0]]


def test_columns_of_one_kind_alone_will_do() -> None:
    words = Tabular([Feature("ward", ("a", "b"))], "mean")
    x = torch.tensor([[1.0], [NAN]])
    assert words.fitted(words.statistics(x))(x).tolist() == [[0, 1], [0, 1]]
    numbers = Tabular([Feature("age")])
    x = torch.tensor([[1.0], [3.0]])
    assert numbers.fitted(numbers.statistics(x))(x).tolist() == [[-1], [1]]


floats = (
    st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.integers(-300, 300)
    | st.floats(-1, 1, width=32)
)


@settings(max_examples=30, deadline=None)
@given(st.lists(floats, min_size=1, max_size=40), st.integers(1, 40))
@example([3.4e38, 3.4028e38, 3.4e38], 1)
@example([-0.0, 0.0, -0.0, 5.0, 6.0], 2)
@example([1.0, 1.0 + 2**-9, 1.0 + 2**-8], 1)
@example([-7.0] * 3 + [9.0] * 3, 4)
@example([1e-30, -1e30], 1)
def test_the_median_is_numpys_to_within_the_stated_error(values: list[float], cut: int) -> None:
    found, ordered = fill("median", values, cut), np.sort(np.float32(values).astype(np.float64))
    middle = ordered[[(len(values) - 1) // 2, len(values) // 2]]
    mean, std = ordered.mean(), ordered.std()
    off = np.maximum(2**-11 * abs(middle - mean), 2**-25 * std).mean()
    # Sums are rounded by themselves.
    assert abs(found - middle.mean()) <= off + 1e-12 * abs(ordered).max()
    if (ordered == ordered.round()).all() and (abs(middle - mean) < 1024).all():
        assert found == middle.mean()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-250, 250), min_size=1, max_size=30), st.integers(-5000, 5000))
def test_the_most_frequent_whole_number_is_exact_and_the_least_of_several(
    x: list[int], near: int
) -> None:
    values, counts = np.unique(x, return_counts=True)
    assert fill("most_frequent", [near + each for each in x]) == near + values[counts.argmax()]


@pytest.mark.parametrize("impute", ["median", "most_frequent"])
def test_what_stands_in_is_near_in_units_of_the_spread(impute: str) -> None:
    # Years, half of which are one and half the other; and a body's temperature in Kelvin.
    assert fill(impute, [2021.0] * 3 + [2022.0] * 2) == 2021
    assert fill(impute, [1e6 + 1] * 3 + [1e6] * 2) == 1e6 + 1
    kelvin = [302.94] * 5 + [309.9, 310.2, 311.6, 302.1]
    assert fill(impute, kelvin) == pytest.approx(302.94, abs=1e-3 * np.std(kelvin))
    assert fill("median", [2021.0, 2022.0]) == 2021.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clients_batched_are_preprocessed_as_one_by_one(dtype: torch.dtype) -> None:
    task = Task(linear().to(dtype), preprocess=Tabular(COLUMNS, "median")).fitted_on(table().x)
    x = table().x[:12].reshape(3, 4, 4)
    mapped = torch.func.vmap(task.inputs)(x)
    assert mapped.dtype is dtype
    assert mapped.isfinite().all()
    assert torch.equal(mapped, torch.stack([task.inputs(one) for one in x]))
    assert mapped.shape[-1] == WIDTH


def test_missing_values_are_refused_with_their_columns() -> None:
    with raises("E302"):
        check_complete(table().x, COLUMNS)
    check_complete(table().x.nan_to_num(), COLUMNS)


def test_other_tables_and_other_words_are_refused() -> None:
    with raises("E202"):
        fitted("mean")(ROWS[:, :2])
    with raises("E202"):
        Task(network(), preprocess=Tabular(SIX)).inputs(ROWS)
    with raises("E201"):
        Tabular(SIX, "mode")
