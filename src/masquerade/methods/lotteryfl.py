"""LotteryFL (Li, Sun, Wang, Duan, Li, Chen, Li; 2020): every client finds its own lottery ticket.

A client receives the global weights inside its own mask m_c. If they do well enough on its held-out
data and more than the target is left, it prunes r_p of each layer's survivors by magnitude and goes
back to the initial weights θ_0 ⊙ m_c. It trains inside m_c and sends what it holds; the server
averages every weight over its holders.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import mask, tree
from masquerade.core.method import Bounds
from masquerade.core.part import Message
from masquerade.core.round import Round, Stage
from masquerade.core.sgd import MetricStep
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.methods.personal_masks import PersonalMasks
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class LotteryFL(PersonalMasks):
    """Personal masks on one global model, found by pruning and rewinding."""

    prune: float = 0.2
    """Share of a layer's remaining weights that one pruning takes (r_p)."""
    target: float = 0.1
    """Share of a layer's weights that always remains (1 − r_target)."""
    threshold: float = 20.0
    """Metric on validation data, for accuracy in percent, that a client must reach to prune
    (acc_threshold)."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    foreseen: ClassVar[bool] = False
    bounds: ClassVar[Bounds] = {
        "prune": (0, 1),
        "target": (0, 1),
        "threshold": (0, math.inf),
    }

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Take the received weights and mask."""
        return {"params": message["params"].values, "keep": message["params"].keep}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Validate on held-out data, perhaps prune and rewind, then train inside the mask."""
        validate = MetricStep(task)

        def decide(work: State, round: Round) -> State:
            params, keep = work["params"], work["keep"]
            left = mask.shrink(
                keep, tree.each(torch.abs, params), 1 - self.prune, least=self.target
            )
            # At the target nothing is pruned, and then nothing is rewound.
            ready = validate.passes(work, self.threshold) & (mask.distance(left, keep) > 0)
            rewound = tree.only(left, task.initial)
            return {
                **work,
                "params": tree.pick(ready, rewound, params),
                "keep": tree.pick(ready, left, keep),
            }

        # Differs: the release decides on test data; here it is validation data, or training data
        # where a client has none.
        return (
            Stage("validate", validate, data="validation", then=decide, masks=mask.seen),
            Stage(
                "train",
                self.sgd_step(task, within=mask.kept),
                self.local_epochs,
                masks=mask.trained,
            ),
        )


ENTRIES = {
    "lotteryfl": MethodEntry(
        method=LotteryFL,
        view="personal",
        title="LotteryFL",
        paper="Li et al., 2020",
        personal="mask",
        sent="weights inside a mask, and the mask",
        neutral={"prune": 0.0},
    ),
}
