"""FedEM (Marfoq et al., 2021): shared models, and at every client a private mixture of them.

q_im ∝ exp(log π_m − loss_m(x_i))     E-step, with the models the round began with
π_m = mean of q_im over the own samples; SGD on the mean of q_im · loss_m(x_i)     M-step
p(y | x) = Σ_m π_m · p_m(y | x)            in use
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from masquerade.core import Bounds, MasqueradeError, Message, Method, Part, State, Task
from masquerade.core.round import Batch, ClientInfo, Cohort, Round, Stage
from masquerade.core.sgd import Loss, Losses
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedEM(Method):
    """A private mixture of a few shared models."""

    models: int = 3
    """How many models are shared, of which every client has a mixture of its own (M)."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    bounds: ClassVar[Bounds] = {"models": (1, math.inf)}

    def names(self) -> tuple[str, ...]:
        """Name the models."""
        return ("params", *(f"params{place}" for place in range(2, self.models + 1)))

    def server_init(self, task: Task) -> State:
        """Hold models that begin apart: equal ones would share every sample equally for ever."""
        drawn = {name: task.fresh(place) for place, name in enumerate(self.names())}
        models = drawn | {"params": task.initial}
        for name in self.names()[1:]:
            if all(map(torch.equal, models[name].values(), task.initial.values())):
                text = f"{self.models} models must begin apart, but no layer draws its weights anew"
                raise MasqueradeError("E202", f"{text}; give the layers `reset_parameters`")
        return models

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send every model."""
        return {name: Part(server[name]) for name in self.names()}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Begin with equal shares, which a client that never trains keeps."""
        like = next(iter(task.initial.values()))
        return {"mixture": like.new_full((self.models,), 1 / self.models, dtype=task.dtype)}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Train the received models, and remember them for the responsibilities."""
        models = {name: message[name].values for name in self.names()}
        mass = torch.zeros_like(client["mixture"])
        return {**models, "received": models, "mixture": client["mixture"], "mass": mass}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Weigh the samples of every batch, then move each model by its share of them."""

        def weighed(place: int, name: str) -> Loss:
            def loss(work: State, batch: Batch, round: Round) -> Losses:
                losses, buffers = task.losses(work[name], batch)
                return work["shares"][place] * losses, buffers

            return loss

        moves = [self.sgd_step(task, weighed(*one), on=one[1:]) for one in enumerate(self.names())]

        def begin(work: State, round: Round) -> State:
            for move in moves:
                work = move.prepare(work, round)
            return work

        def step(work: State, batch: Batch, round: Round) -> State:
            # Differs: responsibilities are computed for every batch instead of once for a round:
            # the same numbers, without a state for every sample.
            shares = self.responsibilities(task, work, batch)
            moved = {**work, "shares": shares}
            for move in moves:
                moved = move(moved, batch, round)
            mass = work["mass"] + torch.stack([batch.total(share) for share in shares])
            return {**{entry: moved[entry] for entry in work}, "mass": mass}

        return (Stage("train", step, self.local_epochs, begin),)

    def responsibilities(self, task: Task, work: State, batch: Batch) -> Tensor:
        """Return q [models, samples], of the models and the mixture that the round began with."""
        losses = [task.losses(one, batch, train=False)[0] for one in work["received"].values()]
        prior: Tensor = work["mixture"].log()[:, None]
        return (prior - torch.stack(losses)).softmax(0)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send every model; keep the mean responsibilities, or the old ones if none were taken."""
        total = work["mass"].sum()
        mixture = torch.where(total > 0, work["mass"] / total, client["mixture"])
        return {name: Part(work[name]) for name in self.names()}, {"mixture": mixture}

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Average every model over the sampled clients, by their samples."""
        return {n: cohort.average(uploads[n], server[n]) for n in self.names()}, rows

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use all models, by the client's mixture."""
        return {**message, "mixture": Part({"mixture": client["mixture"]})}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        """Mix probabilities and return their logarithms; without classes, mix the outputs."""
        outputs = torch.stack([task(personal[name].values, x)[0] for name in self.names()], -1)
        mixture = personal["mixture"].values["mixture"]
        if task.classifies:
            return (outputs.log_softmax(-2) + mixture.log()).logsumexp(-1)
        return outputs @ mixture


ENTRIES = {
    "fedem": MethodEntry(
        method=FedEM,
        view="personal",
        title="FedEM",
        paper="Marfoq et al., 2021",
        personal="the mixture of the shared models",
        sent="all weights of every model",
        neutral={"models": 1},
    ),
}
