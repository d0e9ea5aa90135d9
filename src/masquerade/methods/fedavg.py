"""FedAvg (McMahan et al., 2017), and FedAvg+FT (Wang et al., 2019) as its view `tuned`.

The code of FedAvg is `core.method.Method`; what is added here is the fine-tuning of a copy at each
client when the model is used.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import Bounds, Round, Stage, Task
from masquerade.methods.fine_tuning import FineTuned
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedAvg(FineTuned):
    """One model for all; the view `tuned` fine-tunes it at every client before use."""

    tune_lr: float = 0.01
    """Learning rate of the fine-tuning; as every learning rate, multiplied by the round's decay."""
    tune_epochs: int = 5
    """Passes over the client's training data when fine-tuning."""

    views: ClassVar[tuple[str, ...]] = ("global", "tuned")
    bounds: ClassVar[Bounds] = {"tune_lr": (0, math.inf), "tune_epochs": (0, math.inf)}

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Fine-tune for the view `tuned`."""
        if round.phase[0] != "tuned":
            return ()
        return (Stage("tune", self.sgd_step(task, lr=self.tune_lr), self.tune_epochs),)


ENTRIES = {
    "fedavg": MethodEntry(
        method=FedAvg,
        view="global",
        title="FedAvg",
        paper="McMahan et al., 2017",
        personal="nothing",
        sent="all weights",
        neutral={},
    ),
    "fedavg_ft": MethodEntry(
        method=FedAvg,
        view="tuned",
        title="FedAvg+FT",
        paper="Wang et al., 2019",
        personal="a fine-tuned copy",
        sent="all weights",
        neutral={},
    ),
}
