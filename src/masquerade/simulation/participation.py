"""Who takes part in a round: sampled among those who are there, and not all of them come back."""

from dataclasses import dataclass

import torch
from torch import Tensor

from masquerade.core.random import Label, choose, fold, uniform


@dataclass(frozen=True)
class Participation:
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
    ) -> "Participation":
        """Read the settings of a run; a number of clients goes before a share."""
        asked = min(count, len(eligible)) or round(share * len(eligible))
        return cls(eligible, max(1, asked), available, drop, seed)

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
