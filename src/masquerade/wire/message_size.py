"""The length of a message from counts alone, for one client or for many at once.

It is what `codec.encode` writes, to the byte: that is a law, tested for every method.
"""

from collections.abc import Mapping
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


def count(
    message: Message, session: Mapping[str, Tensor], same: Same | None = None, lead: int = 0
) -> Counted:
    """Count a message's bytes and values; `lead` = 1 for a stacked one: [clients]."""
    total = Counted(bytes=HEADER if message else 0)
    for name, part in message.items():
        found = Counted()
        for tensor in part.values:
            _count_tensor(found, part, name, tensor, session, lead)
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
) -> None:
    values = part.values[tensor]
    entries = kept(part, tensor, lead)
    size: Count = 1
    inside = None
    if tensor in part.keep:
        keep = part.keep[tensor]
        mask = packed_bits.packed(keep, lead)
        size = size + _bits(f"{name}/{tensor}", keep.shape[lead:].numel(), mask, None, session)
        found.masks[f"{name}/{tensor}"] = mask
    if values.dtype is torch.bool:
        held = part.held(tensor)
        given = packed_bits.packed(values, lead)
        if held is not None:
            inside = packed_bits.packed(held, lead)
            given = given & inside
        found.masks[f"{name}/{tensor}="] = given
        size = size + 1 + _bits(f"{name}/{tensor}=", entries, given, inside, session)
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


def _bits(
    name: str,
    count: Count,
    given: Tensor,
    inside: Tensor | None,
    session: Mapping[str, Tensor],
) -> Tensor:
    """Return the length of a string of bits, as it is or as what changed, whichever is shorter."""
    several = scalar(count, given.device)
    size = bits.length(several, packed_bits.ones(given))
    for direction in DIRECTIONS:
        known = session.get(f"{direction}/{name}")
        if known is not None:
            changed = given ^ known
            changes = packed_bits.ones(changed if inside is None else changed & inside)
            size = torch.minimum(size, bits.length(several, changes))
    return bits.widths(several) + size


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
