"""APFL (Deng, Kamani, Mahdavi; 2020): every client mixes a model of its own into the shared one.

    shared     w ← w − η ∇f(w; b)                                          as FedAvg
    personal   v ← v − η ∇_v f(v̄; b)         with v̄ = α v + (1 − α) w
    mixture    α ← α − η ⟨v − w, ∇f(v̄; b)⟩   in the first step of a round, kept in [0, 1]

All three read the same batch b and the models as they were before it (Algorithm 1). The shared
model never sees the personal one, so the shared half *is* FedAvg.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import (
    Batch,
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
from masquerade.core.tree import blend
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class APFL(Method):
    """FedAvg, and for every client the mixture of the shared model with one of its own."""

    mixture: float = 0.5
    """Share of the own model in the mixture (α): fixed, or the first value if it is learned."""
    adapt_mixture: bool = True
    """Whether every client learns its share, by one step in each of its rounds."""

    views: ClassVar[tuple[str, ...]] = ("personal", "global")
    bounds: ClassVar[Bounds] = {"mixture": (0, 1)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold an own model, at first the initial one, and its share."""
        device = next(iter(task.initial.values())).device
        share = torch.tensor(self.mixture, dtype=task.dtype, device=device)
        return {"own": task.initial, "mixture": {"share": share}}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Train both models; the share has yet to move in this round."""
        due = torch.full_like(client["mixture"]["share"], self.adapt_mixture, dtype=torch.bool)
        return {"params": message["params"].values, **client, "due": due}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Take all steps on the same batches: of the share, the own and the shared model."""

        def mixed(work: State) -> Tree:
            return self.model(task, work)

        # The share has the rate 0 here: decay and momentum are for weights, its own step follows.
        lrs = (self.lr, 0.0)
        both = self.sgd_step(task, model=mixed, on=("own", "mixture"), lr=lrs, gradient=True)
        own = self.sgd_step(task, model=mixed, on=("own",))
        step = _Step(self.lr, self.sgd_step(task), both, own)
        return (Stage("train", step, self.local_epochs),)

    def model(self, task: Task, work: State) -> Tree:
        """Return the mixture, on whose loss the own model and its share are trained."""
        return _mix(task, work["own"], work["params"], work["mixture"])

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the shared model; keep the own one and its share."""
        return {"params": Part(work["params"])}, {key: work[key] for key in ("own", "mixture")}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the mixture with the shared model as the server has it now, or that model."""
        if view == "global":
            return message
        received = message["params"].values
        return {"params": Part(_mix(task, client["own"], received, client["mixture"]))}


@dataclass(frozen=True)
class _Step:
    """A step of the share, the own and the shared model on one batch."""

    lr: float
    shared: SGDStep
    both: SGDStep
    """Of the own model and the share."""
    own: SGDStep
    """Of the own model alone: the same as `both` once the share has moved."""

    def prepare(self, work: State, round: Round) -> State:
        """Add the optimizer's state of both steps to the work."""
        return self.both.prepare(self.shared.prepare(work, round), round)

    def __call__(self, work: State, batch: Batch, round: Round) -> State:
        """Move the share if it is due, and both models."""
        old, due = work["mixture"]["share"], work["due"]
        # The shared step comes last: the mixture is to see the shared model before it.
        work = self.shared(self.both(work, batch, round), batch, round)
        grad = work["gradient"]["mixture"]["share"]
        new = (old - self.lr * round.decay * grad).clamp(0, 1).to(old.dtype)
        share = torch.where(due, new, old)
        return {**work, "mixture": {"share": share}, "due": torch.zeros_like(due)}

    def again(self, work: State, batch: Batch, round: Round) -> State:
        """Move both models; the share has moved in the step before."""
        return self.shared.again(self.own.again(work, batch, round), batch, round)


def _mix(task: Task, own: Tree, shared: Tree, mixture: Tree) -> Tree:
    """Return v̄ = α v + (1 − α) w, with the buffers of v, which describe the mixture's passes."""
    return blend(shared, own, mixture["share"], task.trainable)


ENTRIES = {
    "apfl": MethodEntry(
        method=APFL,
        view="personal",
        title="APFL",
        paper="Deng et al., 2020",
        personal="a second model, and its share in the mixture",
        sent="all weights",
        # The shared half is FedAvg, whatever the settings.
        neutral={},
    ),
}
