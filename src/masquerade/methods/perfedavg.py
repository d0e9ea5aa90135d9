"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar; NeurIPS 2020): a model that is good after one more step.

    minimize the mean of  f_c(w − α ∇f_c(w)),  by local steps on disjoint batches b₁, b₂, b₃
        w̃ ← w − α ∇f(w; b₁)
        w ← w − β (I − α ∇²f(w; b₃)) ∇f(w̃; b₂)                                   (Algorithm 1)

First order takes I for the bracket; Hessian-free takes the difference of two gradients for ∇²f · v.
In use, every client takes the downloaded model and adapts it to its own training data.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import Batch, Bounds, Choices, Round, Stage, State, Task, Tree, tree
from masquerade.core.sgd import Losses, SGDStep, loss_gradient
from masquerade.methods.fine_tuning import FineTuned
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(FineTuned):
    """FedAvg of models that are trained to be adapted; the view `tuned` adapts them."""

    inner_lr: float = 0.01
    """Learning rate of the adaptation, in training and in use (α); multiplied by the decay."""
    variant: str = "first_order"
    """What is done about the Hessian: it is left out ("first_order"), or taken by a finite
    difference ("hessian_free")."""
    difference: float = 0.001
    """Step of the finite difference in the Hessian-free variant, in units of the gradient (δ)."""
    # Differs: the paper adapts by one step; here by one pass, a step for every batch.
    tune_epochs: int = 1
    """Passes over the client's training data that adapt the model before use."""

    views: ClassVar[tuple[str, ...]] = ("tuned", "global")
    bounds: ClassVar[Bounds] = {
        "inner_lr": (0, math.inf),
        "difference": (1e-12, math.inf),
        "tune_epochs": (0, math.inf),
    }
    choices: ClassVar[Choices] = {"variant": ("first_order", "hessian_free")}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Step by the gradient of the adapted model, on another batch than it was adapted to."""

        def along(work: State, batch: Batch, round: Round) -> Losses:
            # The gradient of a product with a gradient is that gradient.
            return None, work["buffers"], tree.dot(work["grad"], work["params"])

        adapt, outer = self._adaptation(task), self.sgd_step(task, along)

        def step(work: State, batches: tuple[Batch, ...], round: Round) -> State:
            first, second, *third = batches
            grad, buffers = loss_gradient(task, adapt(work, first, round)["params"], second)
            if third:
                far = self.inner_lr * round.decay
                bend = self._curvature(task, work["params"], grad, third[0])
                grad = tree.each(lambda v, h: v - (far * h).to(v.dtype), grad, bend)
            found = outer({**work, "grad": grad, "buffers": buffers}, second, round)
            return {key: found[key] for key in work}

        draws = {"first_order": 2, "hessian_free": 3}[self.variant]
        return (Stage("train", step, self.local_epochs, outer.prepare, draws=draws),)

    def _adaptation(self, task: Task) -> SGDStep:
        """Return the step of the adaptation: momentum and weight decay are for training alone."""
        return self.sgd_step(task, lr=self.inner_lr, momentum=0.0, weight_decay=0.0)

    def _curvature(self, task: Task, params: Tree, v: Tree, batch: Batch) -> Tree:
        """Return ∇²f(w) · v as (∇f(w + δ v) − ∇f(w − δ v)) / 2δ."""
        ahead, behind = (
            {**params, **{name: params[name] + far * way for name, way in v.items()}}
            for far in (self.difference, -self.difference)
        )
        both = (loss_gradient(task, there, batch)[0] for there in (ahead, behind))
        return tree.each(lambda a, b: (a - b) / (2 * self.difference), *both)

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Adapt a copy to the client's training data for the view `tuned`."""
        if round.phase[0] != "tuned":
            return ()
        return (Stage("tune", self._adaptation(task), self.tune_epochs),)


ENTRIES = {
    "perfedavg": MethodEntry(
        method=PerFedAvg,
        view="tuned",
        title="Per-FedAvg",
        paper="Fallah et al., 2020",
        personal="an adapted copy",
        sent="all weights",
        never_neutral="steps on the second of several batches, where FedAvg steps on all of them",
    ),
}
