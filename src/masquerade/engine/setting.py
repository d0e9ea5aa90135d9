"""What every engine is given, and what it gives back."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.round import Round
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.cost.compute import Flops, Meter
from masquerade.cost.traffic import Traffic
from masquerade.data.batches import Feed


@dataclass(frozen=True)
class Setting:
    """The static facts of a run, as far as clients' work depends on them."""

    method: Method
    task: Task
    feed: Feed
    meter: Meter
    rounds: int
    rate_decay: float = 1.0
    """Learning rates are multiplied by this once per round."""

    def round(self, kind: str, phase: Hashable, number: int) -> Round:
        """Make the round that methods see."""
        device = self.feed.federation.x.device

        def scalar(value: float) -> Tensor:
            return torch.tensor(value, dtype=torch.float64, device=device)

        decay = scalar(self.rate_decay**number)
        return Round(kind, phase, scalar(number), scalar(self.rounds), decay)


@dataclass(frozen=True)
class Outcome:
    """What a cohort's rounds gave, stacked [clients, …] in the order of their ids."""

    uploads: Message
    clients: State
    known: dict[str, Tensor]
    traffic: Traffic
    flops: Flops


class Engine(Protocol):
    """A way to run `client_round` over some clients."""

    name: str

    def work(
        self,
        server: State,
        rows: State,
        clients: State,
        known: dict[str, Tensor],
        ids: Tensor,
        round: Round,
        number: int,
    ) -> Outcome:
        """Do the rounds of the clients `ids`, whose rows and states are stacked."""
        ...

    def judge(
        self,
        server: State,
        rows: State,
        clients: State,
        ids: Tensor,
        round: Round,
        number: int,
        samples: list[Tensor],
    ) -> tuple[list[Message], list[Tensor], Flops]:
        """Adapt every client on a copy: personal models, the metric of each sample, and the cost.

        The phase of `round` is (view, novel).
        """
        ...

    def close(self) -> None:
        """Let go of processes."""
        ...
