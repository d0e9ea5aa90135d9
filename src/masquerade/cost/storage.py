"""Bytes on a client's own device: what it keeps between rounds, and the model that it uses.

Everything lies there packed: masks and other bits by eight, of masked values the kept ones alone,
and a tensor that is mostly zeros as a bit for every entry and the values that are none.
The initial weights are not counted: they come from a seed, or from a file that is counted apart.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.tree import State


def model_bytes(personal: Message) -> int:
    """Count the bytes of the model that a client uses."""
    return sum(_part_bytes(part) for part in personal.values())


def state_bytes(client: State, personal: Message) -> int:
    """Count the bytes of what a client keeps beside its model; what is equal in both lies once."""
    had: dict[str, list[Tensor]] = {}
    for path, value in tree.named(personal).items():
        had.setdefault(path.rpartition("/")[2], []).append(value)

    def lies_there(name: str, value: Tensor) -> bool:
        others = had.get(name, [])
        return any(value.dtype == other.dtype and torch.equal(value, other) for other in others)

    def count(name: str, value: Any) -> int:
        if isinstance(value, Tensor):
            return 0 if lies_there(name, value) else min(_bytes(value), _sparse_bytes(value))
        if isinstance(value, Mapping):
            return sum(count(inner, entry) for inner, entry in value.items())
        pairs = [*value.values.items(), *value.keep.items()]
        return 0 if all(lies_there(*pair) for pair in pairs) else _part_bytes(value)

    return count("", client)


def _part_bytes(part: Part) -> int:
    masks = sum(_bytes(keep) for keep in part.keep.values())
    return masks + sum(_bytes(value, part.held(name)) for name, value in part.values.items())


def _sparse_bytes(value: Tensor) -> int:
    filled = value != 0
    return _bytes(filled) + _bytes(value, filled)


def _bytes(value: Tensor, held: Tensor | None = None) -> int:
    count = value.numel() if held is None else int(held.sum())
    return -(-count // 8) if value.dtype is torch.bool else count * value.element_size()
