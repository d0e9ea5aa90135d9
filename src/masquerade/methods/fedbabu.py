"""FedBABU (Oh et al., 2022): only the body is trained together, under a head that nobody trains.

The head keeps its initial weights, the same for all, during the whole of training: it is neither
updated nor decayed, sent nor averaged. Before use every client fine-tunes the whole network.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import Bounds, Message, Round, Stage, State, Task, Tree
from masquerade.methods.fine_tuning import FineTuned
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedBABU(FineTuned):
    """A body trained under a common random head; both are fine-tuned before use."""

    head_layers: int = 1
    """How many of the last layers are the head."""
    tune_lr: float = 0.01
    """Learning rate of the fine-tuning; as every learning rate, multiplied by the round's decay."""
    tune_epochs: int = 5
    """Passes over the client's training data when fine-tuning (τ_f)."""

    views: ClassVar[tuple[str, ...]] = ("tuned",)
    bounds: ClassVar[Bounds] = {
        "head_layers": (0, math.inf),
        "tune_lr": (0, math.inf),
        "tune_epochs": (1, math.inf),
    }

    def server_init(self, task: Task) -> State:
        """Hold the body alone."""
        body, _ = task.divide(self.head_layers)
        return {"params": body}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Take the received body; for use, put it under the initial head."""
        body = message["params"].values
        if round.kind == "train":
            return {"params": body}
        return {"params": task.join(body, task.divide(self.head_layers)[1])}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train the body; the head is no part of the work, so nothing can move it."""
        _, head = task.divide(self.head_layers)

        def whole(work: State) -> Tree:
            return task.join(work["params"], head)

        return (Stage("train", self.sgd_step(task, model=whole), self.local_epochs),)

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Fine-tune body and head."""
        return (Stage("tune", self.sgd_step(task, lr=self.tune_lr), self.tune_epochs),)


ENTRIES = {
    "fedbabu": MethodEntry(
        method=FedBABU,
        view="tuned",
        title="FedBABU",
        paper="Oh et al., 2022",
        personal="a fine-tuned copy",
        sent="all but the last layers",
        neutral={"head_layers": 0},
    ),
}
