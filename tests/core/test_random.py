"""Randomness as data: the same bits for integers, tensors and maps, and good enough numbers."""

import zlib
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.core.random import Label, choose, draw, fold, normal, order, uniform

quick = settings(deadline=None, max_examples=50)
keys = st.integers(-(2**63), 2**63 - 1)
STEP = 0x9E3779B97F4A7C15
"""2⁶⁴ divided by the golden ratio, made odd."""
words = st.one_of(st.integers(-(2**31), 2**62), st.text(max_size=8))


def test_keys_and_draws_never_change() -> None:
    """Stored runs are continued by later versions, so these numbers are for ever."""
    assert fold(1, "batches", 3) == -8357856207319494021
    assert draw(1, 3).tolist() == [1291879596727483695, 7017959869344362164, -2826548557368879848]


def _mix(value: int) -> int:
    """The finalizer of MurmurHash3 on Python's unbounded integers."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = (value ^ (value >> 33)) * factor % 2**64
    return value ^ (value >> 33)


@given(keys, st.integers(1, 5))
@quick
def test_draws_are_a_hashed_counter(key: int, count: int) -> None:
    start = _mix(key % 2**64)
    expected = [_mix((start + i * STEP) % 2**64) for i in range(1, count + 1)]
    assert [value % 2**64 for value in draw(key, count).tolist()] == expected


@given(keys, words)
@quick
def test_a_key_and_a_word_are_hashed_in_turn(key: int, word: int | str) -> None:
    number = zlib.crc32(word.encode()) if isinstance(word, str) else word
    expected = _mix((_mix((key + STEP) % 2**64) + number) % 2**64)
    assert fold(key, word) % 2**64 == expected


@given(keys, words, words)
@quick
def test_integers_and_tensors_make_the_same_keys(
    key: int, first: int | str, then: int | str
) -> None:
    expected = fold(key, first, then)
    assert int(fold(torch.tensor(key), first, then)) == expected
    as_tensor = then if isinstance(then, str) else torch.tensor(then)
    assert int(fold(key, first, as_tensor)) == expected
    assert int(fold(torch.tensor(key), first, as_tensor)) == expected


@given(keys, st.integers(0, 2**31))
@quick
def test_a_key_is_a_64_bit_integer_of_its_words_alone(key: int, word: int) -> None:
    made = fold(key, word)
    assert -(2**63) <= made < 2**63
    assert made == fold(key, word)


def test_keys_of_different_words_differ() -> None:
    found = {
        fold(seed, "client", id, round)
        for seed in range(5)
        for id in range(40)
        for round in range(40)
    }
    assert len(found) == 5 * 40 * 40
    assert fold(1, "a", "b") != fold(1, "b", "a")
    assert fold(1, 2, 3) != fold(1, 3, 2)
    assert fold(1, "a") != fold(2, "a")
    assert fold(1) == 1


def test_a_tensor_of_words_makes_a_key_each() -> None:
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    made = fold(9, "client", ids, "step")
    assert isinstance(made, torch.Tensor)
    assert made.tolist() == [[fold(9, "client", int(id), "step") for id in row] for row in ids]


@given(keys, st.integers(1, 30), st.integers(0, 30))
@quick
def test_more_draws_begin_with_the_fewer(key: int, few: int, more: int) -> None:
    assert torch.equal(draw(key, few + more)[:few], draw(key, few))


@given(keys, st.integers(1, 40))
@quick
def test_an_order_is_a_permutation(key: int, count: int) -> None:
    assert sorted(order(key, count).tolist()) == list(range(count))


@given(keys, st.sets(st.integers(0, 99), min_size=1), st.integers(0, 100))
@quick
def test_a_choice_is_a_sorted_subset(key: int, things: set[int], count: int) -> None:
    chosen = choose(key, torch.tensor(sorted(things)), count).tolist()
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= things
    assert len(chosen) == min(count, len(things))


def test_everybody_is_chosen_equally_often() -> None:
    chosen = torch.cat([choose(fold(1, number), torch.arange(5), 2) for number in range(2000)])
    # 2000 × 2/5 = 800, with a standard deviation of √(2000 × 2/5 × 3/5) ≈ 22.
    assert (chosen.bincount() - 800).abs().max() < 5 * 22


def test_all_orders_of_three_come_equally_often() -> None:
    orders = order(torch.arange(6000), 3)
    counts = Counter(map(tuple, orders.tolist()))
    assert len(counts) == 6
    # 6000 / 6 = 1000, with a standard deviation of √(6000 × 1/6 × 5/6) ≈ 29.
    assert all(abs(count - 1000) < 5 * 29 for count in counts.values())


@pytest.mark.parametrize("from_one_key", [True, False])
def test_uniform_numbers_have_the_moments_of_the_interval(from_one_key: bool) -> None:
    count = 100_000
    numbers = uniform(7, (count,), torch.float64)
    if not from_one_key:
        # Neighboring keys, as those of clients and rounds are, must not give related numbers.
        numbers = uniform(torch.arange(count), (1,), torch.float64).flatten()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    # Five standard errors: σ = 1/√12 of the mean, about 0.0745/√n of the variance.
    assert abs(numbers.mean() - 1 / 2) < 5 * 0.2887 / count**0.5
    assert abs(numbers.var() - 1 / 12) < 5 * 0.0745 / count**0.5
    centered = numbers - 0.5
    lagged = (centered[1:] * centered[:-1]).mean() * 12
    assert abs(lagged) < 5 / count**0.5


def test_every_bit_of_a_draw_is_fair() -> None:
    drawn = draw(3, 20_000)
    shares = torch.stack([(drawn >> bit & 1).double().mean() for bit in range(64)])
    assert (shares - 0.5).abs().max() < 5 * 0.5 / 20_000**0.5


def test_normal_numbers_have_the_moments_of_the_bell() -> None:
    count = 100_000
    numbers = normal(7, (count,), torch.float64)
    assert numbers.isfinite().all()
    # Standard errors: 1/√n of the mean, √2/√n of the second moment, √96/√n of the fourth.
    for power, expected, spread in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        assert abs(numbers.pow(power).mean() - expected) < 5 * spread / count**0.5


def test_single_and_double_precision_hold_the_same_uniform_numbers() -> None:
    single, double = (uniform(5, (4, 3), dtype) for dtype in (torch.float32, torch.float64))
    assert single.dtype is torch.float32
    assert torch.equal(single.double(), double)


def test_shapes_follow_the_keys() -> None:
    many = fold(1, torch.arange(6).reshape(2, 3))
    assert draw(many, 4).shape == (2, 3, 4)
    assert uniform(many, (5, 7)).shape == (2, 3, 5, 7)
    assert normal(many, ()).shape == (2, 3)
    assert torch.equal(uniform(many, (5,))[1, 2], uniform(fold(1, 5), (5,)))


def test_mapping_over_clients_changes_no_bit() -> None:
    clients = torch.as_tensor(fold(1, "client", torch.arange(4)))

    def all_kinds(key: torch.Tensor) -> tuple[torch.Tensor, ...]:
        step = fold(key, "step", 3)
        return torch.as_tensor(step), draw(step, 2), uniform(step, (2, 2)), order(step, 5)

    mapped = torch.func.vmap(all_kinds)(clients)
    single = zip(*(all_kinds(key) for key in clients), strict=True)
    for batched, ones in zip(mapped, single, strict=True):
        assert torch.equal(batched, torch.stack(ones))
    close = torch.func.vmap(lambda key: normal(key, (3,)))(clients)
    torch.testing.assert_close(close, torch.stack([normal(key, (3,)) for key in clients]))


LABELS = {
    "ADAPT": "adapt",
    "ANGLE": "angle",
    "AVAILABLE": "available",
    "BATCHES": "batches",
    "BUDGETS": "budgets",
    "CLIENT": "client",
    "COHORT": "cohort",
    "DOWNLOAD": "down",
    "DROP": "drop",
    "DROPOUT": "dropout",
    "GATE": "gate",
    "INITIAL": "initial",
    "LEVEL": "level",
    "MESSAGE": "wire",
    "NOVEL": "novel",
    "RADIUS": "radius",
    "REFERENCE": "reference",
    "SETUP": "hello",
    "STEP": "step",
    "TEST_ORDER": "test_order",
    "TRAIN": "train",
    "UPLOAD": "up",
}
"""As every published figure was drawn with them."""


def test_labels_of_keys_are_frozen() -> None:
    assert {label.name: label.value for label in Label} == LABELS
    for label in Label:
        assert fold(7, label) == fold(7, LABELS[label.name])
