"""Robust rules, against their definitions spelled out coordinate by coordinate."""

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from masquerade.core import average
from masquerade.core.aggregation import RULES, Aggregation
from masquerade.core.part import Axis, Blocks, Grain, Part
from masquerade.core.round import Cohort
from tests.core.by_hand import ByHand

quick = settings(deadline=None, max_examples=60)
SHAPE = (2, 3)
GRAINS: tuple[Grain | None, ...] = (None, Axis(0), Axis(1), Blocks((1, 2, 3)), Blocks((6,)))


@dataclass(frozen=True)
class Case:
    """What clients send of two tensors, one of them whole, and what the server had."""

    part: Part
    weights: Tensor
    old: dict[str, Tensor]
    how: dict[str, Any]
    absent: Any
    least: int

    def reduced(self, by: type[Aggregation], order: list[int] | None = None) -> dict[str, Tensor]:
        part, weights = self.part, self.weights
        if order is not None:
            values, keep = (
                {name: each[order] for name, each in tree.items()}
                for tree in (part.values, part.keep)
            )
            part, weights = replace(part, values=values, keep=keep), weights[order]
        return by(**self.how).reduce(part, weights, self.old, self.absent, self.least)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    clients = draw(st.integers(1, 7))
    random = draw(st.randoms(use_true_random=False))
    grain, bits = draw(st.sampled_from(GRAINS)), draw(st.booleans())

    def numbers(*shape: int) -> Tensor:
        # Sums of squares of whole numbers are exact, in whatever order.
        flat = [float(random.randint(-9, 9)) for _ in range(math.prod(shape))]
        return torch.tensor(flat).reshape(shape)

    old = {"w": numbers(*SHAPE), "v": numbers(2), "n": numbers(1).long()}
    values = {"w": numbers(clients, *SHAPE), "v": numbers(clients, 2)}
    values["n"] = numbers(clients, 1).long()
    if bits:
        values["b"], old["b"] = numbers(clients, 4) > 0, torch.full((4,), -1.0)
    wide = SHAPE if grain is None else grain.bits(torch.Size(SHAPE))
    if isinstance(grain, Blocks):
        wide = torch.Size([len(grain.sizes)])
    keep = {"w": numbers(clients, *wide) > draw(st.integers(-9, 8))}
    return Case(
        Part(values, keep, {} if grain is None else {"w": grain}),
        torch.tensor([random.randint(0, 3) for _ in range(clients)]),
        old,
        {
            "rule": draw(st.sampled_from(RULES)),
            "trim": draw(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.49])),
            "clip_updates": draw(st.sampled_from([0.0, 1.0, 1.5])),
            "min_contributors": draw(st.integers(1, 3)),
        },
        draw(st.sampled_from(["skip", "zero"])),
        draw(st.integers(1, 2)),
    )


def assert_same_bits(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert value.dtype is wanted[name].dtype
        assert value.tolist() == wanted[name].tolist(), name


@given(cases())
@quick
def test_every_rule_is_its_definition(case: Case) -> None:
    assert_same_bits(case.reduced(Aggregation), case.reduced(ByHand))


@pytest.mark.drill
@given(cases())
@settings(deadline=None, max_examples=5000)
def test_every_rule_is_its_definition_in_thousands_of_cases(case: Case) -> None:
    assert_same_bits(case.reduced(Aggregation), case.reduced(ByHand))


@given(cases(), st.randoms(use_true_random=False))
@quick
def test_the_order_of_clients_is_irrelevant(case: Case, random: Random) -> None:
    order = list(range(len(case.weights)))
    random.shuffle(order)
    assert_same_bits(case.reduced(Aggregation, order), case.reduced(Aggregation))


@given(cases())
@quick
def test_the_defaults_are_the_plain_mean(case: Case) -> None:
    found = Aggregation().reduce(case.part, case.weights, case.old, case.absent, case.least)
    assert_same_bits(found, average(case.part, case.weights, case.old, case.absent, case.least))


def test_a_cohort_averages_by_samples_or_by_other_weights() -> None:
    part, old = Part({"w": torch.tensor([[1.0], [5.0]])}), {"w": torch.zeros(1)}
    cohort = Cohort(torch.arange(2), torch.tensor([3, 1]), 2, 2)
    assert cohort.average(part, old)["w"].tolist() == [2.0]
    assert cohort.average(part, old, torch.tensor([1, 1]))["w"].tolist() == [3.0]
    ruled = replace(cohort, aggregation=Aggregation(min_contributors=3))
    assert ruled.average(part, old)["w"].tolist() == [0.0]


def test_a_minority_of_contributors_moves_no_median_beyond_the_honest_values() -> None:
    # Of five contributors two are false; the third client's value outside its mask is nobody's.
    values = torch.tensor([[1.0, 1e38], [2.0, 4.0], [1e38, 6.0], [3.0, -1e38], [-1e38, 5.0]])
    found = Aggregation("median").reduce(Part({"w": values}), torch.ones(5), {"w": torch.zeros(2)})[
        "w"
    ]
    assert found.tolist() == [2.0, 5.0]
    trimmed = Aggregation("trimmed_mean", trim=0.2)
    found = trimmed.reduce(Part({"w": values}), torch.ones(5), {"w": torch.zeros(2)})["w"]
    # One is left out at either end: (1 + 2 + 3) / 3, and (4 + 5 + 6) / 3.
    assert found.tolist() == [2.0, 5.0]


def test_bits_are_decided_by_a_majority_and_a_tie_keeps_what_was_there() -> None:
    bits = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    old = {"b": torch.full((3,), -1.0)}
    rule = Aggregation("median", clip_updates=1.0)
    assert rule.reduce(Part({"b": bits}), torch.ones(3), old)["b"].tolist() == [1, 1, 0]
    assert rule.reduce(Part({"b": bits[:2]}), torch.ones(2), old)["b"].tolist() == [1, -1, 0]


def test_zeros_have_one_sign_whatever_the_order() -> None:
    part = Part({"w": torch.tensor([[-0.0], [0.0], [-0.0]])})
    found = Aggregation("median").reduce(part, torch.ones(3), {"w": torch.ones(1)})["w"]
    assert torch.equal(found.view(torch.int32), torch.zeros(1).view(torch.int32))


def test_clipping_scales_the_whole_update_and_reads_what_is_held_alone() -> None:
    # Distances from 1, root mean square over what each holds: 1, 1 and 500; the median is 1.
    values = {
        "w": torch.tensor([[2.0, math.nan], [0.0, 2.0], [1 + 500 * 2**0.5, 1.0]]),
        "v": torch.tensor([[0.0], [2.0], [1.0]]),
        "n": torch.tensor([[7], [7], [10**9]]),
    }
    keep = {"w": torch.tensor([[True, False], [True, True], [True, False]])}
    old = {"w": torch.ones(2), "v": torch.ones(1), "n": torch.tensor([7])}
    rule = Aggregation(clip_updates=1.0)
    found = rule.reduce(Part(values, keep), torch.ones(3), old)
    # The third client's change, (500 √2, 0), gets the root mean square 1: it becomes (√2, 0).
    assert found["w"].tolist() == pytest.approx([(2 + 0 + 1 + math.sqrt(2)) / 3, 2.0])
    assert found["v"].tolist() == [1.0]
    assert found["n"].tolist() == [round((7 + 7 + 10**9) / 3)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("huge", [1e4, 1e38, 1e300])
def test_an_update_that_is_too_long_by_far_is_as_if_it_was_not_there(
    rule: str, huge: float
) -> None:
    """Scaled down it would be one number, and beside it a vote for what was there."""
    values = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [1.0, huge]], dtype=torch.float64)
    old, counts = {"w": torch.zeros(2, dtype=torch.float64)}, torch.tensor([1, 2, 3, 9])
    by = Aggregation(rule, trim=0.25, clip_updates=1.0, min_contributors=4)
    assert by.reduce(Part({"w": values}), counts, old)["w"].tolist() == [0.0, 0.0]
    by = replace(by, min_contributors=1)
    alone = by.reduce(Part({"w": values[:3]}), counts[:3], old)["w"]
    assert torch.equal(by.reduce(Part({"w": values}), counts, old)["w"], alone)


@pytest.mark.parametrize("huge", [1e200, 1.7e308])
def test_no_size_of_a_number_makes_a_clipped_update_infinite(huge: float) -> None:
    values = torch.tensor([[1.0], [2.0], [-huge]], dtype=torch.float64)
    old = {"w": torch.full((1,), huge / 2, dtype=torch.float64)}
    found = Aggregation(clip_updates=1.0).reduce(Part({"w": values}), torch.ones(3), old)["w"]
    assert bool(found.isfinite().all())
