"""Who takes part in a round: sampled among those who are there, and not all of them come back.

In a simulation a seed says so. Where clients are real, it is seen in the round.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from masquerade.core.random import Label, choose, fold, uniform


class Participation(Protocol):
    """Says who takes part in a round."""

    @property
    def eligible(self) -> Tensor:
        """Return the clients with training data that are not kept out."""
        ...

    def setup(self, number: int, done: bool) -> Tensor:
        """Return the clients that do their setup before a round; `done` is whether any has."""
        ...

    def cohort(self, number: int) -> Tensor:
        """Return the clients that are asked in a round, in ascending order."""
        ...

    def returning(self, number: int, ids: Tensor) -> Tensor:
        """Return the places in a cohort of those whose round is not known to be lost."""
        ...


@dataclass(frozen=True)
class Drawn:
    """The clients of every round, from the seed and the number of the round alone."""

    eligible: Tensor
    """Clients with training data that are not kept out."""
    asked: int
    available: str
    drop: float
    seed: int

    @classmethod
    def of(
        cls, eligible: Tensor, share: float, count: int, available: str, drop: float, seed: int
    ) -> "Drawn":
        """Read the settings of a run; a number of clients goes before a share."""
        asked = min(count, len(eligible)) or round(share * len(eligible))
        return cls(eligible, max(1, asked), available, drop, seed)

    def setup(self, number: int, done: bool) -> Tensor:
        """Return everybody before the first round."""
        return self.eligible[:0] if done else self.eligible

    def there(self, number: int) -> Tensor:
        """Return the clients that can be sampled in a round, which may be none."""
        match self.available.split(":"):
            case ["random", share]:
                drawn = uniform(fold(self.seed, Label.AVAILABLE, number), (len(self.eligible),))
                return self.eligible[drawn < float(share)]
            case ["cycle", groups]:
                return self.eligible[(self.eligible - number) % int(groups) == 0]
        return self.eligible

    def cohort(self, number: int) -> Tensor:
        """Sample the clients of a round, in ascending order."""
        there = self.there(number)
        return choose(fold(self.seed, Label.COHORT, number), there, min(self.asked, len(there)))

    def returning(self, number: int, ids: Tensor) -> Tensor:
        """Return the places in a cohort of those whose round is not lost."""
        if not self.drop:
            return torch.arange(len(ids))
        drawn = uniform(fold(self.seed, Label.DROP, number), (len(self.eligible),))
        kept = drawn[torch.searchsorted(self.eligible, ids)] >= self.drop
        return torch.nonzero(kept).flatten()
