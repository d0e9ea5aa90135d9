"""Stretches of steps: as wide as clients have steps, and every client gets all of its own."""

from hypothesis import given
from hypothesis import strategies as st

from masquerade.engine.batched import stretches

LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=9).map(
    lambda lengths: sorted(lengths, reverse=True)
)


@given(LENGTHS, st.booleans())
def test_every_client_is_there_for_all_of_its_steps(lengths: list[int], halves: bool) -> None:
    taken = [0] * len(lengths)
    end = 0
    for width, first, last in stretches(lengths, halves):
        assert first == end
        end = last
        for place in range(width):
            taken[place] += max(0, min(lengths[place], last) - first)
    assert taken == lengths


@given(LENGTHS)
def test_nobody_idles_where_any_width_will_do(lengths: list[int]) -> None:
    steps = sum(width * (last - first) for width, first, last in stretches(lengths, False))
    assert steps == sum(lengths)


@given(LENGTHS)
def test_halves_have_few_widths_and_idle_less_than_half(lengths: list[int]) -> None:
    found = stretches(lengths, True)
    assert len({width for width, _, _ in found}) <= len(bin(len(lengths))) - 1
    for width, first, _ in found:
        busy = sum(length > first for length in lengths)
        # More than the next narrower width holds, or that one would have been taken.
        assert busy > -(-width // 2) or width == 1


def test_a_hand_worked_example() -> None:
    assert stretches([5, 3, 3, 1], False) == [(4, 0, 1), (3, 1, 3), (1, 3, 5)]
    # Widths 4, 2 and 1: four until only two are left, two until only one is.
    assert stretches([5, 3, 3, 1], True) == [(4, 0, 3), (1, 3, 5)]
