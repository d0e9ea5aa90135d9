"""Randomness as data: a counter hash on 64-bit integers, the same on every device and engine.

A key is an integer, or an int64 tensor of keys. Nothing here has state: the numbers drawn depend on
the key alone, so results cannot depend on the order of clients, the number of processes, or where a
run was interrupted.
"""

import zlib
from enum import StrEnum
from typing import overload

import torch
from torch import Tensor

Word = int | str | Tensor


class Label(StrEnum):
    """What keys are derived for.

    A label is hashed into the numbers that are drawn, so its spelling is frozen, also where the
    thing itself has another name by now: another word would give every published figure another
    draw.
    """

    ADAPT = "adapt"
    ANGLE = "angle"
    AVAILABLE = "available"
    BATCHES = "batches"
    BUDGETS = "budgets"
    CLIENT = "client"
    COHORT = "cohort"
    DOWNLOAD = "down"
    DROP = "drop"
    DROPOUT = "dropout"
    GATE = "gate"
    INITIAL = "initial"
    LEVEL = "level"
    MESSAGE = "wire"
    NOVEL = "novel"
    RADIUS = "radius"
    REFERENCE = "reference"
    SETUP = "hello"
    STEP = "step"
    TEST_ORDER = "test_order"
    TRAIN = "train"
    UPLOAD = "up"


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xFF51AFD7ED558CCD
_SECOND = 0xC4CEB9FE1A85EC53


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 33)) * _FIRST) & _MASK
    value = ((value ^ (value >> 33)) * _SECOND) & _MASK
    return _signed(value ^ (value >> 33))


def mix(value: Tensor) -> Tensor:
    """Hash 64-bit integers, each by itself: every bit depends on every bit."""
    # Tensors shift arithmetically, so the copied sign bits are masked off.
    low31 = (1 << 31) - 1
    value = (value ^ ((value >> 33) & low31)) * _signed(_FIRST)
    value = (value ^ ((value >> 33) & low31)) * _signed(_SECOND)
    return value ^ ((value >> 33) & low31)


@overload
def fold(key: int, *words: int | str) -> int: ...
@overload
def fold(key: int | Tensor, *words: Word) -> int | Tensor: ...
def fold(key: int | Tensor, *words: Word) -> int | Tensor:
    """Derive a key from a key and words: numbers, names, or tensors of numbers.

    >>> fold(1, "batches", 3) == fold(1, "batches", 3) != fold(1, "batches", 4)
    True
    """
    for word in words:
        number = zlib.crc32(word.encode()) if isinstance(word, str) else word
        if isinstance(key, int) and isinstance(number, int):
            key = _mix_int(_mix_int(key + _GOLDEN) + number)
        else:
            start = _mix_int(key + _GOLDEN) if isinstance(key, int) else mix(key + _signed(_GOLDEN))
            key = mix(torch.as_tensor(number + start))
    return key


def draw(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return `count` random int64 numbers for each key: shape [*key.shape, count]."""
    keys = torch.as_tensor(
        key, dtype=torch.int64, device=None if isinstance(key, Tensor) else device
    )
    counters = torch.arange(1, count + 1, device=keys.device) * _signed(_GOLDEN)
    return mix(mix(keys)[..., None] + counters)


def uniform(
    key: int | Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw uniform numbers in [0, 1) of one shape per key."""
    count = torch.Size(shape).numel()
    # 24 bits fill a float32 exactly; the same numbers serve every wider type.
    bits = (draw(key, count) >> 40) & ((1 << 24) - 1)
    return (bits.to(dtype) / (1 << 24)).reshape(bits.shape[:-1] + shape)


def normal(key: int | Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal numbers of one shape per key (Box and Muller)."""
    radius = (-2 * torch.log1p(-uniform(fold(key, Label.RADIUS), shape, dtype))).sqrt()
    return radius * torch.cos(2 * torch.pi * uniform(fold(key, Label.ANGLE), shape, dtype))


def choose(key: int, things: Tensor, count: int) -> Tensor:
    """Choose `count` of some things, without repetition, in ascending order."""
    ranks = draw(key, len(things))
    return torch.sort(things[ranks.argsort(stable=True)[:count]]).values


def order(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a random order of `count` things for each key: shape [*key.shape, count]."""
    return draw(key, count, device).argsort(dim=-1, stable=True)
