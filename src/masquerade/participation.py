"""Who takes part in a round: sampled among those who are there, and not all of them come back."""

from dataclasses import dataclass

import torch
from torch import Tensor

from masquerade.core.random import choose, fold, uniform
from masquerade.errors import MasqueradeError

FORMS = ("always", "cycle:GROUPS", "random:SHARE")
"""When a client can be sampled."""


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
        """Read the settings of a run; a count stands over a share."""
        asked = min(count, len(eligible)) or round(share * len(eligible))
        return cls(eligible, max(1, asked), available, drop, seed)

    def there(self, number: int) -> Tensor:
        """Return the clients that can be sampled in a round, which may be none."""
        match self.available.split(":"):
            case ["random", share]:
                drawn = uniform(fold(self.seed, "available", number), (len(self.eligible),))
                return self.eligible[drawn < float(share)]
            case ["cycle", groups]:
                return self.eligible[(self.eligible - number) % int(groups) == 0]
        return self.eligible

    def cohort(self, number: int) -> Tensor:
        """Sample the clients of a round, in ascending order."""
        there = self.there(number)
        return choose(fold(self.seed, "cohort", number), there, min(self.asked, len(there)))

    def returning(self, number: int, ids: Tensor) -> Tensor:
        """Return the places in a cohort of those whose round is not lost."""
        if not self.drop:
            return torch.arange(len(ids))
        drawn = uniform(fold(self.seed, "drop", number), (len(self.eligible),))
        kept = drawn[torch.searchsorted(self.eligible, ids)] >= self.drop
        return torch.nonzero(kept).flatten()


def check(available: str, clients: int | None = None) -> None:
    """Refuse a text that is none of the forms, and more groups than clients where these are known.

    A group without clients would be a round that changes nothing, in every cycle.
    """
    try:
        match available.split(":"):
            case ["always"]:
                return
            case ["cycle", groups] if int(groups) >= 1:
                if clients is None or int(groups) <= clients:
                    return
                text = f"`train.available` is {available!r}, and there are {clients} clients"
                raise MasqueradeError("E201", f"{text}; give no more groups than clients")
            case ["random", share] if 0 < float(share) <= 1:
                return
    except ValueError:
        pass
    known = ", ".join(FORMS)
    raise MasqueradeError("E201", f"`train.available` is {available!r}; write one of {known}")


def novel(clients: int, share: float, seed: int) -> Tensor:
    """Choose the clients that are kept out of training, in ascending order."""
    return choose(fold(seed, "novel"), torch.arange(clients), round(share * clients))
