"""Local: every client trains alone on its own data, and nothing is sent."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import (
    Bounds,
    ClientInfo,
    Cohort,
    Message,
    Method,
    Part,
    Round,
    Stage,
    State,
    Task,
)
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Training without a federation, in the rounds in which a client is sampled."""

    spend: float = 1.0
    """Factor on the epochs of the whole run; `local_flops` computes it, so that the training costs
    as many FLOPs as the one that `like` names."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    bounds: ClassVar[Bounds] = {"spend": (0, math.inf)}

    def schedule(self, number: int, rounds: int) -> Hashable:
        """Return the epochs of a round, perhaps 0; over a run their mean is E · spend."""
        # The small term undoes the rounding of products such as 0.3 × 10.
        done, due = (
            math.floor(n * self.local_epochs * self.spend + 1e-9) for n in (number, number + 1)
        )
        return due - done

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train for the epochs of this round."""
        return (Stage("train", self.sgd_step(task), round.phase),)

    def server_init(self, task: Task) -> State:
        """Hold nothing."""
        return {}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send nothing."""
        return {}

    def aggregate(
        self,
        task: Task,
        server: State,
        rows: State,
        uploads: Message,
        cohort: Cohort,
        round: Round,
    ) -> tuple[State, State]:
        """Receive nothing."""
        return server, rows

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold a model; all clients begin with the initial one."""
        return {"params": task.initial}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Go on with the own model."""
        return {"params": client["params"]}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Keep the own model."""
        return {}, {"params": work["params"]}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the own model."""
        return {"params": Part(client["params"])}


ENTRIES = {
    "local": MethodEntry(
        method=Local,
        view="personal",
        title="Local",
        paper="no federation",
        personal="everything",
        sent="nothing",
        never_neutral="shares nothing",
    ),
    "local_flops": MethodEntry(
        method=Local,
        view="personal",
        title="Local, equal FLOPs",
        paper="no federation",
        personal="everything",
        sent="nothing",
        like="fedavg",
        never_neutral="shares nothing",
    ),
}
