"""Strings of bits as bytes: packed, entropy-coded or listed, whichever is shortest by their counts.

The form and the length depend on two numbers alone, how many bits there are and how many are ones,
so that a simulator can count what it never encodes, and a reader knows both before it reads on.

The coded form is an asymmetric numeral system with one probability j / 2¹⁶ for the whole string.
From a state x a symbol of frequency f (out of 2²⁴) makes at most x · 2²⁴ / f + c, where c is 0 for
a zero and the frequency of zeros for a one. The new state being at least 2³², a zero costs at most
log₂(2²⁴ / f) bits, and a one c / 2³² · log₂ e bits more than that. While the state has not yet
grown to 2³², nothing is added up: these are the 32 bits of the start. What is coded never exceeds
the sum, and is padded with zero words up to it.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from masquerade.errors import MasqueradeError

Bits = npt.NDArray[np.bool_]

PACKED, CODED, LISTED = range(3)
_LEVELS = 1 << 16
_FREQUENCIES = 1 << 24
_UNIT = 1 << 20
"""Costs are whole numbers of 2⁻²⁰ bits, so that every device adds them up to the same length."""
_START = 32 * _UNIT
_PIECE = 1 << 16
"""Bits coded at a time: the coder takes four bytes for each."""


@lru_cache(maxsize=1)
def symbol_costs() -> tuple[list[int], list[int]]:
    """Return for every probability of a one what a one and a zero cost at most."""
    ones, zeros = [0], [0]
    for level in range(1, _LEVELS):
        # As the coder divides its frequencies; tests compare.
        zero = int((1 - level / _LEVELS) * (_FREQUENCIES - 2)) + 1
        one = _FREQUENCIES - zero
        excess = zero / (1 << 32) * math.log2(math.e)
        ones.append(math.ceil(_UNIT * (math.log2(_FREQUENCIES / one) + excess)))
        zeros.append(math.ceil(_UNIT * math.log2(_FREQUENCIES / zero)))
    return ones, zeros


@lru_cache(maxsize=4)
def _tables_at(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the costs of ones and of zeros, and the numbers from which another byte is needed."""
    ones, zeros = (torch.tensor(costs, device=device) for costs in symbol_costs())
    return ones, zeros, torch.tensor([1 << 8 * place for place in range(8)], device=device)


def width(count: int) -> int:
    """Return how many bytes hold a number from 0 to `count`."""
    return (count.bit_length() + 7) // 8


def widths(count: Tensor) -> Tensor:
    """Return the widths of many numbers."""
    return (count[..., None] >= _tables_at(count.device)[2]).sum(-1)


def _level(count: int, ones: int) -> int:
    return min(max((2 * ones * _LEVELS + count) // (2 * count), 1), _LEVELS - 1)


def coded_length(count: int, ones: int) -> int:
    """Return how many bytes the coder needs at most."""
    for_ones, for_zeros = symbol_costs()
    level = _level(count, ones)
    cost = _START + ones * for_ones[level] + (count - ones) * for_zeros[level]
    return 4 * (cost // (32 * _UNIT) + 1)


def form(count: int, ones: int) -> tuple[int, int]:
    """Return the form of `count` bits, `ones` of which are ones, and its length in bytes."""
    if not ones:
        return LISTED, 0
    lengths = ((count + 7) // 8, coded_length(count, ones), ones * width(count))
    length = min(lengths)
    return lengths.index(length), length


def length(count: Tensor, ones: Tensor) -> Tensor:
    """Return the lengths of many strings of bits, without the number of ones before each."""
    for_ones, for_zeros, _ = _tables_at(ones.device)
    known = count.clamp(min=1)
    level = ((2 * ones * _LEVELS + known) // (2 * known)).clamp(1, _LEVELS - 1)
    cost = _START + ones * for_ones[level] + (count - ones) * for_zeros[level]
    coded = 4 * (cost // (32 * _UNIT) + 1)
    return torch.minimum(torch.minimum((count + 7) // 8, coded), ones * widths(count))


def coder_of(count: int, ones: int, words: Any = None) -> tuple[Any, Any]:
    """Return a coder and the probability that it is to use."""
    # Imported where bits are coded: a simulator counts and needs no coder.
    from constriction import stream

    model = stream.model.Bernoulli(_level(count, ones) / _LEVELS, perfect=False)
    return stream.stack.AnsCoder(words), model


def code(bits: Bits, ones: int, length: int) -> bytes:
    """Return coded bits, padded to a length."""
    coder, model = coder_of(len(bits), ones)
    # A stack: what is read first is written last.
    for place in reversed(range(0, len(bits), _PIECE)):
        coder.encode_reverse(bits[place : place + _PIECE].astype(np.int32), model)
    words = coder.get_compressed().astype("<u4").tobytes()
    assert len(words) <= length
    return bytes(words.ljust(length, b"\0"))


def decoded(data: bytes, count: int, ones: int) -> Bits:
    """Return the bits that `code` coded."""
    words = np.frombuffer(data, dtype="<u4").astype(np.uint32)
    used = np.flatnonzero(words)[-1] + 1 if words.any() else 0
    coder, model = coder_of(count, ones, words[:used])
    bits = np.empty(count, dtype=bool)
    for place in range(0, count, _PIECE):
        piece = bits[place : place + _PIECE]
        piece[:] = coder.decode(model, len(piece))
    # Only the one string of words that the encoder makes leaves nothing over.
    if not coder.is_empty():
        raise MasqueradeError("E605", f"{count} coded bits leave something over")
    return bits


def pack(bits: Bits) -> bytes:
    """Return eight bits to a byte, the first one lowest."""
    return np.packbits(bits, bitorder="little").tobytes()


def unpack(data: bytes, count: int) -> Bits:
    """Return the first `count` bits of packed ones, the rest of which must be zero."""
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if bits[count:].any():
        raise MasqueradeError("E605", "the bits that fill the last byte are not zero")
    return bits[:count].view(bool)


def _list(bits: Bits) -> bytes:
    places = np.flatnonzero(bits).astype("<u8")
    return places.view(np.uint8).reshape(-1, 8)[:, : width(len(bits))].tobytes()


def _listed(data: bytes, count: int, ones: int) -> Bits:
    size = width(count)
    places = np.zeros((ones, 8), dtype=np.uint8)
    places[:, :size] = np.frombuffer(data, dtype=np.uint8).reshape(ones, size)
    index = places.view("<u8").reshape(-1).astype(np.int64)
    if ones and (index[-1] >= count or (np.diff(index) <= 0).any()):
        raise MasqueradeError("E605", f"places of ones do not ascend below {count}")
    bits = np.zeros(count, dtype=bool)
    bits[index] = True
    return bits


def write(bits: Bits) -> bytes:
    """Return the number of ones, and the bits in the form that it decides."""
    count, ones = len(bits), int(np.count_nonzero(bits))
    chosen, size = form(count, ones)
    head = ones.to_bytes(width(count), "little")
    if chosen == PACKED:
        return head + pack(bits)
    return head + (code(bits, ones, size) if chosen == CODED else _list(bits))


def read(chosen: int, data: bytes, count: int, ones: int) -> Bits:
    """Return the bits of a form; `data` has the length that `form` gave."""
    if chosen == LISTED:
        return _listed(data, count, ones)
    bits = unpack(data, count) if chosen == PACKED else decoded(data, count, ones)
    found = int(np.count_nonzero(bits))
    if found != ones:
        raise MasqueradeError("E605", f"{found} ones among {count} bits, not {ones} as declared")
    return bits
