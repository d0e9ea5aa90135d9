"""The one reduction, against the definition spelled out coordinate by coordinate."""

import math
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from masquerade.core import average, tree
from masquerade.core.average import votes
from masquerade.core.part import Axis, Blocks, Part

quick = settings(deadline=None, max_examples=50)
Absent = Literal["skip", "zero"]


@dataclass(frozen=True)
class Case:
    """Clients' values, masks and weights, as Python numbers, and what the server had."""

    values: list[list[int]]
    keep: list[list[bool]]
    weights: list[int]
    old: list[int]
    absent: Absent
    least: int

    def found(self, order: list[int] | None = None) -> Tensor:
        order = order or list(range(len(self.values)))
        values, keep, weights = (
            torch.tensor(column)[order] for column in (self.values, self.keep, self.weights)
        )
        part = Part({"w": values.float()}, {"w": keep})
        old = {"w": torch.tensor(self.old, dtype=torch.float32)}
        return average(part, weights, old, absent=self.absent, least=self.least)["w"]

    def expected(self) -> list[float]:
        """The mean over the holders, or what was there."""
        result = []
        for place, old in enumerate(self.old):
            holders = [client for client, keep in enumerate(self.keep) if keep[place]]
            counted = holders if self.absent == "skip" else range(len(self.keep))
            mass = sum(self.weights[client] for client in counted)
            if len(holders) < self.least or mass == 0:
                result.append(float(old))
                continue
            total = sum(self.weights[client] * self.values[client][place] for client in holders)
            result.append(float(Fraction(total, mass)))
        return result


@st.composite
def cases(draw: st.DrawFn) -> Case:
    clients, width = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    numbers = st.integers(-8, 8)

    def grid(cell: st.SearchStrategy[int]) -> list[list[int]]:
        return [[draw(cell) for _ in range(width)] for _ in range(clients)]

    return Case(
        values=grid(numbers),
        keep=[[bool(bit) for bit in row] for row in grid(st.integers(0, 1))],
        weights=[draw(st.integers(0, 4)) for _ in range(clients)],
        old=[draw(numbers) for _ in range(width)],
        absent=draw(st.sampled_from(["skip", "zero"])),
        least=draw(st.integers(1, 3)),
    )


@given(cases())
@quick
def test_average_is_the_mean_over_the_holders(case: Case) -> None:
    assert case.found().tolist() == torch.tensor(case.expected()).tolist()


@given(cases(), st.randoms(use_true_random=False))
@quick
def test_the_order_of_clients_is_irrelevant(case: Case, random: Random) -> None:
    order = list(range(len(case.values)))
    random.shuffle(order)
    assert torch.equal(case.found(order), case.found())


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_private_value_never_reaches_a_shared_coordinate(poison: float) -> None:
    values = torch.tensor([[1.0, poison, poison], [3.0, 5.0, poison]])
    keep = torch.tensor([[True, False, False], [True, True, False]])
    part = Part({"w": values}, {"w": keep})
    weights, old = torch.tensor([1, 1]), {"w": torch.tensor([0.0, 8.0, 9.0])}
    assert average(part, weights, old)["w"].tolist() == [2.0, 5.0, 9.0]
    assert average(part, weights, old, absent="zero")["w"].tolist() == [2.0, 2.5, 9.0]


def test_a_coordinate_with_too_few_holders_keeps_its_bits() -> None:
    # Tenths are not exact and NaN is not equal to itself: only the bits can tell that they stayed.
    old = torch.tensor([0.1, math.nan, -0.0, 1e-45])
    keep = torch.zeros(3, 4, dtype=torch.bool)
    part = Part({"w": torch.full((3, 4), 7.0)}, {"w": keep})
    found = average(part, torch.tensor([1, 2, 3]), {"w": old})["w"]
    assert torch.equal(found.view(torch.int32), old.view(torch.int32))
    one_holds = Part(part.values, {"w": keep.index_fill(0, torch.tensor([1]), True)})
    found = average(one_holds, torch.tensor([1, 2, 3]), {"w": old}, least=2)["w"]
    assert torch.equal(found.view(torch.int32), old.view(torch.int32))
    assert average(one_holds, torch.tensor([1, 2, 3]), {"w": old})["w"].tolist() == [7.0] * 4


def test_weights_of_zero_keep_what_was_there() -> None:
    part = Part({"w": torch.tensor([[5.0], [7.0]])})
    old = {"w": torch.tensor([1.0])}
    assert average(part, torch.tensor([0, 0]), old)["w"].tolist() == [1.0]
    assert average(part, torch.tensor([0, 2]), old)["w"].tolist() == [7.0]


def test_absent_entries_count_as_zeros_when_asked() -> None:
    part = Part(
        {"w": torch.tensor([[6.0], [9.0], [5.0]])}, {"w": torch.tensor([[True], [True], [False]])}
    )
    weights, old = torch.tensor([1, 2, 3]), {"w": torch.tensor([100.0])}
    # Over the holders (1×6 + 2×9) / 3 = 8; with a zero of weight 3 beside them 24 / 6 = 4.
    assert average(part, weights, old)["w"].tolist() == [8.0]
    assert average(part, weights, old, absent="zero")["w"].tolist() == [4.0]


def test_a_part_without_masks_is_averaged_whole() -> None:
    part = Part({"w": torch.tensor([[1.0, 2.0], [3.0, 6.0]]), "s": torch.tensor([1.0, 3.0])})
    old = {"w": torch.zeros(2), "s": torch.tensor(0.0)}
    found = average(part, torch.tensor([3, 1]), old)
    # (3×1 + 1×3) / 4 and (3×2 + 1×6) / 4; the scalar (3×1 + 1×3) / 4.
    assert found["w"].tolist() == [1.5, 3.0]
    assert float(found["s"]) == 1.5


def test_grains_are_spread_before_averaging() -> None:
    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    keep = torch.tensor([[True, False], [True, True]])
    old = {"w": torch.full((2, 2), -1.0)}
    weights = torch.tensor([1, 1])
    rows = average(Part({"w": values}, {"w": keep}, {"w": Axis(0)}), weights, old)["w"]
    assert rows.tolist() == [[3.0, 4.0], [7.0, 8.0]]
    columns = average(Part({"w": values}, {"w": keep}, {"w": Axis(1)}), weights, old)["w"]
    assert columns.tolist() == [[3.0, 6.0], [5.0, 8.0]]
    blocks = average(Part({"w": values}, {"w": keep}, {"w": Blocks((1, 3))}), weights, old)["w"]
    assert blocks.tolist() == [[3.0, 6.0], [7.0, 8.0]]


def test_integers_are_averaged_and_rounded() -> None:
    part = Part({"n": torch.tensor([[3, 0], [4, 1], [4, 0]])})
    found = average(part, torch.tensor([1, 1, 1]), {"n": torch.tensor([0, 0])})["n"]
    # 11/3 = 3.67 and 1/3.
    assert found.dtype is torch.int64
    assert found.tolist() == [4, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_result_has_the_type_of_the_old_values(dtype: torch.dtype) -> None:
    part = Part({"w": torch.ones(2, 3, dtype=dtype)})
    found = average(part, torch.tensor([1, 1]), {"w": torch.zeros(3, dtype=dtype)})["w"]
    assert found.dtype is dtype
    assert found.tolist() == [1.0, 1.0, 1.0]


def test_sums_are_taken_in_double_precision() -> None:
    # In single precision 2²⁵ + 1 − 2²⁵ is 0.
    part = Part({"w": torch.tensor([[2.0**25], [1.0], [-(2.0**25)]])})
    found = average(part, torch.tensor([1, 1, 1]), {"w": torch.zeros(1)})["w"]
    assert found.tolist() == torch.tensor([1 / 3]).tolist()


def test_one_client_is_its_own_average_bit_for_bit() -> None:
    values = torch.tensor([[0.1, -0.7, 1e-30, 3e30]])
    found = average(Part({"w": values}), torch.tensor([7]), {"w": torch.zeros(4)})["w"]
    assert torch.equal(found, values[0])


def test_inputs_are_untouched() -> None:
    part = Part({"w": torch.tensor([[1.0, 2.0]])}, {"w": torch.tensor([[True, False]])})
    weights, old = torch.tensor([2]), {"w": torch.tensor([5.0, 6.0])}
    before = tree.transform(torch.clone, [part, weights, old])
    average(part, weights, old)
    for left, right in zip(tree.leaves(before), tree.leaves([part, weights, old]), strict=True):
        assert torch.equal(left, right)


def test_votes_count_the_holders_of_each_coordinate() -> None:
    keep = torch.tensor([[True, False], [True, True], [True, False]])
    assert votes(keep).tolist() == [3, 1]
