"""Bytes down and up, from the messages themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from masquerade.core.part import Message
from masquerade.core.tree import onto, scalar
from masquerade.wire.message_size import count
from masquerade.wire.session import ANY, Seen, Session, moved, unchanged, versions


@dataclass(frozen=True)
class Traffic:
    """Bytes per client [clients]: both directions as encoded, and the values alone."""

    down: Tensor
    up: Tensor
    values_down: Tensor
    values_up: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
    """The same bytes by direction and part, as in "up/params", without the messages' headers."""

    @property
    def paper(self) -> Tensor:
        """Return the values sent, averaged over the two directions: the papers' convention."""
        return (self.values_down + self.values_up) / 2

    def here(self) -> "Traffic":
        """Return the same in host memory, in one copy."""
        known = (self.down, self.up, self.values_down, self.values_up, *self.parts.values())
        return _of_table(torch.stack(known).cpu(), list(self.parts))


def measure_exchange(
    download: Message, upload: Message, session: Session, lead: int, seen: Seen | None = None
) -> tuple[Traffic, Session]:
    """Count what one exchange costs, and return the session after it.

    A download equal to the last one that the client got costs its flag only, and masks what changed
    since they last went either way; an upload may also refer to this very download.
    """
    clients, device = session[ANY].shape, session[ANY].device
    fresh = {
        name: onto(value, device).expand(clients)
        for name, value in versions(download, lead, seen).items()
    }
    down = count(download, session, unchanged(session, download, fresh), lead)
    after = moved(session | fresh, "down", _of_all(down.masks, lead, clients))
    up = count(upload, after, lead=lead)
    after = moved(after, "up", _of_all(up.masks, lead, clients))
    parts = {f"down/{name}": size for name, size in down.parts.items()}
    parts |= {f"up/{name}": size for name, size in up.parts.items()}
    counts = (down.bytes, up.bytes, down.values, up.values, *parts.values())
    if clients:
        table = torch.stack([scalar(one, device).expand(clients) for one in counts]).double()
    else:
        table = torch.tensor([float(one) for one in counts], dtype=torch.float64)
    return _of_table(table, list(parts)), after


def _of_table(table: Tensor, parts: Sequence[str]) -> Traffic:
    down, up, values_down, values_up, *rest = table.unbind()
    return Traffic(down, up, values_down, values_up, dict(zip(parts, rest, strict=True)))


def _of_all(masks: dict[str, Tensor], lead: int, clients: torch.Size) -> dict[str, Tensor]:
    return {name: words.expand(*clients, words.shape[-1]) for name, words in masks.items()}
