"""Which updates are taken: each is checked before aggregation, and refused whole or not at all.

A refused update changes nothing: server, rows, that client's state and its session are as if it had
not been asked. Shapes, round and base were compared when it was decoded, and weights are no part of
a message: the server counts a client's samples as it was registered with.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.tree import onto
from masquerade.errors import MasqueradeWarning
from masquerade.wire.message_size import kept

REASONS = {
    "W604": "values that are not finite",
    "W607": "more entries than its limit allows",
}


def refusals(uploads: Message, limits: Sequence[Mapping[str, int]]) -> dict[int, str]:
    """Return the refused places of stacked uploads [clients, …], each with the code that says why.

    `limits` has for every client the most entries of a tensor. Values outside a mask are not meant,
    so they may be anything.
    """
    if not uploads or not limits:
        return {}
    # A sum is finite only if all of its terms are, and needs no mask; values that no mask holds, or
    # large ones, may make it infinite without harm, and then each is examined.
    sums, few = _sums(uploads, len(limits)), _within(uploads, limits)
    # One table comes from the device, not one number after another: here a round is waited for.
    finite, within = torch.stack([sums.isfinite(), few]).tolist()
    if not all(finite):
        finite = _finite(uploads, len(limits)).tolist()
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


def _sums(uploads: Message, clients: int) -> Tensor:
    total = torch.zeros(clients, dtype=torch.float64, device=_device(uploads))
    for part in uploads.values():
        for values in part.values.values():
            if values.is_floating_point():
                total += values.reshape(clients, -1).sum(1)
    return total


def _finite(uploads: Message, clients: int) -> Tensor:
    fine = torch.ones(clients, dtype=torch.bool, device=_device(uploads))
    for part in uploads.values():
        for name, values in part.values.items():
            if values.is_floating_point():
                held = part.held(name)
                meant = values if held is None else torch.where(held, values, 0)
                fine &= meant.isfinite().reshape(clients, -1).all(1)
    return fine


def _within(uploads: Message, limits: Sequence[Mapping[str, int]]) -> Tensor:
    fine = torch.ones(len(limits), dtype=torch.bool, device=_device(uploads))
    for part in uploads.values():
        for name in part.values.keys() & {name for limit in limits for name in limit}:
            fine &= _few(part, name, limits)
    return fine


def _few(part: Part, name: str, limits: Sequence[Mapping[str, int]]) -> Tensor:
    """Tell of every client whether it sends no more entries of a tensor than it may."""
    whole, device = part.values[name][0].numel(), part.values[name].device
    most = torch.tensor([limit.get(name, whole) for limit in limits])
    return onto(most, device) >= kept(part, name, lead=1)


def _device(uploads: Message) -> torch.device:
    tensors = (value for part in uploads.values() for value in part.values.values())
    return next((value.device for value in tensors), torch.device("cpu"))
