"""Ditto (Li, Hu, Beirami, Smith; ICML 2021): a personal model beside the shared one, pulled to it.

    shared     as FedAvg
    personal   minimize  F_c(v) + λ/2 · ‖v − w‖²,  w the model received this round

The shared model never sees the personal one, so the shared half *is* FedAvg.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import Bounds, ClientInfo, Message, Method, Part, Round, Stage, State, Task
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """FedAvg, and for every client a model of its own that is never averaged."""

    lam: float = 0.1
    """Weight of the proximal term, which pulls the personal model toward the received one (λ)."""
    # Differs: the paper counts local steps; here both models are trained for whole epochs.
    personal_epochs: int = 5
    """Passes over a client's training data that train the personal model."""

    views: ClassVar[tuple[str, ...]] = ("personal", "global")
    bounds: ClassVar[Bounds] = {"lam": (0, math.inf), "personal_epochs": (0, math.inf)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold a personal model."""
        return {"own": task.initial}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Train both models; remember the received one."""
        received = message["params"].values
        return {"params": received, "anchor": received, "own": client["own"]}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train the shared model as FedAvg does, then the personal one, on the same batches."""
        personal = self.sgd_step(task, on=("own",), proximal=self.lam)
        return (*super().plan(task, round), Stage("personal", personal, self.personal_epochs))

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the shared model, keep the personal one."""
        return {"params": Part(work["params"])}, {"own": work["own"]}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the personal model, or the shared one."""
        return {"params": Part(client["own"])} if view == "personal" else message


ENTRIES = {
    "ditto": MethodEntry(
        method=Ditto,
        view="personal",
        title="Ditto",
        paper="Li et al., 2021",
        personal="a second model",
        sent="all weights",
        # The shared half is FedAvg, whatever the settings.
        neutral={},
    ),
}
