"""Intervals: worked by hand, kept apart by what is paired, and as sure as they say."""

import math

import numpy as np
import pytest

from masquerade.report.intervals import FEWEST, Trained, of_difference, of_mean


def trained(values: np.ndarray, **weights: dict[int, float]) -> Trained:
    """A training whose clients, from 0 on, have these figures."""
    clients = {id: float(value) for id, value in enumerate(values)}
    return Trained(float(np.mean(values)), clients, **weights)


def test_three_seeds_have_students_t() -> None:
    # 80, 82 and 87: mean 83, variance 26 / 2 = 13, t = 4.3027 for two degrees of freedom.
    found = of_mean([Trained(80.0), Trained(82.0), Trained(87.0)])
    half = 4.3027 * math.sqrt(13) / math.sqrt(3)
    assert found is not None
    assert (found.value, found.half, found.by) == (83, pytest.approx(half, rel=1e-4), "seeds")
    assert (found.low, found.high) == pytest.approx((83 - half, 83 + half), rel=1e-4)


def test_methods_are_paired_by_seed() -> None:
    # Seeds differ by tens of points, the methods by 1, 2 and 3: 2 ± 4.3027 · 1 / √3.
    right = {seed: Trained(10.0 * seed) for seed in (1, 2, 3)}
    left = {seed: Trained(11.0 * seed) for seed in (1, 2, 3)}
    found = of_difference(left, right)
    assert found is not None
    assert (found.value, found.half, found.by) == (2, pytest.approx(2.4842, rel=1e-4), "seeds")
    assert found.sign == 0
    # A seed that only one of them has is no pair: two are left, and nobody is listed.
    assert of_difference(left, {1: right[1], 2: right[2], 7: right[3]}) is None


def test_a_lead_over_seeds_is_separated_where_the_interval_leaves_zero() -> None:
    # By 2, 3 and 4: 3 ± 2.4842.
    right = {seed: Trained(10.0 * seed) for seed in (1, 2, 3)}
    left = {seed: Trained(11.0 * seed + 1) for seed in (1, 2, 3)}
    ahead, behind = of_difference(left, right), of_difference(right, left)
    assert ahead is not None
    assert behind is not None
    assert (ahead.sign, behind.sign) == (1, -1)


SPREAD = np.random.default_rng(1).normal(80, 10, 40)
"""Clients that are as different as they are."""


def test_identical_methods_differ_by_nothing() -> None:
    found = of_difference({1: trained(SPREAD)}, {1: trained(SPREAD)})
    assert found is not None
    assert (found.value, found.low, found.high, found.sign) == (0, 0, 0, 0)
    assert found.by == "clients"


def test_what_every_client_gains_is_certain() -> None:
    found = of_difference({1: trained(SPREAD + 3)}, {1: trained(SPREAD)})
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((3, 3, 3))
    assert found.sign == 1


def test_pairs_are_the_same_clients_and_other_pairs_would_be_less_sure() -> None:
    noise = np.random.default_rng(2).normal(1, 1, 40)
    left, right = trained(SPREAD + noise), trained(SPREAD)
    found = of_difference({1: left}, {1: right})
    assert found is not None
    assert found.sign == 1
    # Where clients are taken one for another, what they differ in stays in the difference.
    others = {id: left.clients[(id + 1) % 40] for id in left.clients}
    mistaken = of_difference({1: Trained(left.figure, others)}, {1: right})
    assert mistaken is not None
    assert mistaken.value == pytest.approx(found.value)
    assert mistaken.half > 5 * found.half
    assert mistaken.sign == 0
    # Two intervals beside each other are no better.
    apart = [of_mean([each]) for each in (left, right)]
    assert math.hypot(*(each.half for each in apart if each)) > 5 * found.half


def test_clients_that_only_one_method_has_are_no_pair() -> None:
    left, right = trained(SPREAD + 3), trained(SPREAD)
    fewer = {id: value for id, value in right.clients.items() if id}
    found = of_difference({1: left}, {1: Trained(right.figure, fewer)})
    assert found is not None
    assert found.value == pytest.approx(3)


def test_two_trainings_of_the_same_clients_are_not_twice_as_many_clients() -> None:
    one, two = of_mean([trained(SPREAD)]), of_mean([trained(SPREAD), trained(SPREAD)])
    assert one is not None
    assert two == one


def test_a_client_may_count_by_its_samples() -> None:
    # Half of the clients have 90 and three samples each, the others 50 and one: (270 + 50) / 4.
    values = np.array([90.0, 50.0] * 20)
    weights = {id: 3.0 if id % 2 == 0 else 1.0 for id in range(40)}
    plain, weighted = of_mean([trained(values)]), of_mean([trained(values, weights=weights)])
    assert plain is not None
    assert weighted is not None
    assert (plain.value, weighted.value) == pytest.approx((70, 80))
    assert weighted.low < 80 < weighted.high


@pytest.mark.parametrize("clients", [1, FEWEST - 1])
def test_a_handful_of_clients_says_nothing(clients: int) -> None:
    few, enough = trained(SPREAD[:clients]), trained(SPREAD[:FEWEST])
    assert of_mean([few]) is None
    assert of_mean([few, enough]) is None
    assert of_mean([enough]) is not None


def test_what_nobody_has_has_no_interval() -> None:
    assert of_mean([]) is None
    assert of_mean([Trained(80.0)]) is None
    assert of_difference({1: trained(SPREAD)}, {2: trained(SPREAD)}) is None


def coverage(clients: int, repetitions: int = 400) -> float:
    """How often the interval over normal clients of mean 0 has the 0."""
    rng = np.random.default_rng(3)
    found = [of_mean([trained(rng.normal(0, 1, clients))]) for _ in range(repetitions)]
    return sum(each.sign == 0 for each in found if each) / repetitions


@pytest.mark.parametrize("clients", [FEWEST, 20, 100])
def test_a_bootstrap_covers_as_often_as_it_says(clients: int) -> None:
    assert coverage(clients) == pytest.approx(0.95, abs=0.025)


def test_students_t_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    found = [of_mean([Trained(value) for value in rng.normal(0, 1, 3)]) for _ in range(1000)]
    assert sum(each.sign == 0 for each in found if each) / 1000 == pytest.approx(0.95, abs=0.02)


def test_a_client_without_a_figure_in_one_seed_keeps_the_others_in_their_places() -> None:
    rng = np.random.default_rng(3)
    values = dict(enumerate(rng.normal(70, 10, 30)))
    whole = Trained(70.0, values)
    # The same clients in both trainings are no more clients, also where the first one is missing.
    partly = Trained(70.0, {id: value for id, value in values.items() if id})
    alone, both = of_mean([whole]), of_mean([whole, partly])
    assert alone is not None
    assert both is not None
    assert both.high - both.low == pytest.approx(alone.high - alone.low, rel=0.1)
