"""FedRep (Collins et al., 2021): a shared representation under heads that are fitted first.

In a round a client trains its own head for many epochs under the body it received, which is frozen,
then the body under that head, which is frozen, and sends the body. Before use the head is trained
once more, under the last body.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import (
    Bounds,
    ClientInfo,
    Message,
    Method,
    Part,
    Round,
    Stage,
    State,
    Task,
    Tree,
)
from masquerade.core.sgd import SGDStep
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedRep(Method):
    """A shared body under personal heads, trained one after the other."""

    personal_layers: int = 1
    """How many of the last layers are the head (h)."""
    head_epochs: int = 10
    """Epochs on the head before `local_epochs` on the body (τ, as epochs)."""
    final_epochs: int = 10
    """Epochs on the head before use."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    bounds: ClassVar[Bounds] = {
        "personal_layers": (0, math.inf),
        "head_epochs": (0, math.inf),
        "final_epochs": (0, math.inf),
    }

    def server_init(self, task: Task) -> State:
        """Hold the body (φ) alone."""
        body, _ = task.divide(self.personal_layers)
        return {"params": body}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold a head (h); all clients begin with the same one."""
        _, head = task.divide(self.personal_layers)
        return {"head": head}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Keep body and head apart, so that each can be trained while the other is frozen."""
        return {"body": message["params"].values, "head": client["head"]}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train the head, then the body."""
        # Differs: epochs of SGD, where the algorithm has τ steps on the head and one on the body.
        body = Stage("body", self._train(task, "body"), self.local_epochs, epoch=self.head_epochs)
        return (*self._fit(task, self.head_epochs), body)

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train the head under the body of the last round."""
        return self._fit(task, self.final_epochs)

    def _fit(self, task: Task, epochs: int) -> tuple[Stage, ...]:
        if not (epochs and self.personal_layers):
            return ()
        return (Stage("head", self._train(task, "head"), epochs),)

    def _train(self, task: Task, entry: str) -> SGDStep:
        """Build the step that moves one tree and freezes the other."""

        def whole(work: State) -> Tree:
            return task.join(work["body"], work["head"])

        return self.sgd_step(task, model=whole, on=(entry,))

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the body, keep the head."""
        return {"params": Part(work["body"])}, {"head": work["head"]}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the newest body under the own head."""
        return {"params": Part(task.join(message["params"].values, client["head"]))}


ENTRIES = {
    "fedrep": MethodEntry(
        method=FedRep,
        view="personal",
        title="FedRep",
        paper="Collins et al., 2021",
        personal="the last layers",
        sent="the others",
        neutral={"personal_layers": 0, "head_epochs": 0},
    ),
}
