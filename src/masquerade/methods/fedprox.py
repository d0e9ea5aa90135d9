"""FedProx (Li et al., 2020): FedAvg whose clients are pulled toward the model they received.

minimize  F_c(w) + μ/2 · ‖w − w_received‖²
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from masquerade.core import Batch, Bounds, Message, Method, Round, Stage, State, Task, Tree
from masquerade.core.tree import squared_distance


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """FedAvg with a proximal pull."""

    pull: float = 0.05
    """Strength of the pull (μ)."""

    bounds: ClassVar[Bounds] = {"pull": (0, math.inf)}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Remember the received model."""
        received = message["params"].values
        return {"params": received, "anchor": received}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train with the pull."""

        def pulled(work: State, batch: Batch, round: Round) -> tuple[Tensor, Tree]:
            loss, buffers = task.loss(work["params"], batch)
            return loss + self.pull / 2 * squared_distance(work["params"], work["anchor"]), buffers

        return (Stage("train", self.descend(task, pulled), self.epochs),)
