"""FedProx (Li et al., 2020): FedAvg whose clients are pulled toward the model they received.

minimize  F_c(w) + μ/2 · ‖w − w_received‖²        the proximal term: `sgd_step(proximal=μ)`
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import Bounds, Message, Method, Round, Stage, State, Task
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """FedAvg with a proximal term."""

    mu: float = 0.05
    """Weight of the proximal term, which pulls clients toward the model they received (μ)."""

    bounds: ClassVar[Bounds] = {"mu": (0, math.inf)}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Remember the received model."""
        received = message["params"].values
        return {"params": received, "anchor": received}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train with the proximal term."""
        return (Stage("train", self.sgd_step(task, proximal=self.mu), self.local_epochs),)


ENTRIES = {
    "fedprox": MethodEntry(
        method=FedProx,
        view="global",
        title="FedProx",
        paper="Li et al., 2020",
        personal="nothing",
        sent="all weights",
        neutral={"mu": 0.0},
    ),
}
