"""A part: a tree of values, and which of its entries are sent or kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from masquerade.core.random import fold, uniform
from masquerade.core.tree import Tree, register


@dataclass(frozen=True)
class Entry:
    """One bit of a mask for every entry of the tensor."""

    def bits(self, shape: torch.Size) -> torch.Size:
        """Return the shape of the mask of one tensor."""
        return shape

    def expand(self, keep: Tensor, values: Tensor) -> Tensor:
        """Return the mask with one bit per entry."""
        return keep

    def covers(self, shape: torch.Size) -> tuple[int, ...]:
        """Return how many entries each bit covers; one number where it is the same for all."""
        return (1,)


@dataclass(frozen=True)
class Blocks:
    """One bit for every run of consecutive entries of the flattened tensor."""

    sizes: tuple[int, ...]

    def bits(self, shape: torch.Size) -> torch.Size:
        """Return the shape of the mask of one tensor."""
        return torch.Size([len(self.sizes)])

    def expand(self, keep: Tensor, values: Tensor) -> Tensor:
        """Return the mask with one bit per entry."""
        # Piece by piece: a repetition by counts would fetch its length from the device. A split has
        # one operation as its gradient, where every bit taken out has three.
        bits = zip(torch.split(keep, 1, -1), self.sizes, strict=True)
        pieces = [bit.expand(*bit.shape[:-1], size) for bit, size in bits]
        return torch.cat(pieces, -1).reshape(values.shape)

    def covers(self, shape: torch.Size) -> tuple[int, ...]:
        """Return how many entries each bit covers."""
        return self.sizes


@dataclass(frozen=True)
class Axis:
    """One bit for every index along an axis: a filter, a channel, a row."""

    index: int

    def bits(self, shape: torch.Size) -> torch.Size:
        """Return the shape of the mask of one tensor."""
        return torch.Size([shape[self.index]])

    def expand(self, keep: Tensor, values: Tensor) -> Tensor:
        """Return the mask with one bit per entry."""
        lead = keep.ndim - 1
        shape = [1] * values.ndim
        shape[:lead] = keep.shape[:lead]
        shape[lead + self.index % (values.ndim - lead)] = keep.shape[-1]
        return keep.reshape(shape).expand(values.shape)

    def covers(self, shape: torch.Size) -> tuple[int, ...]:
        """Return how many entries each bit covers, the same number for all."""
        return (shape.numel() // max(1, shape[self.index]),)


Grain = Entry | Blocks | Axis
ENTRY = Entry()

ROUNDED = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}
"""What floating-point values of a message can be rounded to."""


@dataclass(frozen=True)
class Part:
    """A tree of values, and which of its entries count: of `Part(values)` all.

    `keep` has the masks, a bool for every grain of a tensor; a tensor without a mask is whole.
    `grain` says what one bool covers, an entry unless stated. Values may be bits. A stacked part,
    [clients, …], is a part of the same form. `dtype` names what floating-point values were rounded
    to, "" for none; they keep the network's type, and `scale` is the step between those of an int8
    tensor.
    """

    values: Tree
    keep: Tree = field(default_factory=dict)
    grain: Mapping[str, Grain] = field(default_factory=dict)
    dtype: str = ""
    scale: Tree = field(default_factory=dict)

    def grain_of(self, name: str) -> Grain:
        """Return what one bool of `keep[name]` covers."""
        return self.grain.get(name, ENTRY)

    def held(self, name: str) -> Tensor | None:
        """Return one bool per entry of `values[name]`, or None where the tensor is whole."""
        if name not in self.keep:
            return None
        return self.grain_of(name).expand(self.keep[name], self.values[name])

    def to(self, dtype: str, key: int | Tensor, lead: int = 0) -> "Part":
        """Round the floating-point values that are meant; those outside a mask become zero.

        `lead` = 1 for a stacked part. int8 has one step per tensor, a 127th of its largest value,
        and rounds up or down at random by `key`, so that on average nothing is added or taken away.
        """
        values, scale = dict(self.values), dict[str, Tensor]()
        for name, value in self.values.items():
            if value.is_floating_point():
                held = self.held(name)
                meant = value if held is None else torch.where(held, value, 0)
                if dtype == "int8":
                    values[name], scale[name] = _to_steps(meant, fold(key, name), lead)
                else:
                    values[name] = in_fewer_bits(meant, dtype).to(value.dtype)
        return Part(values, self.keep, self.grain, dtype, scale)

    def kept(self) -> int:
        """Count the kept entries that are numbers (bits are not parameters)."""
        count = 0
        for name, value in self.values.items():
            if value.dtype is not torch.bool:
                held = self.held(name)
                count += value.numel() if held is None else int(held.sum())
        return count


Message = dict[str, Part]


def in_fewer_bits(values: Tensor, dtype: str) -> Tensor:
    """Return values in a type of `ROUNDED`; of NaNs there is one."""
    found = values.to(ROUNDED[dtype])
    # What becomes of other bits of a NaN differs from processor to processor.
    return found.masked_fill(found.isnan(), torch.nan) if found.is_floating_point() else found


FINEST = torch.finfo(torch.float32).tiny
"""The smallest step; what would need a finer one is rounded to zero."""


def _to_steps(values: Tensor, key: int | Tensor, lead: int) -> tuple[Tensor, Tensor]:
    """Round to whole multiples of a step, the largest to 127; return them and the step, a float32.

    Narrow numbers are divided as float32, of which 127 steps can be told apart.
    """
    shape = values.shape[lead:]
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    sizes = wide.abs()
    flat = sizes.reshape(*values.shape[:lead], shape.numel())
    largest = flat.amax(-1) if flat.shape[-1] else flat.new_zeros(flat.shape[:-1])
    scale = (largest / 127).float()
    scale = torch.where(scale < FINEST, 0, scale)
    step, top = (
        each.reshape(each.shape + (1,) * len(shape)).to(wide.dtype) for each in (scale, largest)
    )
    keys = torch.as_tensor(key, dtype=torch.int64, device=values.device)
    noise = uniform(keys, tuple(shape), wide.dtype)
    # Where there is no step, all are divided by another, and come to zero by the product.
    steps = (wide / torch.where(step == 0, 1, step) + noise).floor().clamp(-127, 127)
    # A quotient just below 127 must not fall to 126: the step would not be the one of these values.
    steps = torch.where(sizes == top, 127 * wide.sign(), steps)
    # Of zeros there is one.
    return (steps * step).to(values.dtype) + 0, scale


def _flatten(part: Part) -> tuple[list[Any], tuple[tuple[tuple[str, Grain], ...], str]]:
    static = tuple(sorted(part.grain.items())), part.dtype
    return [part.values, part.keep, part.scale], static


def _flatten_with_keys(part: Part) -> tuple[list[Any], Any]:
    children, static = _flatten(part)
    keys = [pytree.GetAttrKey(name) for name in ("values", "keep", "scale")]
    return list(zip(keys, children, strict=True)), static


def _unflatten(children: Any, static: Any) -> Part:
    values, keep, scale = children
    grain, dtype = static
    return Part(values, keep, dict(grain), dtype, scale)


register(Part, _flatten, _unflatten, _flatten_with_keys)
