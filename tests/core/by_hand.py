"""Aggregation spelled out: plain loops over clients and coordinates, in Python numbers."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from masquerade.core.aggregation import Aggregation
from masquerade.core.part import Part


class ByHand(Aggregation):
    """The same rules, by their definitions."""

    def reduce(
        self,
        part: Part,
        weights: Tensor,
        otherwise: Mapping[str, Tensor],
        absent: str = "skip",
        least: int = 1,
    ) -> dict[str, Tensor]:
        columns = {name: _columns(part, name) for name in part.values}
        if self.clip_updates:
            far = _clip(columns, part, otherwise, self.clip_updates)
            left = [client for client in range(len(weights)) if client not in far]
            weights = weights[left]
            columns = {
                name: [[sent[client] for client in left] for sent in column]
                for name, column in columns.items()
            }
        found = {}
        for name, column in columns.items():
            old = otherwise[name]
            bits = part.values[name].dtype is torch.bool
            flat = [
                self._one(sent, weights.tolist(), before, absent, max(1, least), bits)
                for sent, before in zip(column, old.flatten().tolist(), strict=True)
            ]
            whole = not old.is_floating_point()
            flat = [round(each) for each in flat] if whole else flat
            found[name] = torch.tensor(flat, dtype=old.dtype).reshape(old.shape)
        return found

    def _one(
        self, sent: list[Any], weights: list[float], old: float, absent: str, least: int, bits: bool
    ) -> float:
        """Reduce one coordinate; None stands for a client that does not hold it."""
        mean = self.rule == "mean"
        counted = [
            (value, weight)
            for value, weight in zip(sent, weights, strict=True)
            if mean or weight > 0
        ]
        holders = [pair for pair in counted if pair[0] is not None]
        if len(holders) < max(least, self.min_contributors):
            return old
        pairs = holders
        if absent == "zero":
            pairs = [(0.0 if value is None else value, weight) for value, weight in counted]
        if mean:
            mass = sum(weight for _, weight in pairs)
            held = sum(weight for _, weight in holders)
            return math.fsum(v * w for v, w in pairs) / mass if held else old
        values = sorted(float(value) for value, _ in pairs)
        count = len(values)
        if self.rule == "median":
            lower, upper = values[(count - 1) // 2], values[count // 2]
            return old if bits and lower != upper else (lower + upper) / 2
        out = math.floor(count * self.trim + 1e-9)
        rest = values[out : count - out]
        return sum(rest) / len(rest)


def _columns(part: Part, name: str) -> list[list[Any]]:
    """List for every coordinate what each client sends, or None."""
    held = part.held(name)
    rows = []
    for client, values in enumerate(part.values[name]):
        flat = values.flatten().tolist()
        keep = [True] * len(flat) if held is None else held[client].flatten().tolist()
        rows.append([value if mine else None for value, mine in zip(flat, keep, strict=True)])
    return [list(column) for column in zip(*rows, strict=True)]


def _clip(
    columns: dict[str, list[list[Any]]], part: Part, old: Mapping[str, Tensor], multiple: float
) -> set[int]:
    """Scale what clients send, in place; return those that are left out."""
    names = [name for name in columns if part.values[name].is_floating_point()]
    if not names or len(part.values[names[0]]) < 2:
        return set()
    clients = len(part.values[names[0]])
    befores = {name: old[name].flatten().tolist() for name in names}
    lengths = []
    for client in range(clients):
        squares = [
            (column[client] - before) ** 2
            for name in names
            for column, before in zip(columns[name], befores[name], strict=True)
            if column[client] is not None
        ]
        lengths.append(math.sqrt(sum(squares) / len(squares)) if squares else None)
    known = sorted(length for length in lengths if length is not None)
    if not known:
        return set()
    farthest = 1000 * multiple * known[(len(known) - 1) // 2]
    far = {i for i, length in enumerate(lengths) if length is not None and length > farthest}
    near = [length for length in known if length <= farthest]
    bound = multiple * near[(len(near) - 1) // 2]
    for client, length in enumerate(lengths):
        if length is None or length <= bound or client in far:
            continue
        for name in names:
            for column, before in zip(columns[name], befores[name], strict=True):
                if column[client] is not None:
                    near = before + bound / length * (column[client] - before)
                    narrow = torch.tensor(near, dtype=part.values[name].dtype)
                    column[client] = float(narrow)
    return far
