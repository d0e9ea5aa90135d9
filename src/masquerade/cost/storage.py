"""Bytes on a client's own device: the model that it uses, and what it keeps between rounds.

Some of that is for its method, some for the wire: what both ends hold need not be sent again.

Everything lies there packed: masks and other bits by eight, of masked values the kept ones alone,
and a tensor that is mostly zeros as a bit for every entry and the values that are none.
The initial weights are not counted: they come from a seed, or from a file that is counted apart.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.tree import State
from masquerade.wire.packed_bits import packed
from masquerade.wire.session import Session


def model_bytes(personal: Message) -> int:
    """Count the bytes of the model that a client uses."""
    return sum(_part_bytes(part) for part in personal.values())


def state_bytes(client: State, personal: Message) -> int:
    """Count the bytes of what a client keeps beside its model; what is equal in both lies once."""
    lies_there = _held(personal)

    def count(name: str, value: Any) -> int:
        if isinstance(value, Tensor):
            return 0 if lies_there(name, value) else min(_bytes(value), _sparse_bytes(value))
        if isinstance(value, Mapping):
            return sum(count(inner, entry) for inner, entry in value.items())
        pairs = [*value.values.items(), *value.keep.items()]
        return 0 if all(lies_there(*pair) for pair in pairs) else _part_bytes(value)

    return count("", client)


def session_bytes(session: Session, download: Message, client: State, personal: Message) -> int:
    """Count the bytes of what a client keeps for the wire alone.

    It is the last download, masks and all, and the bits that it sent last, unless they lie in its
    model or its state.
    """
    lies_there, total = _held([personal, client]), 0
    for part in download.values():
        for name, value in part.values.items():
            total += 0 if lies_there(name, value) else _bytes(value, part.held(name))
        total += sum(0 if lies_there(*pair) else _bytes(pair[1]) for pair in part.keep.items())
    had = _by_name([personal, client, download])
    for path, words in session.items():
        direction, _, place = path.partition("/")
        if direction == "up" and words.any():
            # A name that ends in "=" is that of values which are bits.
            bits = had.get(place.partition("/")[2].removesuffix("="), [])
            known = any(b.dtype is torch.bool and torch.equal(packed(b), words) for b in bits)
            total += 0 if known else words.numel() * words.element_size()
    return total


def _by_name(state: Any) -> dict[str, list[Tensor]]:
    had: dict[str, list[Tensor]] = {}
    for path, value in tree.named(state).items():
        had.setdefault(path.rpartition("/")[2], []).append(value)
    return had


def _held(state: Any) -> Callable[[str, Tensor], bool]:
    """Return what tells whether a tensor of that name lies in a state."""
    had = _by_name(state)

    def lies_there(name: str, value: Tensor) -> bool:
        others = had.get(name, [])
        return any(value.dtype == other.dtype and torch.equal(value, other) for other in others)

    return lies_there


def _part_bytes(part: Part) -> int:
    masks = sum(_bytes(keep) for keep in part.keep.values())
    return masks + sum(_bytes(value, part.held(name)) for name, value in part.values.items())


def _sparse_bytes(value: Tensor) -> int:
    filled = value != 0
    return _bytes(filled) + _bytes(value, filled)


def _bytes(value: Tensor, held: Tensor | None = None) -> int:
    count = value.numel() if held is None else int(held.sum())
    return -(-count // 8) if value.dtype is torch.bool else count * value.element_size()
