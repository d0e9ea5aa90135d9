"""LG-FedAvg (Liang et al., 2020): local representations under a global head.

After a warm-up of FedAvg, every client goes on with a body of its own, which begins as the last
FedAvg model and is never sent again. Only the last layers are sent and averaged. Body and head are
trained together.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import (
    Blocks,
    Bounds,
    ClientInfo,
    Cohort,
    Message,
    Method,
    Part,
    Round,
    State,
    Task,
)
from masquerade.core.tree import split
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Method):
    """Personal bodies under a shared head, after a warm-up of FedAvg."""

    shared_layers: int = 1
    """How many of the last layers are global (θ^g); those below are local (θ^l)."""
    warmup: float = 2 / 3
    """Share of the rounds, the first ones, that are plain FedAvg."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    bounds: ClassVar[Bounds] = {"shared_layers": (1, math.inf), "warmup": (0, 1)}

    def schedule(self, number: int, rounds: int) -> str:
        """Share everything first, then the head alone."""
        # Differs: the warm-up is part of the run, where the authors load a model trained before.
        return "everything" if number < round(self.warmup * rounds) else "head"

    def row_init(self, task: Task, info: ClientInfo) -> State:
        """Note that the client has no body of its own yet."""
        device = next(iter(task.initial.values())).device
        return {"begun": torch.tensor(False, device=device)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold a body, which is not used before the client has begun."""
        body, _ = task.divide(self.shared_layers)
        return {"body": body, **self.row_init(task, info)}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send everything; after the warm-up the head, and the body to a client without one."""
        if round.phase == "everything":
            return super().download(task, server, row, round)
        body, _ = task.divide(self.shared_layers)
        # One bit for a whole tensor: what is not sent costs next to nothing.
        grain = {name: Blocks((value.numel(),)) for name, value in body.items()}
        first = ~row["begun"].reshape(1)
        return {"params": Part(server["params"], dict.fromkeys(body, first), grain)}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Take what was received; a client that has begun goes on with its own body."""
        received = message["params"].values
        if round.phase == "everything":
            return {"params": received}
        own = {
            name: torch.where(client["begun"], value, received[name])
            for name, value in client["body"].items()
        }
        return {"params": {**received, **own}}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send everything; after the warm-up the head alone, and keep the body."""
        if round.phase == "everything":
            return super().finish(task, work, message, client, round)
        body, head = split(work["params"], client["body"])
        return {"params": Part(head)}, {"body": body, "begun": torch.ones_like(client["begun"])}

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Average what was sent; after the warm-up the server's body stays as it is."""
        new = cohort.average(uploads["params"], server["params"])
        if round.phase != "everything":
            rows = {"begun": torch.ones_like(rows["begun"])}
        return {"params": {**server["params"], **new}}, rows

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the own body under the newest head."""
        return {"params": Part({**message["params"].values, **client["body"]})}


ENTRIES = {
    "lgfedavg": MethodEntry(
        method=LGFedAvg,
        view="personal",
        title="LG-FedAvg",
        paper="Liang et al., 2020",
        personal="all but the last layers",
        sent="all weights at first, then the last layers",
        neutral={"warmup": 1.0},
    ),
}
