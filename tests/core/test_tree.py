"""Trees and states: selection never multiplies, and structure survives every trip."""

import math

import pytest
import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Axis, Part
from masquerade.core.tree import State

NAN, INF = math.nan, math.inf


def state() -> State:
    """A state with every kind of node that methods make."""
    return {
        "params": {"fc.weight": torch.tensor([[1.0, 2.0]]), "fc.bias": torch.tensor([3.0])},
        "shared": Part(
            {"w": torch.tensor([[4.0], [5.0]])}, {"w": torch.tensor([True, False])}, {"w": Axis(0)}
        ),
        "count": torch.tensor(7),
    }


def test_each_pairs_tensors_by_name_and_not_by_position() -> None:
    left = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    right = {"b": torch.tensor(10.0), "a": torch.tensor(20.0)}
    assert {name: float(value) for name, value in tree.each(torch.sub, left, right).items()} == {
        "a": -19.0,
        "b": -8.0,
    }


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_what_is_not_chosen_cannot_leak(poison: float) -> None:
    keep = {"w": torch.tensor([True, False])}
    chosen = {"w": torch.tensor([1.0, poison]), "b": torch.tensor([2.0])}
    otherwise = {"w": torch.tensor([poison, 4.0]), "b": torch.tensor([poison])}
    found = tree.where(keep, chosen, otherwise)
    assert found["w"].tolist() == [1.0, 4.0]
    assert found["b"].tolist() == [2.0]
    assert tree.only(keep, chosen)["w"].tolist() == [1.0, 0.0]


def test_a_name_absent_from_a_mask_is_whole() -> None:
    values = {"w": torch.tensor([1.0, 2.0])}
    assert tree.where({}, values, tree.zeros(values))["w"].tolist() == [1.0, 2.0]
    assert tree.only({}, values)["w"].tolist() == [1.0, 2.0]


def test_masking_keeps_the_type_of_numbers() -> None:
    keep = {"w": torch.tensor([True, False])}
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int64, torch.bool):
        assert tree.only(keep, {"w": torch.ones(2, dtype=dtype)})["w"].dtype is dtype


def test_squared_distance_counts_floating_numbers_only() -> None:
    left = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([[0.5]]), "n": torch.tensor(100)}
    right = {"w": torch.tensor([4.0, -2.0]), "b": torch.tensor([[0.0]]), "n": torch.tensor(0)}
    # 3² + 4² + 0.5² = 25.25; the counter `n` is no parameter.
    assert float(tree.squared_distance(left, right)) == 25.25


def test_a_blend_goes_a_share_of_the_way_and_takes_the_rest_from_the_new() -> None:
    old = {"w": torch.tensor([0.0, 4.0]), "steps": torch.tensor(3)}
    new = {"w": torch.tensor([8.0, 4.0]), "steps": torch.tensor(7)}
    found = tree.blend(old, new, 0.25, lambda name: name == "w")
    same(found, {"w": torch.tensor([2.0, 4.0]), "steps": torch.tensor(7)})
    # A share from a round is a float64; weights keep their type.
    same(
        tree.blend(old, new, torch.tensor(0.25, dtype=torch.float64), lambda name: name == "w"),
        found,
    )


def test_a_blend_with_the_share_one_has_the_bits_of_the_new() -> None:
    old, new = ({"w": torch.tensor([value, -value])} for value in (0.1, 0.7 / 3))
    same(tree.blend(old, new, 1.0, lambda name: True), new)


def test_a_product_runs_over_the_names_of_the_left() -> None:
    left = {"a": torch.tensor([1.0, 2.0])}
    right = {"b": torch.tensor(9.0), "a": torch.tensor([3.0, 5.0])}
    assert float(tree.dot(left, right)) == 13


def test_size_counts_numbers_and_zeros_have_the_same_form() -> None:
    values = {"w": torch.ones(2, 3), "s": torch.tensor(4), "none": torch.empty(0, 5)}
    assert tree.size(values) == 6 + 1 + 0
    for name, zero in tree.zeros(values).items():
        assert zero.shape == values[name].shape
        assert zero.dtype is values[name].dtype
        assert not zero.any()


def test_taking_a_client_out_of_a_stack_gives_it_back() -> None:
    one, two = state(), tree.transform(lambda value: value + 1, state() | {"shared": {}})
    one = one | {"shared": {}}
    stacked = tree.stack([one, two])
    for index, original in enumerate((one, two)):
        same(tree.take(stacked, index), original)
    same(tree.take(stacked, torch.tensor([1, 0])), tree.stack([two, one]))


def test_an_empty_state_has_no_leaves_and_stacks() -> None:
    assert tree.leaves({}) == []
    assert tree.stack([{}, {}]) == {}


def test_names_are_paths_of_the_state() -> None:
    assert sorted(tree.named(state())) == [
        "count",
        "params/fc.bias",
        "params/fc.weight",
        "shared/keep/w",
        "shared/values/w",
    ]


def test_names_number_the_entries_of_lists() -> None:
    assert list(tree.named([torch.tensor(1), {"a": torch.tensor(2)}])) == ["0", "1/a"]


def test_rebuilding_from_names_restores_the_state_in_any_order() -> None:
    original = state()
    tensors = dict(reversed(tree.named(original).items()))
    again = tree.rebuild(tree.transform(torch.zeros_like, original), tensors)
    same(again, original)
    assert isinstance(again["shared"], Part)
    assert again["shared"].grain == {"w": Axis(0)}


def same(left: object, right: object) -> None:
    """Assert equal structure and equal bits."""
    one, two = tree.named(left), tree.named(right)
    assert one.keys() == two.keys()
    different = [name for name in one if not bits_equal(one[name], two[name])]
    assert not different


def bits_equal(left: Tensor, right: Tensor) -> bool:
    return left.dtype is right.dtype and torch.equal(left, right)


def test_split_loses_nothing_and_keeps_the_order() -> None:
    whole = {name: torch.tensor(float(place)) for place, name in enumerate("dacb")}
    inside, rest = tree.split(whole, {"b", "d", "not there"})
    assert (list(inside), list(rest)) == (["d", "b"], ["a", "c"])
    assert {**inside, **rest} == whole


def test_pick_takes_one_tree_whole() -> None:
    one, two = {"w": torch.tensor([1.0, math.nan])}, {"w": torch.tensor([3.0, 4.0])}
    assert tree.pick(torch.tensor(False), one, two)["w"].tolist() == [3, 4]
    assert tree.pick(torch.tensor(True), two, one)["w"].tolist() == [3, 4]


ODD = [0.0, -0.0, 1.5, -2.25, INF, -INF, NAN]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("otherwise", [0, -INF, "tensor"])
def test_select_gives_the_bits_of_where(dtype: torch.dtype, otherwise: float | str) -> None:
    if dtype is torch.int64 and otherwise == -INF:
        return
    values = torch.tensor(ODD * 2).nan_to_num(7, 8, 9).to(dtype)
    if dtype.is_floating_point:
        values = torch.tensor(ODD * 2, dtype=dtype)
    other = values.flip(0) if isinstance(otherwise, str) else otherwise
    keep = torch.arange(14) % 3 > 0
    second = torch.as_tensor(other, dtype=dtype)
    expected, found = torch.where(keep, values, second), tree.select(keep, values, other)
    assert found.dtype is dtype
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_select_is_where_in_maps_and_for_other_types_and_shapes() -> None:
    keep, values = torch.tensor([True, False]), torch.arange(6.0).reshape(3, 2)
    found = torch.func.vmap(lambda row: tree.select(keep, row))(values)
    assert found.tolist() == [[0, 0], [2, 0], [4, 0]]
    wide = tree.select(keep, torch.ones(2), torch.full((2, 2), 0.5, dtype=torch.float64))
    assert wide.dtype == torch.float64
    assert wide.tolist() == [[1, 0.5]] * 2


def test_select_lets_gradients_through_and_masks_spread() -> None:
    values = torch.ones(2, 3, requires_grad=True)
    keep = torch.tensor([True, False, True])
    (slope,) = torch.autograd.grad(tree.select(keep, values).sum(), values)
    assert slope.tolist() == [[1, 0, 1]] * 2
    assert tree.select(keep, torch.ones(2, 3)).tolist() == [[1, 0, 1]] * 2
    spread = keep[None].expand(2, 3)
    assert tree.select(spread, torch.ones(2, 3)).tolist() == [[1, 0, 1]] * 2


@pytest.mark.parametrize("other", [{"params": {}}, {"params": torch.ones(1)}, {}])
def test_states_of_other_structures_are_not_transformed(other: State) -> None:
    with pytest.raises(ValueError, match=r"[Nn]ode"):
        tree.transform(torch.add, {"params": {"w": torch.ones(1)}}, other)
