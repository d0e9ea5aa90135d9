"""Which updates are taken: each is judged before aggregation, and refused as a whole or not at all.

A refused update changes nothing: server, rows, that client's state and its session are as if it had
not been asked. Shapes, round and base were compared when it was decoded, and weights are no part of
a message: the server counts a client's samples as it was registered with.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from masquerade.core.part import Message, Part
from masquerade.core.tree import onto
from masquerade.wire.count import kept

REASONS = {
    "W604": "values that are not finite",
    "W607": "more entries than its limit allows",
}


def judge(uploads: Message, limits: Sequence[Mapping[str, int]]) -> dict[int, str]:
    """Return the refused places of stacked uploads [clients, …], each with the code that says why.

    `limits` has for every client the most entries of a tensor. Values outside a mask are not meant,
    so they may be anything.
    """
    if not uploads or not limits:
        return {}
    # A sum is finite only if all of its terms are, and needs no mask; values that no mask holds, or
    # large ones, may make it infinite without harm, and then each is looked at.
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
