"""The samples that clients are evaluated on, corrupted: CIFAR-10-C's own images, or made ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from masquerade.data import cache
from masquerade.data.corruption import KINDS, check_images, corrupt
from masquerade.data.partition.federation import Federation
from masquerade.data.source import published

CLEAN, PUBLISHED = "cifar10", "cifar10c"
FIRST, ROWS = 50_000, 10_000
"""Where CIFAR-10's test images begin, and how many there are; CIFAR-10-C has them in this order."""


def kinds_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of corruption that are meant, none twice; "all" are all of them."""
    return tuple(KINDS) if "all" in names else tuple(dict.fromkeys(names))


@dataclass(frozen=True, eq=False)
class CorruptedSets:
    """The samples that clients are evaluated on, to be had under any kind and severity."""

    federation: Federation
    places: Tensor
    """The samples' numbers in the federation, ascending."""
    own: list[Tensor]
    """By client: where its samples are among these."""
    source: str
    """"published" or "generated"."""

    @classmethod
    def of(cls, federation: Federation, split: str = "test") -> "CorruptedSets":
        """Take a federation's samples of a split; refuse with E202 what are no images."""
        check_images(federation.x)
        parts: tuple[Tensor, ...] = getattr(federation, split)
        places = torch.unique(torch.cat(parts))
        own = [torch.searchsorted(places, part) for part in parts]
        source = "published" if _are_published(federation, places) else "generated"
        return cls(federation, places, own, source)

    @property
    def y(self) -> Tensor:
        """Return the samples' targets."""
        return self.federation.y[self.places]

    def x(self, kind: str, severity: int) -> Tensor:
        """Return the samples as a corruption leaves them: a new copy, which nothing here keeps."""
        if self.source == "published":
            images = published(kind, severity).x[self.places.cpu() - FIRST]
            return images.to(self.federation.x.device)
        return corrupt(self.federation.x[self.places], kind, severity, ids=self.places)


def _are_published(federation: Federation, places: Tensor) -> bool:
    """Tell whether CIFAR-10-C is in the cache and has all of these samples.

    Those of CIFAR-10's training part are not in it: figures from both would be comparable with
    nobody's.
    """
    whole = federation.name == CLEAN and len(federation.y) == FIRST + ROWS
    if not (whole and cache.holds(PUBLISHED) and bool((places >= FIRST).all())):
        return False
    labels = published(next(iter(KINDS)), 1).y
    return len(labels) == ROWS and torch.equal(labels, federation.y[FIRST:].cpu())
