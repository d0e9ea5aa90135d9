"""Parts: what one bool covers, for one client and for a stack of them."""

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from masquerade.core import tree
from masquerade.core.part import Axis, Blocks, Entry, Grain, Part

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
    mapped = torch.func.vmap(grain.spread)(lines, torch.zeros(2, *SHAPE))
    assert torch.equal(mapped, grain.spread(lines, torch.zeros(2, *SHAPE)))
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
