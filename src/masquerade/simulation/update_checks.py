"""Which updates are taken: each is checked before aggregation, and refused whole or not at all.

A refused update changes nothing: server, rows, that client's state and its session are as if it had
not been asked. Shapes, round and base were compared when it was decoded, and weights are no part of
a message: the server counts a client's samples as it was registered with.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.tree import State, onto
from masquerade.errors import MasqueradeWarning
from masquerade.wire.message_size import kept

REASONS = {
    "W604": "values that are not finite",
    "W607": "more entries than its limit allows",
}


def refusals(
    uploads: Message,
    limits: Sequence[Mapping[str, int]],
    states: State | None = None,
    before: Callable[[], State] = dict,
) -> dict[int, str]:
    """Return the refused places of stacked uploads [clients, …], each with the code that says why.

    `limits` has for every client the most entries of a tensor. Values outside a mask are not meant,
    so they may be anything. `states` are what clients are to hold from now on, `before` returns
    what they held until now: whose state leaves the finite numbers keeps the one that it had.
    """
    states = states or {}
    leaves = tree.leaves([uploads, states])
    if not leaves or not limits:
        return {}
    everybody = torch.ones(len(limits), dtype=torch.bool, device=leaves[0].device)
    # A sum is finite only if all of its terms are, and needs no mask; values that no mask holds, or
    # large ones, may make it infinite without harm, and then each is examined.
    sums, few = _sums(everybody, uploads, states), _within(everybody, uploads, limits)
    # One table comes from the device, not one number after another: here a round is waited for.
    finite, within = torch.stack([sums.isfinite(), few]).tolist()
    if not all(finite):
        finite = _stays_finite(_finite(everybody, uploads), states, before()).tolist()
    found: dict[int, str] = {}
    for code, column in zip(REASONS, (finite, within), strict=True):
        for place, fine in enumerate(column):
            if not fine:
                found.setdefault(place, code)
    return found


def warn_of_refusals(refused: Mapping[int, str], asked: int, when: str, warned: set[str]) -> None:
    """Warn of the first update refused for a reason, and of the first round without any update.

    `refused` are clients and codes; `when` names the round; `warned` is what was warned of before.
    """
    for id, code in refused.items():
        text = (
            f"{code} client {id}, {when}: {REASONS[code]}; its update is ignored, and so "
            "are others like it (metrics.jsonl lists them; of novel clients, summary.json)"
        )
        _warn_once(code, text, warned)
    if len(refused) == asked and set(refused.values()) == {"W604"}:
        text = (
            f"W604 {when}: no update is finite, so the round changes nothing, nor do "
            "others like it (lower method.lr?)"
        )
        _warn_once("round", text, warned)


def _warn_once(about: str, text: str, warned: set[str]) -> None:
    if about not in warned:
        warned.add(about)
        warnings.warn(text, MasqueradeWarning, stacklevel=4)


def all_finite(states: Any) -> Tensor | bool:
    """Tell whether all numbers of states are finite, where they lie."""
    numbers = [value for value in tree.leaves(states) if value.is_floating_point()]
    # A sum is finite only if all of its terms are, and costs one pass without a mask.
    return not numbers or torch.stack([value.sum().double() for value in numbers]).isfinite().all()


def _sums(everybody: Tensor, uploads: Message, states: State) -> Tensor:
    total = torch.zeros_like(everybody, dtype=torch.float64)
    for values in tree.leaves([[part.values for part in uploads.values()], states]):
        if values.is_floating_point():
            total += values.reshape(len(total), -1).sum(1)
    return total


def _finite(everybody: Tensor, uploads: Message) -> Tensor:
    for part in uploads.values():
        for name, values in part.values.items():
            if values.is_floating_point():
                held = part.held(name)
                meant = values if held is None else torch.where(held, values, 0)
                everybody = everybody & _all(meant.isfinite())
    return everybody


def _stays_finite(everybody: Tensor, states: State, before: State) -> Tensor:
    """Tell of whom nothing stops being finite; what a method begins with may be infinite."""
    old = tree.named(before)
    for path, value in tree.named(states).items():
        if value.is_floating_point():
            fine = value.isfinite()
            everybody = everybody & _all(fine | ~old[path].isfinite() if path in old else fine)
    return everybody


def _all(flags: Tensor) -> Tensor:
    return flags.reshape(len(flags), -1).all(1)


def _within(everybody: Tensor, uploads: Message, limits: Sequence[Mapping[str, int]]) -> Tensor:
    for part in uploads.values():
        for name in part.values.keys() & {name for limit in limits for name in limit}:
            everybody = everybody & _few(part, name, limits)
    if any("" in limit for limit in limits):
        masked = [(part, name) for part in uploads.values() for name in part.keep]
        total = sum((kept(part, name, lead=1) for part, name in masked), torch.tensor(0))
        most = [limit.get("", math.inf) for limit in limits]
        everybody = everybody & (onto(torch.tensor(most), everybody.device) >= total)
    return everybody


def _few(part: Part, name: str, limits: Sequence[Mapping[str, int]]) -> Tensor:
    """Tell of every client whether it sends no more entries of a tensor than it may."""
    whole, device = part.values[name][0].numel(), part.values[name].device
    most = torch.tensor([limit.get(name, whole) for limit in limits])
    return onto(most, device) >= kept(part, name, lead=1)
