"""How far masks of personal models overlap: with one another (FedSelect, Figure 1), and with that
of the global model (DM-PFL, Figure 6b)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from masquerade.core.part import Message
from masquerade.core.tree import Tree
from masquerade.results import Overlap

MOST = 32
"""Clients that are compared with one another; the work grows with their square."""


def overlap(models: Sequence[Message], shared: Sequence[Message] = ()) -> Overlap | None:
    """Return the overlap of personal masks, or None where there are none.

    Overlap is intersection over union, over pairs of which one has any. The masks are those of the
    first part that has any. `shared` is the global model as each client has it, where there is one.
    """
    part = next((name for name, each in models[0].items() if each.keep), None)
    if part is None or len(models) < 2:
        return None
    masks = models[0][part].keep
    counts = {name: _counts([each[part].keep[name] for each in models[:MOST]]) for name in masks}
    last = [name for name, keep in masks.items() if keep.ndim > 1][-1:]
    together = torch.stack(list(counts.values())).sum(0)
    return Overlap(
        whole=_mean(together),
        layers={name: _mean(count) for name, count in counts.items()},
        pairs={name: tuple(map(tuple, _ratio(counts[name]).tolist())) for name in last},
        with_global=_with_global([each[part].keep for each in models], part, shared),
    )


def _with_global(
    masks: Sequence[Tree], part: str, shared: Sequence[Message]
) -> dict[str, tuple[int, ...]]:
    """Count the entries that every client's mask has in common with the global one."""
    common = [each[part].keep if part in each else {} for each in shared]
    names = [name for name in masks[0] if common and name in common[0]]
    return {
        name: tuple(
            int((mine[name] & ours[name]).sum()) for mine, ours in zip(masks, common, strict=True)
        )
        for name in names
    }


def _counts(masks: list[Tensor]) -> Tensor:
    """Return [2, clients, clients]: the entries of every pair that both have, and that any has."""
    # Counts up to 2^24 are exact in float32.
    bits = torch.stack([mask.flatten() for mask in masks]).float()
    shared, own = (bits @ bits.T).double(), bits.sum(1).double()
    return torch.stack([shared, own[:, None] + own - shared])


def _ratio(counts: Tensor) -> Tensor:
    shared, united = counts
    return torch.where(united > 0, shared / united.clamp(min=1), 1)


def _mean(counts: Tensor) -> float:
    """Average over the pairs of different clients; two empty masks do not overlap, nor differ."""
    ratio, apart = _ratio(counts), ~torch.eye(counts.shape[-1], dtype=torch.bool)
    some = ratio[apart & (counts[1].cpu() > 0).to(apart.device)]
    return float(some.mean()) if len(some) else 1.0
