"""Parts and messages of any form, for properties that hold for all of them."""

import struct
import zlib

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import ROUNDED, Axis, Blocks, Entry, Grain, Message, Part

quick = settings(deadline=None, max_examples=50)
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
HEADER = 24
"""Bytes before the first part."""


def forged(data: bytes) -> bytes:
    """The same with a checksum that fits, so that what lies behind it is tested too."""
    if len(data) < HEADER:
        return data
    head, body = data[: HEADER - 4], data[HEADER:]
    return head + struct.pack("<I", zlib.crc32(head + body)) + body


def bits_of(draw: st.DrawFn, count: int) -> Tensor:
    return torch.tensor([draw(st.booleans()) for _ in range(count)], dtype=torch.bool)


def numbers_of(draw: st.DrawFn, count: int, dtype: torch.dtype) -> Tensor:
    """Any bits at all, not numbers only: payloads of NaNs and negative zeros travel as they are."""
    if dtype is torch.bool:
        return bits_of(draw, count)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = draw(st.binary(min_size=count * size, max_size=count * size))
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)


def grain_of(draw: st.DrawFn, shape: torch.Size) -> Grain:
    cut = draw(st.integers(0, shape.numel()))
    grains: list[Grain] = [Entry(), Blocks((cut, shape.numel() - cut))]
    grains += [Axis(index) for index in range(len(shape))]
    return draw(st.sampled_from(grains))


@st.composite
def parts(draw: st.DrawFn, axes: int = 0) -> Part:
    values, keep, grains = {}, {}, {}
    for place in range(draw(st.integers(1, 3))):
        name = f"tensor{place}"
        shape = torch.Size(draw(st.lists(st.integers(0, 4), min_size=axes, max_size=3)))
        dtype = draw(st.sampled_from(TYPES))
        values[name] = numbers_of(draw, shape.numel(), dtype).reshape(shape)
        if draw(st.booleans()):
            grains[name] = grain_of(draw, shape)
            bits = grains[name].bits(shape)
            keep[name] = bits_of(draw, bits.numel()).reshape(bits)
    return Part(values, keep, grains)


wires = st.sampled_from(["", *ROUNDED])


def rounded(message: Message, wire: str) -> Message:
    """The message as it crosses the wire; numbers that cannot are made to be some that can."""
    if not wire:
        return message
    finite = tree.transform(_finite, message)
    return {name: part.to(wire, 3) for name, part in finite.items()}


def _finite(value: Tensor) -> Tensor:
    fits = value.is_floating_point()
    return value.nan_to_num(0.5, 1.0, -1.0).clamp(-9, 9) if fits else value


names = st.sampled_from(["params", "shared", "gate"])
messages = st.dictionaries(names, parts(), max_size=2)


def raw(value: Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def meant(part: Part, name: str) -> Tensor:
    """The values of a tensor, with zeros where they are not meant."""
    value, held = part.values[name], part.held(name)
    return value if held is None else torch.where(held, value, torch.zeros_like(value))


def assert_same(found: Message, expected: Message) -> None:
    """Bit for bit, types and shapes too."""
    assert found.keys() == expected.keys()
    for part_name, part in expected.items():
        other = found[part_name]
        assert other.values.keys() == part.values.keys()
        assert other.keep.keys() == part.keep.keys()
        for name, value in part.values.items():
            assert other.values[name].shape == value.shape
            assert other.values[name].dtype is value.dtype
            assert raw(other.values[name]) == raw(meant(part, name))
        assert all(torch.equal(other.keep[name], part.keep[name]) for name in part.keep)
