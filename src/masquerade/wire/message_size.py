"""The length of a message from counts alone, for one client or for many at once.

It is what `codec.encode` writes, to the byte: that is a law, tested for every method.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from masquerade.core.part import Message, Part
from masquerade.core.tree import onto, scalar
from masquerade.wire import bits, packed_bits
from masquerade.wire.session import DIRECTIONS, Same

HEADER = 24
"""Magic, version, parts, round, client, base and checksum."""
SCALE = 4
SIZES = {"float16": 2, "bfloat16": 2, "int8": 1}

Count = Tensor | int
"""Of one message, or of each client's: [clients]."""


@dataclass
class Counted:
    """The bytes of a message, and what they are made of."""

    bytes: Count = 0
    values: Count = 0
    """The kept values alone, the way the papers count."""
    parts: dict[str, Count] = field(default_factory=dict)
    """The bytes of every part; a message has a header beside them."""
    masks: dict[str, Tensor] = field(default_factory=dict)
    """Packed bits by PART/TENSOR: masks, and values that are bits under TENSOR=."""


def size_of(part: Part, name: str) -> int:
    """Return the bytes of one value of a tensor that is not of bits."""
    values = part.values[name]
    return SIZES.get(part.dtype, 0) * values.is_floating_point() or values.element_size()


@dataclass(frozen=True)
class _String:
    """A string of bits, whose length is not counted yet."""

    part: Counted
    """What it is a part of."""
    count: Count
    """How many bits there are."""
    ones: Tensor
    """[ways] or [ways, clients]: how many are ones, as they are and as what changed."""


def count(
    message: Message, session: Mapping[str, Tensor], same: Same | None = None, lead: int = 0
) -> Counted:
    """Count a message's bytes and values; `lead` = 1 for a stacked one: [clients]."""
    total = Counted(bytes=HEADER if message else 0)
    parts = {name: Counted() for name in message}
    strings = [
        string
        for name, part in message.items()
        for tensor in part.values
        for string in _count_tensor(parts[name], part, name, tensor, session, lead)
    ]
    for string, length in zip(strings, _lengths(strings), strict=True):
        string.part.bytes = string.part.bytes + length
    for name, found in parts.items():
        sent = None if same is None or name not in same else ~torch.as_tensor(same[name])
        total.parts[name] = 1 + (found.bytes if sent is None else sent * found.bytes)
        total.bytes = total.bytes + total.parts[name]
        total.values = total.values + (found.values if sent is None else sent * found.values)
        total.masks |= found.masks
    return total


def _count_tensor(
    found: Counted,
    part: Part,
    name: str,
    tensor: str,
    session: Mapping[str, Tensor],
    lead: int,
) -> Iterator[_String]:
    """Add what a tensor takes beside its strings of bits, which are returned."""
    values = part.values[tensor]
    entries = kept(part, tensor, lead)
    size: Count = 1
    inside = None
    if tensor in part.keep:
        keep = part.keep[tensor]
        mask = packed_bits.packed(keep, lead)
        ones = _ones(f"{name}/{tensor}", mask, None, session)
        yield _String(found, keep.shape[lead:].numel(), ones)
        found.masks[f"{name}/{tensor}"] = mask
    if values.dtype is torch.bool:
        held = part.held(tensor)
        given = packed_bits.packed(values, lead)
        if held is not None:
            inside = packed_bits.packed(held, lead)
            given = given & inside
        found.masks[f"{name}/{tensor}="] = given
        size = size + 1
        yield _String(found, entries, _ones(f"{name}/{tensor}=", given, inside, session))
        found.values = found.values + (entries + 7) // 8
    else:
        numbers = entries * size_of(part, tensor)
        size = size + numbers + SCALE * (tensor in part.scale)
        found.values = found.values + numbers
    found.bytes = found.bytes + size


def kept(part: Part, tensor: str, lead: int) -> Count:
    """Count the entries of a tensor that are meant."""
    shape = part.values[tensor].shape[lead:]
    if tensor not in part.keep:
        return shape.numel()
    covers = part.grain_of(tensor).covers(shape)
    if len(covers) == 1:
        return packed_bits.ones(packed_bits.packed(part.keep[tensor], lead)) * covers[0]
    sizes = onto(torch.tensor(covers), part.keep[tensor].device)
    return (part.keep[tensor] * sizes).sum(-1)


def _ones(name: str, given: Tensor, inside: Tensor | None, session: Mapping[str, Tensor]) -> Tensor:
    """Count the ones of a string as it is, and as what changed since it went in a direction."""
    ways = [given]
    for direction in DIRECTIONS:
        known = session.get(f"{direction}/{name}")
        if known is not None:
            changed = given ^ known
            ways.append(changed if inside is None else changed & inside)
    return packed_bits.ones(torch.stack(ways))


def _lengths(strings: list[_String]) -> list[Tensor]:
    """Return the lengths of strings of bits, each written in the shortest way.

    All at once: on a GPU, operations on few numbers take as long as they are many.
    """
    if not strings:
        return []
    ones = torch.cat([string.ones for string in strings])
    counts = _in_rows([string.count for string in strings for _ in string.ones], ones)
    sizes = bits.widths(counts) + bits.length(counts, ones)
    return [each.amin(0) for each in torch.split(sizes, [len(string.ones) for string in strings])]


def _in_rows(counts: list[Count], like: Tensor) -> Tensor:
    """Return counts as the rows of a tensor of a form that fits another."""
    known = [each for each in counts if isinstance(each, int)]
    if len(known) == len(counts):
        return onto(torch.tensor(known), like.device).reshape(-1, *[1] * (like.ndim - 1))
    return torch.stack([scalar(each, like.device).expand(like.shape[1:]) for each in counts])


def nbytes(
    message: Message,
    session: Mapping[str, Tensor] | None = None,
    same: Same | None = None,
    lead: int = 0,
) -> Tensor:
    """Count the bytes of a message; `lead` = 1 for a stacked one: [clients]."""
    return torch.as_tensor(count(message, session or {}, same, lead).bytes)


def values_bytes(message: Message, same: Same | None = None, lead: int = 0) -> Tensor:
    """Count the bytes of the kept values alone, the way the papers count."""
    return torch.as_tensor(count(message, {}, same, lead).values)
