"""What both ends of a wire hold of each other, so that it need not be sent again.

A session is a flat dict of tensors, stacked over clients when it lies in a run:

    version/PART                    digest of the part as the client got it last
    down/PART/TENSOR, up/…          packed bits of the last mask that came down, or went up
    down/PART/TENSOR=, up/…         the same of values that are bits

It moves on when an exchange has ended well. A client whose answer was lost or refused keeps the old
one, and so does the server. `base` is a hash of it that messages carry, and ends that disagree
start afresh with an empty session. Bits that are not there yet are zeros.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.random import draw, fold
from masquerade.core.tree import Tree
from masquerade.wire.packed_bits import is_expanded

Session = dict[str, Tensor]

Same = Mapping[str, Tensor | bool]
"""Of every part name whether it equals the version that the receiver holds; stacked, [clients]."""

Seen = dict[tuple[int, ...], tuple[Tensor, tuple[Tensor, ...]]]

ANY = "version/"
"""What every part starts as: the initial model."""
DIRECTIONS = ("down", "up")

_FIRST, _SECOND = 0x61C8864680B583EB, 0x2545F4914F6CDD1D
"""Odd numbers that mix bits; what they mix goes no further than this process."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@lru_cache(maxsize=64)
def _places(name: str, count: int, device: torch.device) -> Tensor:
    """Return a random number for every place of a tensor."""
    return draw(fold(0, name), count, device)


def _as_integers(values: Tensor) -> Tensor:
    if values.dtype is torch.bool:
        return values.to(torch.int64)
    return values.contiguous().view(_INTEGERS[values.element_size()]).to(torch.int64)


def digest(part: Part, lead: int = 0) -> Tensor:
    """Return 64 bits that tell versions of a part apart; `lead` = 1 for a stacked part.

    Each entry is hashed with its place, and the hashes are added up. It is no protection against a
    forger; messages that cross a network carry their own.
    """
    tensors = (*part.values.values(), *part.keep.values())
    if tensors and all(is_expanded(tensor, lead) for tensor in tensors):
        return digest(tree.take(part, 0)).expand(tensors[0].shape[0])
    hashes = []
    for name, values in part.values.items():
        held = part.held(name)
        meant = values if held is None else tree.select(held, values)
        hashes.append(_hashed(name, meant, lead))
        if name in part.keep:
            hashes.append(_hashed(f"{name}?", part.keep[name], lead))
    return torch.stack(hashes).sum(0) if hashes else torch.zeros((), dtype=torch.int64)


def _hashed(name: str, values: Tensor, lead: int) -> Tensor:
    whole = _as_integers(values)
    flat = whole.reshape(*whole.shape[:lead], whole.shape[lead:].numel())
    # In place on what was just made: this runs once a round over the whole model.
    mixed = (flat + _places(name, flat.shape[-1], flat.device)).mul_(_FIRST)
    return mixed.bitwise_xor_(mixed >> 29).mul_(_SECOND).sum(-1)


def begin(initial: Tree, clients: int, download: Message | None = None) -> Session:
    """Return what both sides hold before the first message: any part is as `task.initial`.

    A part of the first download that has some of its tensors only is known by these.
    """
    held = {ANY: Part(initial)}
    for name, part in (download or {}).items():
        if part.values.keys() < initial.keys():
            held[ANY + name] = Part({tensor: initial[tensor] for tensor in part.values})
    # A part without tensors (all of a model may be bits) is on no device of its own.
    device = next(iter(initial.values())).device
    return {name: digest(part).to(device).repeat(clients) for name, part in held.items()}


def versions(message: Message, lead: int, seen: Seen | None = None) -> Session:
    """Return the digests of a download's parts.

    `seen` keeps those of downloads that several clients get, so that each is made once.
    """
    return {ANY + name: _digest(part, lead, seen) for name, part in message.items()}


def _digest(part: Part, lead: int, seen: Seen | None) -> Tensor:
    if seen is None:
        return digest(part, lead)
    tensors = (*part.values.values(), *part.keep.values())
    key = tuple(id(tensor) for tensor in tensors)
    if key not in seen:
        # Holding the tensors keeps their identities from being given to others.
        seen[key] = (digest(part, lead), tensors)
    return seen[key][0]


def unchanged(session: Session, message: Message, fresh: Session) -> dict[str, Tensor]:
    """Tell of every part whether its digest is that of the version which the client holds."""
    return {
        name: fresh[ANY + name].to(session[ANY].device) == session.get(ANY + name, session[ANY])
        for name in message
    }


def moved(session: Session, direction: str, masks: Mapping[str, Tensor]) -> Session:
    """Return the session after masks, by PART/TENSOR, went in a direction."""
    return session | {f"{direction}/{name}": words for name, words in masks.items()}


def unsent(begun: Session, new: Session) -> Session:
    """Return what `begun`, the session of one client, has under names that came up in `new`."""
    first = begun[ANY]
    return {
        name: first.clone() if name.startswith(ANY) else first.new_zeros(values.shape[1:])
        for name, values in new.items()
        if name not in begun
    }


def base(run: str, session: Session) -> int:
    """Hash a run's name and what one client's session holds to 64 bits, for a message's header."""
    hashed = hashlib.blake2b(run.encode(), digest_size=8)
    # An end that starts afresh has an empty session.
    first = session.get(ANY, torch.zeros((), dtype=torch.int64))
    for name, values in sorted(session.items()):
        # What was never sent is not told by whether it is written down: `unsent` has zeros, and
        # the version of the initial model, of all clients as soon as one of them has another.
        version = name.startswith(ANY)
        if name == ANY or (not torch.equal(values, first) if version else values.any()):
            hashed.update(name.encode() + b"\0")
            hashed.update(values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return int.from_bytes(hashed.digest(), "little")
