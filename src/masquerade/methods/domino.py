"""Domino: one sparse model for all, and at each client a few weights and its label mix.

Where labels are skewed, most of what personal weights learn is how often each class occurs at their
client, and that breaks where labels shift. Here one number per class says it, counted and not
trained, and weights learn the rest:

`plan`      FedDST: a sparse model whose mask moves, trained by all
`adapt`     a client counts its labels, trains its loss at `logits + log mix`, keeps the largest
            changes, and returns to the shared weights elsewhere
`predict`   logits + log mix: the posterior at home, which a rule on outputs turns to other mixes

Nothing personal is sent, and a client that was never sampled has all of it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from masquerade.core import MasqueradeError, mask, tree
from masquerade.core.method import Bounds
from masquerade.core.metric import smoothed
from masquerade.core.part import Message, Part
from masquerade.core.round import Batch, Cohort, Round, Stage
from masquerade.core.sgd import Loss, Losses
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.methods.feddst import FedDST
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class Domino(FedDST):
    """FedDST, and before use a small personal mask beside the client's label mix."""

    personal: float = 0.1
    """Share of the kept weights that a client changes for itself, the largest changes."""
    tune_lr: float = 0.01
    """Learning rate of the personal weights; as every learning rate, multiplied by the round's
    decay."""
    tune_epochs: int = 5
    """Passes over the client's training data that find the personal weights."""
    label_mix: bool = True
    """Whether the client's label mix is added to logits, where personal weights are trained and in
    use; without it weights learn the mix."""
    average: float = 0.0
    """Share of the run, at its end, over which the shared model is averaged for use: its rounds
    follow their cohorts, and the mean does not."""

    views: ClassVar[tuple[str, ...]] = ("personal", "global")
    prior: ClassVar[tuple[str, ...]] = ("batch",)
    bounds: ClassVar[Bounds] = {
        "personal": (0, 1),
        "average": (0, 1),
        "tune_lr": (0, math.inf),
        "tune_epochs": (0, math.inf),
    }

    def server_init(self, task: Task) -> State:
        """Begin as FedDST does; refuse a label mix where there are no classes."""
        if self.label_mix and not task.classifies:
            text = "`label_mix` needs a task of classes, whose loss is cross entropy"
            raise MasqueradeError("E202", f"{text}; set method.label_mix = false")
        server = super().server_init(task)
        return {**server, "mean": server["params"]} if self.average else server

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Do as FedDST does, and average the last models."""
        new, rows = super().aggregate(task, server, rows, uploads, cohort, round)
        if not self.average:
            return new, rows
        begun = torch.ceil((1 - self.average) * round.rounds - 1e-9)
        share = 1 / ((round.number - begun).clamp(min=0) + 1)
        mean = {
            name: torch.lerp(server["mean"][name], value, share.to(value.dtype))
            if task.trainable(name)
            else value
            for name, value in new["params"].items()
        }
        # A mask that moved takes the mean with it.
        return {**new, "mean": tree.only(new["keep"], mean)}, rows

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send the mask and the weights inside it; their mean, where they are to be used."""
        if self.average and round.kind == "adapt":
            return {"params": Part(server["mean"], server["keep"])}
        return super().download(task, server, row, round)

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Take the received weights and mask; before use, remember them and count from zero."""
        work = super().start(task, message, client, round)
        if round.kind != "adapt":
            return work
        rows = task.initial[task.last(1)[0]]
        nothing = torch.zeros(len(rows), dtype=task.dtype, device=rows.device)
        return {**work, "shared": work["params"], "counts": nothing}

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Count labels, train beside their mix, keep the largest changes."""
        if round.phase[0] != "personal":
            return ()
        loss = self._adjusted_loss(task) if self.label_mix else None
        step = self.sgd_step(task, loss, within=mask.kept, lr=self.tune_lr)
        tune = Stage(
            "tune", step, self.tune_epochs, then=self._keep_largest(task), masks=mask.trained
        )
        return (Stage("count", _count, masks=mask.unused), tune) if self.label_mix else (tune,)

    def _adjusted_loss(self, task: Task) -> Loss:
        """Return the loss at logits + log mix (logit adjustment; Menon et al., 2021)."""

        def loss(work: State, batch: Batch, round: Round) -> Losses:
            logits, buffers = task.outputs(work["params"], batch)
            return task.weighted_loss(logits + smoothed(work["counts"]).log(), batch.y), buffers

        return loss

    def _keep_largest(self, task: Task) -> Callable[[State, Round], State]:
        """Return what undoes all but the largest changes; buffers are the shared ones."""
        kept = self.counts(task)
        moving = [name for name in task.initial if task.trainable(name)]
        count = int(self.personal * sum(kept.get(n, task.shapes[n].numel()) for n in moving))

        def keep(work: State, round: Round) -> State:
            shared, tuned = work["shared"], work["params"]
            change = {name: (tuned[name] - shared[name]).abs() for name in moving}
            largest = mask.top_overall(change, count)
            own = {name: torch.where(largest[name], tuned[name], shared[name]) for name in moving}
            return {**work, "params": {**shared, **own}}

        return keep

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send what FedDST sends; hand the personal model to `personalize`."""
        if round.kind == "adapt":
            return {}, {name: work[name] for name in ("params", "counts")}
        return super().finish(task, work, message, client, round)

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the shared weights with the personal ones and the mix, or as they are."""
        if view == "global":
            return {"params": message["params"]}
        personal = {"params": Part(client["params"], message["params"].keep)}
        if self.label_mix:
            personal["mix"] = Part({"log": smoothed(client["counts"]).log()})
        return personal

    def contains_mix(self, view: str) -> bool:
        """Say that the personal model adds it."""
        return self.label_mix and view == "personal"

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        """Return logits + log mix."""
        logits = super().predict(task, personal, x)
        return logits + personal["mix"].values["log"] if "mix" in personal else logits


def _count(work: State, batch: Batch, round: Round) -> State:
    """Count the labels of the real samples."""
    classes = torch.arange(len(work["counts"]), device=batch.y.device)
    found = batch.y[:, None] == classes
    real = found if batch.valid is None else found & batch.valid[:, None]
    return {**work, "counts": work["counts"] + real.sum(0)}


ENTRIES = {
    "domino": MethodEntry(
        method=Domino,
        view="personal",
        title="Domino",
        paper="Masquerade, 2026",
        personal="a tenth of the weights, and the label mix",
        sent="weights inside a mask, and the mask",
        neutral={"sparsity": 0.0, "readjust": 0.0},
    ),
}
