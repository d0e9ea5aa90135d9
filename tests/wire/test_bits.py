"""Strings of bits: the length is a function of counts, near the entropy, and always enough."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.errors import MasqueradeError
from masquerade.wire import bits
from tests.messages import Golden
from tests.support import raises

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.48, 0.5)


def arranged(count: int, ones: int, order: str) -> bits.Bits:
    """So many ones: first, last, evenly, in the middle, or at random."""
    places = {
        "first": np.arange(ones),
        "last": np.arange(count - ones, count),
        "even": np.arange(ones) * count // max(1, ones),
        "middle": np.arange(ones) + (count - ones) // 2,
        "random": np.random.default_rng(count + ones).permutation(count)[:ones],
    }[order]
    found = np.zeros(count, dtype=bool)
    found[places] = True
    return found


def entropy(count: int, ones: int) -> float:
    p = ones / count
    return -(ones * math.log2(p) + (count - ones) * math.log2(1 - p)) if 0 < p < 1 else 0.0


def read_back(data: bytes, count: int) -> bits.Bits:
    ones = int.from_bytes(data[: bits.width(count)], "little")
    form, size = bits.form(count, ones)
    assert len(data) == bits.width(count) + size
    return bits.read(form, data[bits.width(count) :], count, ones)


@given(st.lists(st.booleans(), max_size=300))
@settings(deadline=None, max_examples=200)
def test_bits_come_back(given_bits: list[bool]) -> None:
    found = np.array(given_bits, dtype=bool)
    assert np.array_equal(read_back(bits.write(found), len(found)), found)


@pytest.mark.parametrize("order", ["first", "last", "even", "middle", "random"])
def test_the_coder_never_needs_more_than_the_counts_allow(order: str) -> None:
    """Whatever the order: the length is a bound and not a mean."""
    for count in (2000, 70_000):
        for ones in (1, 3, 20, count // 100, count // 7, count // 2 - 9, count - 30, count):
            found = arranged(count, ones, order)
            _, size = bits.form(count, ones)
            coded = bits.code(found, ones, bits.coded_length(count, ones))
            assert np.array_equal(bits.decoded(coded, count, ones), found)
            assert np.array_equal(read_back(bits.write(found), count), found)
            assert size <= len(coded)


def test_the_coder_divides_its_frequencies_as_the_costs_say() -> None:
    """The state after a single one is the frequency of zeros."""
    for level in (*range(1, 65_536, 97), 2, 3, 32_768, 65_534, 65_535):
        coder, model = bits.coder_of(1 << 16, level)
        coder.encode_reverse(np.array([1], dtype=np.int32), model)
        (zero,) = coder.get_compressed().tolist()
        assert bits.symbol_costs()[1][level] == math.ceil(2**20 * math.log2(2**24 / zero))


def test_masks_are_within_two_percent_of_their_entropy() -> None:
    """A million of them, the bar of `bench/wire.py`; the length needs no encoding."""
    for share in SHARES:
        ones = int(share * 1_000_000)
        size = bits.width(1_000_000) + bits.form(1_000_000, ones)[1]
        assert entropy(1_000_000, ones) <= 8 * size <= 1.02 * entropy(1_000_000, ones)


def test_one_percent_of_changes_costs_a_twelfth_of_a_bit() -> None:
    assert 8 * (bits.width(10**6) + bits.form(10**6, 10**4)[1]) <= 0.083 * 10**6


def test_each_form_is_chosen_where_it_is_shortest() -> None:
    assert bits.form(1000, 500) == (bits.PACKED, 125)
    assert bits.form(1000, 2) == (bits.LISTED, 4)
    form, size = bits.form(1000, 100)
    assert form == bits.CODED
    assert size < 125
    assert bits.form(1000, 0) == (bits.LISTED, 0)
    assert bits.form(0, 0) == (bits.LISTED, 0)


def test_the_length_of_coded_bits_is_part_of_the_format() -> None:
    """Both ends reckon it: who reckons another reads nothing that was written before."""
    assert sum(bits.coded_length(count, count // 5) for count in range(5, 3000)) == 424_132
    assert sum(bits.coded_length(count, count // 2) for count in range(5, 3000)) == 581_080


def test_rare_ones_are_listed_or_coded_whatever_their_probability() -> None:
    """It is rounded to 1 of 65,536 where it is smaller, and to 65,535 where it is larger."""
    assert bits.form(10**6, 3) == (bits.LISTED, 9)
    for count, ones in ((10**6, 3), (10**8, 1000), (10**8, 10**8 - 1000), (10**9, 1)):
        several = bits.length(torch.tensor([count]), torch.tensor([ones]))
        assert several.tolist() == [bits.form(count, ones)[1]]
    large = [1 << 8 * place for place in range(8)]
    assert bits.widths(torch.tensor(large)).tolist() == [bits.width(each) for each in large]


@given(st.integers(0, 1 << 33), st.floats(0, 1))
def test_many_lengths_are_the_lengths_of_each(count: int, share: float) -> None:
    several = torch.tensor([[count, count // 3], [count % 300, count % 7]])
    ones = (several * share).long()
    found = bits.length(several, ones)
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert int(found[place]) == bits.form(int(several[place]), int(ones[place]))[1]
    assert bits.widths(several).tolist() == [[bits.width(int(n)) for n in row] for row in several]


def refusal(form: int, data: bytes, count: int, ones: int) -> MasqueradeError:
    with raises("E605") as caught:
        bits.read(form, data, count, ones)
    return caught.value


def test_what_no_writer_writes_is_refused(golden: Golden) -> None:
    golden(refusal(bits.PACKED, b"\x1f", 4, 4))
    golden(refusal(bits.PACKED, b"\x07", 4, 2))
    golden(refusal(bits.LISTED, b"\x04\x04", 200, 2))
    golden(refusal(bits.LISTED, b"\x05\x04", 200, 2))
    golden(refusal(bits.LISTED, b"\x05\xc8", 200, 2))
    found = arranged(1000, 100, "random")
    data = bits.write(found)[2:]
    # Words after the last one are taken for padding, so a larger number leaves something over.
    golden(refusal(bits.CODED, data[:-1] + b"\x01", 1000, 100))
    golden(refusal(bits.CODED, b"\xff" * len(data), 1000, 100))
    # No words are a state of zero, from which zeros come for ever.
    golden(refusal(bits.CODED, bytes(len(data)), 1000, 100))
    assert np.array_equal(bits.read(bits.CODED, data, 1000, 100), found)
