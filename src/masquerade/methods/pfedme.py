"""pFedMe (Dinh, Tran, Nguyen; NeurIPS 2020): personal models inside Moreau envelopes.

for every batch b, from the local model w (Algorithm 1, lines 7 and 8)
    θ ← K steps of SGD, begun at w, on  f(θ; b) + λ/2 · ‖θ − w‖²
    w ← w − η λ (w − θ)
server   w ← (1 − β) w + β · mean of the clients' w
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from masquerade.core import (
    Batch,
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
from masquerade.core.tree import blend
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class PFedMe(Method):
    """Two models at every client: θ fits its data near w, and w follows θ and is averaged."""

    lr: float = 0.005
    """Learning rate of the local model w (η); multiplied by the run's decay."""
    lam: float = 15.0
    """Weight of the proximal term, which pulls the personal model θ toward w (λ)."""
    inner_steps: int = 5
    """Steps that find the personal model θ, for every batch (K)."""
    # Differs: what an inner solver finds should not depend on the round, so only η is decayed.
    personal_lr: float = 0.09
    """Learning rate of the inner steps; not multiplied by the run's decay."""
    server_mix: float = 1.0
    """How far the server goes to the clients' mean (β); 1 is all the way."""

    views: ClassVar[tuple[str, ...]] = ("personal", "global")
    bounds: ClassVar[Bounds] = {
        "lam": (0, math.inf),
        "inner_steps": (1, math.inf),
        "personal_lr": (0, math.inf),
        "server_mix": (0, math.inf),
    }

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold θ."""
        return {"own": task.initial}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Take w from the server."""
        return {"params": message["params"].values, "own": client["own"]}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Find θ for every batch, and let w follow it."""
        solve = self.sgd_step(
            task, on=("own",), lr=self.personal_lr, proximal=self.lam, toward="params"
        )

        def step(work: State, batch: Batch, round: Round) -> State:
            still = replace(round, decay=torch.ones_like(round.decay))
            # Differs: the paper does not say where θ begins; at w it depends on nothing older.
            inner = solve.prepare({**work, "own": work["params"]}, still)
            for _ in range(self.inner_steps):
                inner = solve(inner, batch, still)
            share = self.lr * self.lam * round.decay
            params = blend(work["params"], inner["own"], share, task.trainable)
            return {"params": params, "own": inner["own"]}

        return (Stage("train", step, self.local_epochs),)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send w, keep θ."""
        return {"params": Part(work["params"])}, {"own": work["own"]}

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Go from the old w toward the mean; buffers become the mean."""
        # Differs: the paper trains all clients and averages some, equally; here the sampled ones
        # train and count by their samples, as in FedAvg.
        mean = cohort.average(uploads["params"], server["params"])
        params = blend(server["params"], mean, self.server_mix, task.trainable)
        return {"params": params}, rows

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use θ, or the shared model."""
        return {"params": Part(client["own"])} if view == "personal" else message


ENTRIES = {
    "pfedme": MethodEntry(
        method=PFedMe,
        view="personal",
        title="pFedMe",
        paper="Dinh et al., 2020",
        personal="a second model",
        sent="all weights",
        # θ is then one step of SGD from w, and w goes all the way to it.
        neutral={"momentum": 0.0, "inner_steps": 1, "personal_lr": 0.1, "lam": 10.0},
        neutral_within=1e-12,
    ),
}
