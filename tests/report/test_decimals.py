"""Decimals: as many as tell figures apart, and no exponent where a person would write none."""

from hypothesis import given
from hypothesis import strategies as st

from masquerade.report.decimals import PLAIN, number_format
from masquerade.report.tables import rows
from masquerade.results import Accuracy, Statistics
from tests.report.invented import result


def shown(values: list[float], spreads: list[float]) -> list[str]:
    form = number_format(values, spreads)
    return [format(value, form) for value in values]


def test_figures_near_5000_keep_what_sets_them_apart() -> None:
    assert shown([4990.12, 5003.44], [12.4, 11.9]) == ["4990", "5003"]
    assert shown([4990.12, 4990.44], [12.4, 11.9]) == ["4990.1", "4990.4"]
    assert shown([4990.12], [0.31]) == ["4990.12"]


def test_small_figures_have_three_digits() -> None:
    assert shown([0.1234, 0.5], []) == ["0.123", "0.500"]
    assert shown([0.0001234], []) == ["0.000123"]
    assert shown([7.0], [5.0]) == ["7.00"]
    assert shown([0.0], []) == ["0"]


def test_noise_behind_the_sixth_digit_is_not_shown() -> None:
    assert shown([4990.0, 4990.0000001], []) == ["4990", "4990"]


@given(
    st.lists(st.floats(1e-3, PLAIN * 0.99), min_size=1, max_size=4),
    st.lists(st.floats(1e-3, 1e3), max_size=3),
)
def test_there_is_no_exponent_below_a_million(values: list[float], spreads: list[float]) -> None:
    assert not [text for text in shown(values, spreads) if "e" in text]


@given(st.floats(1e-4, 1e9), st.floats(1.01, 1.9))
def test_two_figures_that_differ_by_a_hundredth_read_differently(
    value: float, factor: float
) -> None:
    one, other = shown([value, value * factor], [])
    assert one != other


def test_a_table_of_errors_near_5000_tells_rows_apart() -> None:
    def of(mean: float) -> Accuracy:
        return Accuracy(Statistics(mean, 12.4, bottom_decile=mean + 20), better="lower")

    changes = {"metric": "mae", "better": "lower", "per_client": None}
    found = rows(
        [
            result("a", accuracy=of(4990.12), metrics={"rmse": of(5120.4)}, **changes),
            result("b", accuracy=of(4990.44), metrics={"rmse": of(5098.7)}, **changes),
        ]
    )
    assert [row["Own data"] for row in found] == ["4990.1 ± 12.4", "4990.4 ± 12.4"]
    assert [row["Bottom decile"] for row in found] == ["5010.1", "5010.4"]
