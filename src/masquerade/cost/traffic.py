"""Bytes down and up, from the messages themselves."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from masquerade.core.part import Message, Part
from masquerade.core.tree import Tree
from masquerade.wire.codec import digest, nbytes, values_bytes

Known = Mapping[str, Tensor]
"""Of every part name the digest of the version that a client got last; stacked, one per client."""

ANY = ""
"""The name under which `known` holds what every part starts as."""

Seen = dict[tuple[int, ...], tuple[Tensor, tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Traffic:
    """Bytes per client [clients]: both directions as encoded, and the values alone."""

    down: Tensor
    up: Tensor
    values_down: Tensor
    values_up: Tensor

    @property
    def paper(self) -> Tensor:
        """Return the values sent, averaged over the two directions: the papers' convention."""
        return (self.values_down + self.values_up) / 2


def at_first(initial: Tree, clients: int, download: Message | None = None) -> dict[str, Tensor]:
    """Return what both sides hold before the first message: any part is as `task.initial`.

    A part of the first download that has some of its tensors only is known by these.
    """
    known = {ANY: Part(initial)}
    for name, part in (download or {}).items():
        if part.values.keys() < initial.keys():
            known[name] = Part({tensor: initial[tensor] for tensor in part.values})
    # A part without tensors (all of a model may be bits) is on no device of its own.
    device = next(iter(initial.values())).device
    return {name: digest(part).to(device).repeat(clients) for name, part in known.items()}


def measure(
    download: Message, upload: Message, known: Known, lead: int, seen: Seen | None = None
) -> tuple[Traffic, dict[str, Tensor]]:
    """Count what one exchange costs, and return the digests of what the client now holds.

    A download equal to the last one that the client got costs its flag only. `seen` keeps digests
    of downloads that several clients get, so that each is made once.
    """
    clients, device = known[ANY].shape, known[ANY].device
    fresh = {
        name: _digest(part, lead, seen).to(device).expand(clients)
        for name, part in download.items()
    }
    same = {name: value == known.get(name, known[ANY]) for name, value in fresh.items()}
    counts = (
        nbytes(download, same, lead),
        nbytes(upload, lead=lead),
        values_bytes(download, same, lead),
        values_bytes(upload, lead=lead),
    )
    columns = (count.to("cpu", torch.float64).expand(clients) for count in counts)
    return Traffic(*columns), {**known, **fresh}


def _digest(part: Part, lead: int, seen: Seen | None) -> Tensor:
    if seen is None:
        return digest(part, lead)
    tensors = (*part.values.values(), *part.keep.values())
    key = tuple(id(tensor) for tensor in tensors)
    if key not in seen:
        # Holding the tensors keeps their identities from being given to others.
        seen[key] = (digest(part, lead), tensors)
    return seen[key][0]
