"""A part: values, and which coordinates of them are meant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from masquerade.core.tree import Tree


@dataclass(frozen=True)
class Entry:
    """One bit of a mask for every entry of the tensor."""

    def bits(self, shape: torch.Size) -> torch.Size:
        """Return the shape of the mask of one tensor."""
        return shape

    def spread(self, keep: Tensor, values: Tensor) -> Tensor:
        """Return the mask with one bit per entry."""
        return keep


@dataclass(frozen=True)
class Blocks:
    """One bit for every run of consecutive entries of the flattened tensor."""

    sizes: tuple[int, ...]

    def bits(self, shape: torch.Size) -> torch.Size:
        """Return the shape of the mask of one tensor."""
        return torch.Size([len(self.sizes)])

    def spread(self, keep: Tensor, values: Tensor) -> Tensor:
        """Return the mask with one bit per entry."""
        # Piece by piece: a repetition by counts would fetch its length from the device.
        bits = zip(keep.unbind(-1), self.sizes, strict=True)
        pieces = [bit[..., None].expand(*bit.shape, size) for bit, size in bits]
        return torch.cat(pieces, -1).reshape(values.shape)


@dataclass(frozen=True)
class Axis:
    """One bit for every index along an axis: a filter, a channel, a row."""

    index: int

    def bits(self, shape: torch.Size) -> torch.Size:
        """Return the shape of the mask of one tensor."""
        return torch.Size([shape[self.index]])

    def spread(self, keep: Tensor, values: Tensor) -> Tensor:
        """Return the mask with one bit per entry."""
        lead = keep.ndim - 1
        shape = [1] * values.ndim
        shape[:lead] = keep.shape[:lead]
        shape[lead + self.index % (values.ndim - lead)] = keep.shape[-1]
        return keep.reshape(shape).expand(values.shape)


Grain = Entry | Blocks | Axis
ENTRY = Entry()


@dataclass(frozen=True)
class Part:
    """Values and the coordinates that are meant: `Part(values)` means all of them.

    `keep` has one bool per grain of a name; a name absent from it is meant whole. `grain` says what
    one bool covers, an entry unless stated. Values may be bits. A stacked part, [clients, …], is a
    part of the same form.
    """

    values: Tree
    keep: Tree = field(default_factory=dict)
    grain: Mapping[str, Grain] = field(default_factory=dict)

    def grain_of(self, name: str) -> Grain:
        """Return what one bool of `keep[name]` covers."""
        return self.grain.get(name, ENTRY)

    def held(self, name: str) -> Tensor | None:
        """Return one bool per entry of `values[name]`, or None where all are meant."""
        if name not in self.keep:
            return None
        return self.grain_of(name).spread(self.keep[name], self.values[name])

    def kept(self) -> int:
        """Count the meant entries that are numbers (bits are not parameters)."""
        count = 0
        for name, value in self.values.items():
            if value.dtype is not torch.bool:
                held = self.held(name)
                count += value.numel() if held is None else int(held.sum())
        return count


Message = dict[str, Part]


def _flatten(part: Part) -> tuple[list[Any], tuple[tuple[str, Grain], ...]]:
    return [part.values, part.keep], tuple(sorted(part.grain.items()))


def _flatten_with_keys(part: Part) -> tuple[list[Any], tuple[tuple[str, Grain], ...]]:
    children, grain = _flatten(part)
    keys = [pytree.GetAttrKey("values"), pytree.GetAttrKey("keep")]
    return list(zip(keys, children, strict=True)), grain


def _unflatten(children: Any, grain: Any) -> Part:
    values, keep = children
    return Part(values, keep, dict(grain))


pytree.register_pytree_node(
    Part,
    _flatten,
    _unflatten,
    serialized_type_name="masquerade.core.part.Part",
    flatten_with_keys_fn=_flatten_with_keys,
)
