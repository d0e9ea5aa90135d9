"""Sub-FedAvg (Vahidian, Morafah, Lin; ICDCSW 2021): clients prune the global model to their data.

A client trains the global weights inside its own mask m_c. The mask that pruning would give is
taken after the first epoch and after the last. If the two differ enough, more than the target is
left, and the pruned model does well enough on held-out data, the last one becomes m_c. The server
averages every weight over the clients that hold it.

`structured` prunes whole units of hidden layers instead, so that a smaller network is trained.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from masquerade.core import mask, slicing, tree
from masquerade.core.method import Bounds
from masquerade.core.part import Message
from masquerade.core.round import ClientInfo, Round, Stage
from masquerade.core.sgd import MetricStep
from masquerade.core.task import Task
from masquerade.core.tree import State, Tree
from masquerade.methods.personal_masks import PersonalMasks
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class SubFedAvg(PersonalMasks):
    """Personal masks on one global model, found by pruning while training."""

    prune: float = 0.1
    """Share of a layer's remaining weights, or units, that one pruning takes (r)."""
    target: float = 0.7
    """Share of a layer's weights, or units, that always remains."""
    threshold: float = 50.0
    """Metric on validation data, for accuracy in percent, that a client must reach to prune
    (Acc_th)."""
    distance: float = 1e-4
    """Share of entries in which the masks of a round's first and last epoch must differ for a
    client to prune (ε)."""
    structured: bool = False
    """Whether whole units are pruned: rows of linear layers, channels of convolutions."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    foreseen: ClassVar[bool] = False
    bounds: ClassVar[Bounds] = {
        "prune": (0, 1),
        "target": (1e-9, 1),
        "threshold": (0, math.inf),
        "distance": (0, 1),
    }

    def problems(self) -> list[str]:
        """Refuse a single epoch: masks of the first and the last are compared."""
        if self.local_epochs > 1 or not self.prune:
            return []
        return ["`method.local_epochs` is 1; masks of two epochs are compared, so give 2 or more"]

    def row_init(self, task: Task, info: ClientInfo) -> State:
        """Remember a client's mask, at first everything that can be pruned."""
        if self.structured:
            whole = {name: each[:, 0] for name, each in slicing.units(task, task.initial).items()}
            return {"keep": slicing.expand(task, mask.full(whole))}
        return super().row_init(task, info)

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Take the received weights and mask."""
        values, keep = message["params"].values, message["params"].keep
        return {"params": values, "keep": keep, "pruned": values, "first": keep, "last": keep}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train, note the masks of the first and the last epoch, validate, perhaps prune."""
        step, validate = self.sgd_step(task, within=mask.kept), MetricStep(task, "pruned")

        def first(work: State, round: Round) -> State:
            return {**work, "first": self.thinner(task, work)}

        def last(work: State, round: Round) -> State:
            keep = self.thinner(task, work)
            return {**work, "last": keep, "pruned": tree.only(keep, work["params"])}

        def decide(work: State, round: Round) -> State:
            moved = mask.distance(work["first"], work["last"]) > self.distance
            # Differs: the release reads test data; `validation` never is, see Stage.
            ready = moved & validate.passes(work, self.threshold)
            params = tree.pick(ready, work["pruned"], work["params"])
            return {**work, "params": params, "keep": tree.pick(ready, work["last"], work["keep"])}

        begin = Stage("first", step, then=first, masks=mask.trained, sliceable=self.structured)
        rest = replace(begin, name="rest", epochs=self.local_epochs - 1, epoch=1, then=last)
        return (
            begin,
            rest,
            Stage("validate", validate, data="validation", then=decide, masks=mask.seen),
        )

    def thinner(self, task: Task, work: State) -> Tree:
        """Return the mask that pruning would give: by magnitude, or by the norm of units."""
        params, keep = work["params"], work["keep"]
        if not self.structured:
            return mask.shrink(
                keep, tree.each(torch.abs, params), 1 - self.prune, least=self.target
            )
        held = {name: each.any(1) for name, each in slicing.units(task, keep).items()}
        # Differs: the paper ranks channels by the scale of their batch norm, and prunes the entries
        # of linear layers; here every unit is ranked by the norm of its weights.
        norms = {name: each.norm(dim=1) for name, each in slicing.units(task, params).items()}
        return slicing.expand(task, mask.shrink(held, norms, 1 - self.prune, least=self.target))


ENTRIES = {
    "subfedavg": MethodEntry(
        method=SubFedAvg,
        view="personal",
        title="Sub-FedAvg",
        paper="Vahidian et al., 2021",
        personal="mask",
        sent="weights inside a mask, and the mask",
        neutral={"prune": 0.0},
    ),
    "subfedavg_hy": MethodEntry(
        method=SubFedAvg,
        view="personal",
        title="Sub-FedAvg (Hy)",
        paper="Vahidian et al., 2021",
        personal="mask of whole channels and rows",
        sent="weights inside a mask, and the mask",
        settings=(("structured", True),),
        neutral={"prune": 0.0},
    ),
}
