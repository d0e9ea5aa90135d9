"""Messages as bytes, and back: a closed format that both ends read with the same schema.

From the method both sides know which parts, names, shapes and types a message holds (a template),
so none of that is sent; parts and tensors stand in the order of their names.

    message = header, parts                 parts = one byte each, then what it announces
    header  = "MQ", version, number of parts, round, client, base (see `session`), CRC-32
    part    = 0 (equal to the version that the receiver holds) | 1, tensors
    tensor  = 0 (whole) | r, bits of the mask; then its kept values, little-endian
    values  = as the network has them | float16 | bfloat16 | int8 after a float32 step | r, bits
    bits    = how many are ones, and the form that this decides (see `bits`)
    r       = 1 (as they are) | 2 (changes since the last download) | 3 (… since the last upload)

There is one byte string for a message and a session, and everything else is refused: a form that
is not the shortest by its counts, bits after the last one, bytes after the end. Sizes are compared
with the schema before anything of that size is made. A tensor has a mask if and only if it has one
in the template. NaNs of 16 bits are written in one way; wider ones keep all their bits.
"""

import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from masquerade.core.part import ENTRY, FINEST, ROUNDED, Message, Part, in_fewer_bits
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError
from masquerade.wire import bits, packed_bits
from masquerade.wire.bits import Bits
from masquerade.wire.message_size import HEADER, SCALE, size_of
from masquerade.wire.session import DIRECTIONS, Same

_HEAD = struct.Struct("<2sBBIIQ")
_CHECK = struct.Struct("<I")
_SCALE = struct.Struct("<f")
_MAGIC, _VERSION = b"MQ", 2
_LARGEST = torch.finfo(torch.float32).max
assert _HEAD.size + _CHECK.size == HEADER
assert _SCALE.size == SCALE


@dataclass(frozen=True)
class Stamp:
    """What a message belongs to."""

    round: int = 0
    client: int = 0
    base: int = 0
    """Hash of the run and of what both ends hold: `session.base`."""


def _checksum(head: bytes, body: bytes | bytearray | memoryview) -> bytes:
    return _CHECK.pack(zlib.crc32(body, zlib.crc32(head)))


def _known(session: Mapping[str, Tensor], name: str, count: int) -> list[Bits | None]:
    """Return the bits that both ends hold of a mask: of the last download and the last upload."""
    found: list[Bits | None] = []
    for direction in DIRECTIONS:
        words = session.get(f"{direction}/{name}")
        if words is not None and words.numel() != packed_bits.words_for(count):
            text = f"`{name}` has {count} bits here, and {words.numel()} words of them are held"
            raise MasqueradeError("E605", f"{text}; start a new session")
        data = None if words is None else words.cpu().contiguous().view(torch.uint8).numpy()
        found.append(None if data is None else bits.unpack(data.tobytes(), count))
    return found


def _reference(given: Bits, known: list[Bits | None]) -> int:
    """Return which of the known bits, or none (0), makes the shortest string; the first of equals.

    Counts decide, nothing is tried.
    """
    changes = [given, *(given if one is None else given ^ one for one in known)]
    lengths = [bits.form(len(given), int(np.count_nonzero(one)))[1] for one in changes]
    return lengths.index(min(lengths))


def _write_bits(given: Bits, known: list[Bits | None]) -> bytes:
    chosen = _reference(given, known)
    reference = None if not chosen else known[chosen - 1]
    return bytes([1 + chosen]) + bits.write(given if reference is None else given ^ reference)


def _inside(values: Bits, held: Bits | None) -> Bits:
    return values if held is None else np.compress(held, values)


def _flat(tensor: Tensor) -> Bits:
    flat: Bits = tensor.detach().cpu().reshape(-1).numpy()
    return flat


def _numbers(part: Part, name: str, held: Bits | None) -> bytes:
    """Return the kept values of a tensor as they cross the wire."""
    values = part.values[name].detach().cpu().reshape(-1)
    if held is not None:
        values = values[torch.from_numpy(np.flatnonzero(held))]
    head = b""
    if values.is_floating_point() and part.dtype:
        if part.dtype == "int8":
            scale = float(part.scale[name])
            head = _SCALE.pack(scale)
            values = _in_steps(values, scale)
        values = in_fewer_bits(values, part.dtype)
    return head + values.contiguous().view(torch.uint8).numpy().tobytes()


def _in_steps(values: Tensor, step: float) -> Tensor:
    """Return by how many steps values lie from zero; narrow ones are divided as float32."""
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    return (wide / (step or 1.0)).round()


def encode(
    message: Message,
    stamp: Stamp | None = None,
    session: Mapping[str, Tensor] | None = None,
    same: Same | None = None,
) -> bytes:
    """Turn one client's message into bytes; an empty message is no bytes at all."""
    if not message:
        return b""
    body = bytearray()
    for name, part in sorted(message.items()):
        if same is not None and same.get(name):
            body.append(0)
            continue
        body.append(1)
        for tensor in sorted(part.values):
            body += _encode_tensor(part, name, tensor, session or {})
    stamp = stamp or Stamp()
    facts = (len(message), stamp.round, stamp.client, stamp.base)
    head = _HEAD.pack(_MAGIC, _VERSION, *facts)
    return head + _checksum(head, body) + bytes(body)


def _encode_tensor(part: Part, name: str, tensor: str, session: Mapping[str, Tensor]) -> bytes:
    data, held = b"\0", None
    place = f"{name}/{tensor}"
    if tensor in part.keep:
        keep = _flat(part.keep[tensor])
        data = _write_bits(keep, _known(session, place, len(keep)))
        mask = part.held(tensor)
        held = None if mask is None else _flat(mask)
    if part.values[tensor].dtype is not torch.bool:
        return data + _numbers(part, tensor, held)
    given = _flat(part.values[tensor])
    known = _known(session, f"{place}=", len(given))
    kept = [None if one is None else _inside(one, held) for one in known]
    return data + _write_bits(_inside(given, held), kept)


class _Reader:
    """Bytes with a place in them; every read is checked before anything is made of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, HEADER

    def take(self, count: int) -> bytes:
        if self.place + count > len(self.data):
            raise MasqueradeError("E605", f"message ends after {len(self.data)} bytes, too early")
        self.place += count
        return self.data[self.place - count : self.place]

    def flag(self, least: int, most: int) -> int:
        value = self.take(1)[0]
        if not least <= value <= most:
            text = f"flag {value} at byte {self.place - 1} is not one from {least} to {most}"
            raise MasqueradeError("E605", text)
        return value

    def bits(self, chosen: int, count: int, known: list[Bits | None]) -> Bits:
        """Read a string of bits: as it is (1), or what changed of known ones (2, 3)."""
        reference = known[chosen - 2] if chosen > 1 else None
        if chosen > 1 and reference is None:
            raise MasqueradeError("E605", "bits refer to others that are not held here")
        ones = int.from_bytes(self.take(bits.width(count)), "little")
        if ones > count:
            raise MasqueradeError("E605", f"{ones} ones declared among {count} bits")
        form, size = bits.form(count, ones)
        found = bits.read(form, self.take(size), count, ones)
        given = found if reference is None else found ^ reference
        if _reference(given, known) != chosen - 1:
            raise MasqueradeError("E605", f"{count} bits are not in their shortest form")
        return given


def decode(
    data: bytes,
    template: Message,
    stamp: Stamp | None = None,
    session: Mapping[str, Tensor] | None = None,
    held: Message | None = None,
    any_masks: bool = False,
) -> Message:
    """Turn bytes into a message of the template's form; values outside a mask come out as zero.

    `held` are the versions that the receiver has, of parts that are not sent again. With
    `any_masks` the sender decides what has a mask, and the receiver has to look at that itself.
    """
    if not data and not template:
        return {}
    _check_header(data, template, stamp or Stamp())
    reader = _Reader(data)
    message: Message = {}
    for name, form in sorted(template.items()):
        old = None if held is None else held.get(name)
        if reader.flag(0, 1):
            message[name] = _decode_part(reader, form, name, session or {}, any_masks)
            if old is not None and _equal(message[name], old):
                raise MasqueradeError("E605", f"part `{name}` was sent again, and is held here")
        elif old is None:
            raise MasqueradeError("E605", f"part `{name}` refers to a version not held here")
        else:
            message[name] = old
    if reader.place != len(data):
        text = f"{len(data) - reader.place} bytes after the end of the message"
        raise MasqueradeError("E605", text)
    return message


def _check_header(data: bytes, template: Message, stamp: Stamp) -> None:
    if len(data) < HEADER:
        raise MasqueradeError("E605", f"{len(data)} bytes are less than a header")
    magic, version, parts, number, client, base = _HEAD.unpack(data[: _HEAD.size])
    if (magic, version, parts) != (_MAGIC, _VERSION, len(template)):
        raise MasqueradeError("E605", f"not a message of this run: it begins {data[:4]!r}")
    if data[_HEAD.size : HEADER] != _checksum(data[: _HEAD.size], memoryview(data)[HEADER:]):
        raise MasqueradeError("E605", "message is damaged: its checksum differs")
    if (number, client) != (stamp.round, stamp.client):
        expected = f"expected round {stamp.round} of client {stamp.client}"
        raise MasqueradeError("E605", f"message of round {number}, client {client}; {expected}")
    if base != stamp.base:
        text = f"message builds on {base:016x}, here is {stamp.base:016x}; start a new session"
        raise MasqueradeError("E605", text)


def _equal(one: Part, other: Part) -> bool:
    """Tell whether two parts mean the same, bit for bit."""
    keeps = one.keep.keys() == other.keep.keys()
    return keeps and all(_same_tensor(one, other, name) for name in one.values)


def _same_tensor(one: Part, other: Part, name: str) -> bool:
    held, left, right = one.held(name), one.values[name], other.values[name]
    if held is not None:
        if not torch.equal(one.keep[name], other.keep[name]):
            return False
        left, right = left[held], right[held]
    bytes_of = (value.contiguous().reshape(-1).view(torch.uint8) for value in (left, right))
    return torch.equal(*bytes_of)


def _decode_part(
    reader: _Reader, form: Part, name: str, session: Mapping[str, Tensor], any_masks: bool
) -> Part:
    values: Tree = {}
    keep: Tree = {}
    scale: Tree = {}
    for tensor in sorted(form.values):
        like, grain, place = form.values[tensor], form.grain_of(tensor), f"{name}/{tensor}"
        masked = tensor in form.keep
        chosen = reader.flag(masked and not any_masks, 3 * (masked or any_masks))
        held = None
        if chosen:
            shape = grain.bits(like.shape)
            known = _known(session, place, shape.numel())
            held = reader.bits(chosen, shape.numel(), known)
            keep[tensor] = torch.from_numpy(held).reshape(shape)
            if grain is not ENTRY:
                held = _flat(grain.expand(keep[tensor], like))
        kept = like.numel() if held is None else int(np.count_nonzero(held))
        if like.dtype is torch.bool:
            known = _known(session, f"{place}=", like.numel())
            inside = [None if one is None else _inside(one, held) for one in known]
            found = torch.from_numpy(reader.bits(reader.flag(1, 3), kept, inside))
        else:
            found = _read_numbers(reader, form, tensor, kept, scale)
        values[tensor] = _scatter(found, held, like)
    return Part(values, keep, form.grain, form.dtype, scale)


def _read_numbers(reader: _Reader, form: Part, name: str, kept: int, scale: Tree) -> Tensor:
    """Read the kept values of a tensor, in the network's type."""
    like = form.values[name]
    rounded = form.dtype if like.is_floating_point() else ""
    step = 1.0
    if rounded == "int8":
        (step,) = _SCALE.unpack(reader.take(_SCALE.size))
        fine = step >= FINEST or (step == 0 and math.copysign(1, step) > 0)
        if not fine or step * 127 > _LARGEST:
            raise MasqueradeError("E605", f"a step of {step} between values")
        scale[name] = torch.tensor(step)
    raw = reader.take(kept * size_of(form, name))
    read = ROUNDED.get(rounded, like.dtype)
    numbers = torch.frombuffer(bytearray(raw), dtype=read) if kept else torch.empty(0, dtype=read)
    if rounded == "int8":
        return _by_steps(numbers, step, like)
    return _widened(numbers, rounded, like) if rounded else numbers


def _widened(numbers: Tensor, rounded: str, like: Tensor) -> Tensor:
    """Return numbers of 16 bits in the network's type, if an encoder makes them of these."""
    found = numbers.to(like.dtype)
    again = in_fewer_bits(found, rounded)
    if not torch.equal(again.view(torch.int16), numbers.view(torch.int16)):
        raise MasqueradeError("E605", f"numbers of {rounded} that no encoder writes")
    return found


def _by_steps(numbers: Tensor, step: float, like: Tensor) -> Tensor:
    """Return int8 numbers times their step, which is a 127th of the largest value, or zero."""
    wide = numbers.to(torch.promote_types(like.dtype, torch.float32))
    found = (wide * step).to(like.dtype)
    most = float(wide.abs().max()) if len(wide) else 0
    if most != (127 if step else 0) or not torch.equal(_in_steps(found, step), wide):
        raise MasqueradeError("E605", "steps that no encoder takes")
    return found


def _scatter(found: Tensor, held: Bits | None, like: Tensor) -> Tensor:
    """Put the kept values of a tensor where its mask says."""
    if held is None:
        return found.reshape(like.shape)
    full = torch.zeros(like.numel(), dtype=like.dtype)
    full[torch.from_numpy(np.flatnonzero(held))] = found
    return full.reshape(like.shape)
