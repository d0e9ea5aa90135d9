"""Parts: what one bool covers, for one client and for a stack of them."""

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from masquerade.core import tree
from masquerade.core.part import Axis, Blocks, Entry, Grain, Part
from masquerade.core.random import normal

SHAPE = torch.Size([2, 3, 2])
KEEPS: dict[str, tuple[Grain, list[bool], list[int]]] = {
    # Grain, its bits, and the positions of the flattened tensor [2, 3, 2] that they keep.
    "blocks": (Blocks((1, 4, 0, 7)), [True, False, True, True], [0, 5, 6, 7, 8, 9, 10, 11]),
    "axis0": (Axis(0), [False, True], [6, 7, 8, 9, 10, 11]),
    "axis1": (Axis(1), [True, False, True], [0, 1, 4, 5, 6, 7, 10, 11]),
    "axis2": (Axis(2), [False, True], [1, 3, 5, 7, 9, 11]),
}
each_grain = pytest.mark.parametrize(("grain", "bits", "kept"), KEEPS.values(), ids=KEEPS)


def positions(held: Tensor | None) -> list[int]:
    assert held is not None
    return torch.nonzero(held.flatten()).flatten().tolist()


@each_grain
def test_a_bool_covers_its_grain(grain: Grain, bits: list[bool], kept: list[int]) -> None:
    assert grain.bits(SHAPE) == torch.Size([len(bits)])
    part = Part({"w": torch.zeros(SHAPE)}, {"w": torch.tensor(bits)}, {"w": grain})
    held = part.held("w")
    assert held is not None
    assert held.shape == SHAPE
    assert positions(held) == kept
    assert part.kept() == len(kept)


@each_grain
def test_a_stack_of_parts_is_a_part(grain: Grain, bits: list[bool], kept: list[int]) -> None:
    others = [not bit for bit in bits]
    parts = [
        Part({"w": torch.zeros(SHAPE)}, {"w": torch.tensor(line)}, {"w": grain})
        for line in (bits, others, bits)
    ]
    held = tree.stack(parts).held("w")
    assert held.shape == (3, *SHAPE)
    for place, part in enumerate(parts):
        assert positions(held[place]) == positions(part.held("w"))
    assert tree.stack(parts).kept() == 2 * len(kept) + (12 - len(kept))


@each_grain
def test_grains_map_over_clients(grain: Grain, bits: list[bool], kept: list[int]) -> None:
    lines = torch.tensor([bits, [not bit for bit in bits]])
    mapped = torch.func.vmap(grain.expand)(lines, torch.zeros(2, *SHAPE))
    assert torch.equal(mapped, grain.expand(lines, torch.zeros(2, *SHAPE)))
    assert positions(mapped[0]) == kept


def test_an_entry_is_its_own_grain() -> None:
    keep = torch.tensor([[True, False], [False, True]])
    part = Part({"w": torch.zeros(2, 2)}, {"w": keep})
    assert part.grain_of("w") == Entry()
    assert Entry().bits(torch.Size([2, 2])) == (2, 2)
    assert part.held("w") is keep


def test_a_name_absent_from_keep_is_meant_whole() -> None:
    part = Part({"w": torch.zeros(2, 2), "b": torch.zeros(3)}, {"w": torch.eye(2) > 0})
    assert part.held("b") is None
    assert part.kept() == 2 + 3


def test_bits_are_no_parameters() -> None:
    bits = torch.tensor([True, True, False])
    part = Part({"bits": bits, "w": torch.zeros(3)}, {"bits": bits, "w": bits})
    assert part.kept() == 2


def test_a_part_survives_flattening_with_its_grain() -> None:
    grain: dict[str, Grain] = {"w": Axis(1), "v": Blocks((2, 2))}
    keep = {"w": torch.tensor([True, False]), "v": torch.tensor([False, True])}
    part = Part({"w": torch.ones(3, 2), "v": torch.arange(4.0)}, keep, grain)
    leaves, spec = pytree.tree_flatten(part)
    again = pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, Part)
    assert again.grain == grain
    assert all(torch.equal(again.values[name], part.values[name]) for name in grain)
    assert all(torch.equal(again.keep[name], part.keep[name]) for name in grain)


def test_parts_of_different_grain_do_not_mix() -> None:
    values, keep = {"w": torch.zeros(2, 2)}, {"w": torch.tensor([True, False])}
    with pytest.raises(ValueError, match="mismatch"):
        tree.stack([Part(values, keep, {"w": Axis(0)}), Part(values, keep, {"w": Axis(1)})])


def test_a_part_can_leave_a_map_with_a_mask_made_inside() -> None:
    def made(row: Tensor) -> Part:
        return Part({"w": row}, {"w": row > 1})

    found = torch.func.vmap(made)(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    assert found.keep["w"].tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_values_are_the_nearest_of_their_type(dtype: str) -> None:
    values = normal(1, (500,))
    part = Part({"w": values}).to(dtype, 1)
    expected = values.to(getattr(torch, dtype))
    assert part.values["w"].dtype is torch.float32
    assert torch.equal(part.values["w"], expected.float())
    assert (part.dtype, part.scale) == (dtype, {})


def test_int8_by_hand() -> None:
    """The largest kept value is 12.7, so a step is 0.1; outside of the mask nothing is read."""
    values, keep = torch.tensor([12.7, -0.3, 99.0, 0.0]), torch.tensor([True, True, False, True])
    part = Part({"w": values}, {"w": keep}).to("int8", 1)
    assert float(part.scale["w"]) == pytest.approx(0.1)
    assert part.values["w"].tolist() == pytest.approx([12.7, -0.3, 0.0, 0.0], abs=0.1001)
    assert part.values["w"][2:].tolist() == [0.0, 0.0]


def test_int8_is_right_on_average_and_never_off_by_more_than_a_step() -> None:
    values = normal(1, (50,))
    found = torch.stack([Part({"w": values}).to("int8", key).values["w"] for key in range(3000)])
    step = float(values.abs().max()) / 127
    assert float((found - values).abs().max()) <= step * 1.0001
    # The mean of 3,000 draws, each within half a step at most of deviation, over 50 entries.
    assert float((found.mean(0) - values).abs().max()) < 4.5 * step / 2 / 3000**0.5
    assert torch.equal(found[7], Part({"w": values}).to("int8", 7).values["w"])


def test_only_numbers_with_a_point_are_rounded() -> None:
    values = {"n": torch.tensor([7, 1000]), "b": torch.tensor([True, False]), "w": torch.zeros(3)}
    for dtype in ("float16", "bfloat16", "int8"):
        part = Part(values).to(dtype, 1)
        assert all(torch.equal(part.values[name], value) for name, value in values.items())
        assert part.scale.keys() == ({"w"} if dtype == "int8" else set())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_a_stack_is_rounded_as_its_parts_are(dtype: str) -> None:
    parts = [Part({"w": normal(key, (3, 4))}, {"w": normal(key, (3, 4)) > 0}) for key in (1, 2)]
    keys = torch.tensor([5, 6])
    stacked = tree.stack(parts).to(dtype, keys, lead=1)
    alone = tree.stack([part.to(dtype, int(key)) for part, key in zip(parts, keys, strict=True)])
    assert torch.equal(stacked.values["w"], alone.values["w"])
    assert tree.named(stacked).keys() == tree.named(alone).keys()


def test_values_that_are_not_finite_stay_so() -> None:
    for dtype in ("float16", "bfloat16", "int8"):
        for value in (float("nan"), float("inf")):
            part = Part({"w": torch.tensor([1.0, value])}).to(dtype, 1)
            assert not part.values["w"].isfinite().all()


@pytest.mark.parametrize(
    ("grain", "shape"), [(Entry(), (3, 4)), (Axis(1), (3, 4)), (Blocks((2, 3, 4)), (9,))]
)
def test_a_bit_covers_as_many_entries_as_it_is_spread_to(
    grain: Grain, shape: tuple[int, ...]
) -> None:
    values = torch.zeros(shape)
    bits = grain.bits(values.shape)
    covers = grain.covers(values.shape)
    for place in range(bits.numel()):
        keep = torch.zeros(bits.numel(), dtype=torch.bool)
        keep[place] = True
        spread = grain.expand(keep.reshape(bits), values)
        assert int(spread.sum()) == covers[place if len(covers) > 1 else 0]
