"""Messages as bytes: masks as packed bits, then the kept values, and one flag for "as you have it".

The layout is closed: both sides know from the method which parts, names, shapes and types a message
holds (a template), so none of that is sent. `nbytes` is computed from counts alone and equals
`len(encode(…))`; that is a law, tested for every method.

    message  = magic "MQ", version, number of parts, CRC-32 of the body; then its parts by name
    part     = 0 (equal to the version both sides hold) | 1, then its tensors in order
    tensor   = 0 (whole) | 1, packed mask; then the kept values, little-endian; bits packed
"""

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.random import draw, fold
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError

Same = Mapping[str, Tensor | bool]
"""Of every part name whether it equals the version that the receiver holds; stacked, [clients]."""

_HEADER = struct.Struct("<2sBBI")
_MAGIC, _VERSION = b"MQ", 1
_FIRST, _SECOND = 0x61C8864680B583EB, 0x2545F4914F6CDD1D
"""Odd numbers that spread bits; what they spread goes no further than this process."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@lru_cache(maxsize=64)
def _places(name: str, count: int, device: torch.device) -> Tensor:
    """Return a random number for every place of a tensor."""
    return draw(fold(0, name), count, device)


def _as_integers(values: Tensor) -> Tensor:
    if values.dtype is torch.bool:
        return values.to(torch.int64)
    return values.contiguous().view(_BITS[values.element_size()]).to(torch.int64)


def _flat(values: Tensor, lead: int) -> Tensor:
    return values.reshape(*values.shape[:lead], values.shape[lead:].numel())


def digest(part: Part, lead: int = 0) -> Tensor:
    """Return 64 bits that tell versions of a part apart; `lead` = 1 for a stacked part.

    Each entry is hashed with its place, and the hashes are added up. It is no protection against a
    forger; messages that cross a network carry their own.
    """
    tensors = (*part.values.values(), *part.keep.values())
    if lead and tensors and all(tensor.stride(0) == 0 for tensor in tensors):
        # One version, spread over clients without being copied: it is hashed once.
        return digest(tree.take(part, 0)).expand(tensors[0].shape[0])
    total = torch.zeros((), dtype=torch.int64)
    for name, values in part.values.items():
        held = part.held(name)
        meant = values if held is None else torch.where(held, values, values.new_zeros(()))
        total = total.to(values.device) + _hashed(name, meant, lead)
        if name in part.keep:
            total = total + _hashed(f"{name}?", part.keep[name], lead)
    return total


def _hashed(name: str, values: Tensor, lead: int) -> Tensor:
    flat = _flat(_as_integers(values), lead)
    # In place on what was just made: this runs once a round over the whole model.
    mixed = (flat + _places(name, flat.shape[-1], flat.device)).mul_(_FIRST)
    return mixed.bitwise_xor_(mixed >> 29).mul_(_SECOND).sum(-1)


def _kept(part: Part, name: str, lead: int) -> Tensor | int:
    """Count the values of a tensor that travel: one number, or [clients] under a stacked mask."""
    held = part.held(name)
    if held is None:
        return part.values[name].shape[lead:].numel()
    return _flat(held, lead).sum(-1)


def _values_bytes(part: Part, lead: int) -> Tensor | int:
    total: Tensor | int = 0
    for name, values in part.values.items():
        kept = _kept(part, name, lead)
        bits = values.dtype is torch.bool
        total = total + ((kept + 7) // 8 if bits else kept * values.element_size())
    return total


def values_bytes(message: Message, same: Same | None = None, lead: int = 0) -> Tensor:
    """Count the bytes of the kept values alone, the way the papers count."""
    total: Tensor | int = 0
    for name, part in message.items():
        total = total + _unless_same(_values_bytes(part, lead), name, same)
    return torch.as_tensor(total)


def nbytes(message: Message, same: Same | None = None, lead: int = 0) -> Tensor:
    """Count the bytes of a message, from counts alone; `lead` = 1 for a stacked one: [clients]."""
    total: Tensor | int = _HEADER.size if message else 0
    for name, part in message.items():
        masks = sum((keep.shape[lead:].numel() + 7) // 8 for keep in part.keep.values())
        whole = _values_bytes(part, lead) + masks + len(part.values)
        total = total + 1 + _unless_same(whole, name, same)
    return torch.as_tensor(total)


def _unless_same(size: Tensor | int, name: str, same: Same | None) -> Tensor | int:
    if same is None or name not in same:
        return size
    return torch.where(torch.as_tensor(same[name]), 0, torch.as_tensor(size))


def _pack(bits: Tensor) -> bytes:
    return np.packbits(bits.reshape(-1).cpu().numpy(), bitorder="little").tobytes()


def encode(message: Message, same: Same | None = None) -> bytes:
    """Turn one client's message into bytes; an empty message is no bytes at all."""
    if not message:
        return b""
    body = bytearray()
    for part_name, part in sorted(message.items()):
        if same is not None and same.get(part_name):
            body.append(0)
            continue
        body.append(1)
        for name, values in part.values.items():
            held = part.held(name)
            body.append(0 if held is None else 1)
            if held is not None:
                body += _pack(part.keep[name])
            kept = (values if held is None else values[held]).contiguous()
            is_bits = values.dtype is torch.bool
            body += (
                _pack(kept)
                if is_bits
                else kept.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
    return _HEADER.pack(_MAGIC, _VERSION, len(message), zlib.crc32(body)) + bytes(body)


class _Reader:
    """Bytes with a place in them; every read is checked before anything is made of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def take(self, count: int) -> bytes:
        if self.place + count > len(self.data):
            raise MasqueradeError("E605", f"message ends after {len(self.data)} bytes, too early")
        self.place += count
        return self.data[self.place - count : self.place]

    def flag(self) -> bool:
        value = self.take(1)[0]
        if value > 1:
            raise MasqueradeError(
                "E605", f"flag {value} at byte {self.place - 1} is neither 0 nor 1"
            )
        return bool(value)

    def bits(self, shape: torch.Size) -> Tensor:
        count = shape.numel()
        packed = np.frombuffer(self.take((count + 7) // 8), dtype=np.uint8)
        bits = np.unpackbits(packed, bitorder="little")
        if bits[count:].any():
            raise MasqueradeError("E605", f"padding before byte {self.place} is not zero")
        return torch.from_numpy(bits[:count].astype(bool)).reshape(shape)

    def numbers(self, count: int, dtype: torch.dtype) -> Tensor:
        if dtype is torch.bool:
            return self.bits(torch.Size([count]))
        raw = self.take(count * torch.empty(0, dtype=dtype).element_size())
        return (
            torch.frombuffer(bytearray(raw), dtype=dtype) if count else torch.empty(0, dtype=dtype)
        )


def decode(data: bytes, template: Message, held: Message | None = None) -> Message:
    """Turn bytes into a message of the template's form; values outside a mask come out as zero.

    `held` are the versions that the receiver has of parts that were not sent again.
    """
    if not data and not template:
        return {}
    reader = _Reader(data)
    magic, version, parts, checksum = _HEADER.unpack(reader.take(_HEADER.size))
    if (magic, version, parts) != (_MAGIC, _VERSION, len(template)):
        raise MasqueradeError("E605", f"not a message of this run: header {data[: _HEADER.size]!r}")
    if zlib.crc32(data[_HEADER.size :]) != checksum:
        raise MasqueradeError("E605", "message is damaged: its checksum differs")
    message: Message = {}
    for part_name, form in sorted(template.items()):
        if not reader.flag():
            if held is None or part_name not in held:
                raise MasqueradeError(
                    "E605", f"part `{part_name}` refers to a version not held here"
                )
            message[part_name] = held[part_name]
            continue
        message[part_name] = _decode_part(reader, form)
    if reader.place != len(data):
        raise MasqueradeError(
            "E605", f"{len(data) - reader.place} bytes after the end of the message"
        )
    return message


def _decode_part(reader: _Reader, form: Part) -> Part:
    values: Tree = {}
    keep: Tree = {}
    for name, like in form.values.items():
        if reader.flag():
            keep[name] = reader.bits(form.grain_of(name).bits(like.shape))
            held = form.grain_of(name).spread(keep[name], like)
            full = torch.zeros(like.shape, dtype=like.dtype)
            full[held] = reader.numbers(int(held.sum()), like.dtype)
            values[name] = full
        else:
            values[name] = reader.numbers(like.numel(), like.dtype).reshape(like.shape)
    return Part(values, keep, form.grain)
