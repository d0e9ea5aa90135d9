"""Bytes down and up, from the messages themselves."""

from dataclasses import dataclass

import torch
from torch import Tensor

from masquerade.core.part import Message, Part
from masquerade.core.tree import Tree
from masquerade.wire.codec import Known, digest, nbytes, values_bytes


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


ANY = ""
"""The name under which `known` holds what every part starts as."""


def at_first(initial: Tree, clients: int) -> dict[str, Tensor]:
    """Return what both sides hold before the first message: any part is as `task.initial`."""
    return {ANY: digest(Part(initial)).expand(clients).clone()}


def measure(
    download: Message, upload: Message, known: Known, lead: int
) -> tuple[Traffic, dict[str, Tensor]]:
    """Count what one exchange costs, and return the digests that both sides hold after it.

    A part equal to the version that was last exchanged, in either direction, costs its flag only.
    """
    after = dict(known)
    for name in (*download, *upload):
        after.setdefault(name, known[ANY])
    sizes, values = [], []
    for message in (download, upload):
        sizes.append(nbytes(message, after, lead))
        values.append(_values(message, after, lead))
        after |= {name: digest(part, lead) for name, part in message.items()}
    clients = known[ANY].shape
    down, up, values_down, values_up = (
        count.to(torch.float64).cpu().expand(clients) for count in (*sizes, *values)
    )
    return Traffic(down, up, values_down, values_up), after


def _values(message: Message, known: Known, lead: int) -> Tensor:
    total = torch.zeros((), dtype=torch.int64)
    for name, part in message.items():
        new = digest(part, lead) != known[name]
        total = total + torch.where(new, values_bytes({name: part}, lead), 0).cpu()
    return total
