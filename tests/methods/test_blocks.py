"""Blocks by hand, and budgets that no choice exceeds."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from masquerade.core import Axis, Blocks, Task
from masquerade.core.random import uniform
from masquerade.methods.pfedgate.blocks import Layout, layout
from masquerade.methods.pfedgate.knapsack import steps
from masquerade.models import build
from tests.support import raises


def one_layer(*shape: int) -> Task:
    return Task(nn.Linear(shape[1], shape[0], bias=False).double())


def plain(costs: list[float], always: list[bool] | None = None) -> Layout:
    """Make blocks of given costs, none of which is always on unless said."""
    sizes = torch.ones(len(costs), dtype=torch.int64)
    on = always or [False] * len(costs)
    grain, lengths = {"w": Blocks((1,) * len(costs))}, {"w": (1,) * len(costs)}
    numbers = torch.tensor(costs, dtype=torch.float64)
    return Layout(dict(grain), lengths, sizes, numbers, torch.tensor(on), *steps(costs, on), 0.0)


def chosen(blocks: Layout, scores: list[float], room: float, exact: bool) -> list[bool]:
    flags: list[bool] = blocks.choose(
        torch.tensor(scores).double(), torch.tensor(room).double(), exact
    ).tolist()
    return flags


@pytest.mark.parametrize(
    ("count", "factor", "least", "lengths", "first"),
    [
        # ⌊23 · 0.2⌋ = 4 always on; the other 19 in blocks of ⌈19 / 4⌉ = 5, the last one smaller.
        ((1, 23), 5, 0.2, (4, 5, 5, 5, 4), True),
        # ⌊3 · 0.2⌋ = 0: no entry is always on, and three entries make three blocks.
        ((1, 3), 5, 0.2, (1, 1, 1), False),
        # 0.3 · 10 is 3, whatever its last bit.
        ((1, 10), 2, 0.3, (3, 7), True),
        ((2, 5), 3, 1.0, (10,), True),
    ],
)
def test_the_first_block_takes_the_least_share_and_the_rest_is_cut_evenly(
    count: tuple[int, int], factor: int, least: float, lengths: tuple[int, ...], first: bool
) -> None:
    found = layout(one_layer(*count), factor, least)
    assert found.lengths["weight"] == lengths
    assert found.always.tolist() == [first, *[False] * (len(lengths) - 1)]
    assert found.grain["weight"] == Blocks(lengths)


def test_filters_and_channels_are_cut_whole() -> None:
    task = one_layer(5, 4)
    flags = torch.tensor([True, False, True])
    # Five outputs: one always on, then two and two. Four inputs: ⌊0.8⌋ = 0, so two and two.
    rows = layout(task, 3, 0.2, "filter")
    assert (rows.grain["weight"], rows.sizes.tolist()) == (Axis(0), [4, 8, 8])
    assert rows.keep(flags)["weight"].tolist() == [True, False, False, True, True]
    columns = layout(task, 3, 0.2, "channel")
    assert (columns.grain["weight"], columns.sizes.tolist()) == (Axis(1), [10, 10])
    held = columns.part(task.initial, torch.tensor([False, True])).held("weight")
    assert held is not None
    assert held.tolist() == [[False, False, True, True]] * 5


def test_flops_count_every_place_where_a_weight_is_used() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    task = Task(module).with_example(torch.ones(7, 1, 6, 6))
    # The convolution has 4 × 4 places; the linear layer has one.
    assert task.positions() == {"0.weight": 16, "0.bias": 16, "3.weight": 1, "3.bias": 1}
    blocks = layout(task, 2, 0.5, cost="flops")
    assert blocks.costs.tolist() == [9 * 16, 9 * 16, 16, 16, 48, 48, 1, 2]


def test_a_table_gives_each_tensor_its_cost_and_must_name_all() -> None:
    task = Task(nn.Linear(4, 2))
    assert layout(task, 2, 0.5, cost="table", table=(8.0, 1.0)).costs.tolist() == [4, 4, 0.5, 0.5]
    with raises("E202", 2, "weight", "bias"):
        layout(task, 2, 0.5, cost="table", table=(8.0,))


def test_a_knapsack_by_hand() -> None:
    # Room for 7. By value: 9 (costs 5) fits, 8 (3) does not fit into 2, 7 (3) does not, 1 (2) does:
    # value 10. Without the first, 8 + 7 = 15 cost 6: exactly.
    blocks = plain([5, 3, 3, 2])
    scores = [0.9, 0.8, 0.7, 0.1]
    assert chosen(blocks, scores, 7, exact=False) == [True, False, False, True]
    assert chosen(blocks, scores, 7, exact=True) == [False, True, True, False]


def test_what_is_always_on_needs_no_room_and_no_score() -> None:
    blocks = plain([5, 3, 3], [True, False, False])
    for exact in (False, True):
        assert chosen(blocks, [0.0, 0.2, 0.1], 3, exact) == [True, True, False]
        assert chosen(blocks, [0.0, 0.2, 0.1], 0, exact) == [True, False, False]


def test_scores_that_differ_by_rounding_alone_are_equal() -> None:
    assert chosen(plain([1, 1]), [0.5, 0.5 + 1e-9], 1, exact=False) == [True, False]
    assert chosen(plain([1, 1]), [0.5, 0.5 + 1e-4], 1, exact=False) == [False, True]


COSTS = st.lists(st.one_of(st.integers(1, 900), st.floats(0.01, 900)), min_size=1, max_size=9)


@settings(max_examples=150, deadline=None)
@given(COSTS, st.data(), st.booleans())
def test_no_choice_exceeds_its_room(costs: list[float], data: st.DataObject, exact: bool) -> None:
    count = len(costs)
    scores = data.draw(st.lists(st.floats(-3, 3), min_size=count, max_size=count))
    room = data.draw(st.floats(0, 1.2 * sum(costs)))
    flags = chosen(plain(costs), scores, room, exact)
    assert sum(cost for cost, flag in zip(costs, flags, strict=True) if flag) <= room * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 99)), min_size=1, max_size=7),
    st.integers(0, 300),
)
def test_the_exact_choice_is_the_best_of_all(pairs: list[tuple[int, int]], room: int) -> None:
    costs, scores = [pair[0] for pair in pairs], [pair[1] / 64 for pair in pairs]
    flags = chosen(plain(list(costs)), scores, room, exact=True)

    def worth(taken: tuple[bool, ...] | list[bool]) -> float:
        return sum(score for score, take in zip(scores, taken, strict=True) if take)

    def fits(taken: tuple[bool, ...]) -> bool:
        return sum(cost for cost, take in zip(costs, taken, strict=True) if take) <= room

    assert worth(flags) == max(
        worth(t) for t in product((False, True), repeat=len(pairs)) if fits(t)
    )


def test_a_budget_below_what_is_always_on_is_refused() -> None:
    blocks = layout(one_layer(2, 10), 5, 0.2)
    assert float(blocks.room(0.2)) == pytest.approx(0, abs=1e-9)
    assert blocks.choose(torch.zeros(5), blocks.room(0.2)).tolist() == [True, *[False] * 4]
    with raises("E202", "0.1", "0.2"):
        blocks.room(0.1)


@pytest.mark.parametrize("name", ["cifar_cnn", "digits_cnn"])
def test_the_exact_choice_is_no_worse_than_the_greedy_one_on_real_networks(name: str) -> None:
    shape = (3, 32, 32) if name == "cifar_cnn" else (1, 8, 8)
    task = Task(build(name, shape, 10, seed=1)).with_example(torch.zeros(1, *shape))
    blocks = layout(task, 5, 0.2, "flat", "parameters", ())
    room = blocks.room(0.5)
    for key in range(8):
        scores = uniform(key, (len(blocks.sizes),), torch.float64)
        greedy, exact = (blocks.choose(scores, room, how) for how in (False, True))
        assert float((scores * exact).sum()) >= float((scores * greedy).sum()) - 1e-3
        free = blocks.costs[exact & ~blocks.always].sum()
        assert float(free) <= float(room) + 1e-6
