"""SCAFFOLD (Karimireddy et al.; ICML 2020): FedAvg whose clients do not drift apart.

step     y ← y − η (g(y) + c − c_i)               c the server's control, c_i the client's
then     c_i⁺ = c_i − c + (x − y) / (K η)         option II: the mean gradient on the way
         c_i⁺ = g_i(x)                            option I: the gradient at the received model
server   x ← x + η_g · mean of (y − x),   c ← c + Σ (c_i⁺ − c_i) / N       over all N clients
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import (
    Batch,
    Bounds,
    Choices,
    ClientInfo,
    Cohort,
    Message,
    Method,
    Part,
    Round,
    Stage,
    State,
    Task,
    tree,
)
from masquerade.core.sgd import Losses, loss_gradient
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """FedAvg with control variates at the server and at every client."""

    controls: str = "path"
    """What a client's control variate is made of: the way that its weights went ("path", option
    II), or the gradient at the received model ("gradient", option I)."""
    server_step: float = 1.0
    """How far the server goes to the clients' mean (η_g); 1 is all the way."""

    bounds: ClassVar[Bounds] = {"server_step": (0, math.inf)}
    choices: ClassVar[Choices] = {"controls": ("path", "gradient")}

    def problems(self) -> list[str]:
        """Refuse momentum where the length of the way is read as the sum of gradients."""
        text = f"`method.momentum` is {self.momentum}; take 0, or set `method.controls` to gradient"
        return [text] if self.momentum and self.controls == "path" else []

    def server_init(self, task: Task) -> State:
        """Hold x and its control c, at first zero; buffers have no gradient and no control."""
        moving = {name: value for name, value in task.initial.items() if task.trainable(name)}
        return {"params": task.initial, "control": tree.zeros(moving)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold the control c_i, at first zero."""
        return {"control": self.server_init(task)["control"]}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send x and c."""
        return {"params": Part(server["params"]), "control": Part(server["control"])}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Correct every step by c − c_i; sum up gradients, and the weight that they have."""
        drift = tree.each(torch.sub, message["control"].values, client["control"])
        weight = next(iter(drift.values())).new_zeros(())
        work = {"params": message["params"].values, "drift": drift, "weight": weight}
        return work if self.controls == "path" else {**work, "gradients": tree.zeros(drift)}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train with corrected steps; option I takes the gradient of all data first."""

        def corrected(work: State, batch: Batch, round: Round) -> Losses:
            # The product adds c − c_i to the gradient.
            return *task.losses(work["params"], batch), tree.dot(work["drift"], work["params"])

        corrected_step = self.sgd_step(task, corrected)

        def walk(work: State, batch: Batch, round: Round) -> State:
            # Differs: K is the client's own number of steps; in the paper all take as many.
            weight = work["weight"] + self.lr * round.decay
            return {**corrected_step(work, batch, round), "weight": weight.to(work["weight"].dtype)}

        def measure(work: State, batch: Batch, round: Round) -> State:
            found, count = loss_gradient(task, work["params"], batch)[0], batch.count()
            gradients = tree.each(lambda old, new: old + count * new, work["gradients"], found)
            return {**work, "gradients": gradients, "weight": work["weight"] + count}

        if self.controls == "path":
            return (Stage("train", walk, self.local_epochs),)
        return Stage("measure", measure), Stage("train", corrected_step, self.local_epochs)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send y and the change of c_i; keep c_i⁺, the mean gradient, or c_i without a step."""
        weight, own = work["weight"], client["control"]
        gradients = work.get("gradients") or {
            # x − y is η times the sum of the K corrected gradients, and the weight is K η.
            name: message["params"].values[name] - work["params"][name] - weight * drift
            for name, drift in work["drift"].items()
        }
        control = tree.each(lambda t, c: torch.where(weight > 0, t / weight, c), gradients, own)
        change = tree.each(torch.sub, control, own)
        return {"params": Part(work["params"]), "control": Part(change)}, {"control": control}

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Move x to the mean of the y, and c by the changes as a share of all clients."""
        equal = torch.ones_like(cohort.samples)
        mean = cohort.average(uploads["params"], server["params"], equal)
        params = tree.blend(server["params"], mean, self.server_step, task.trainable)
        change = cohort.average(uploads["control"], tree.zeros(server["control"]), equal)
        share = len(cohort.ids) / cohort.clients
        control = tree.each(lambda c, d: c + share * d, server["control"], change)
        return {"params": params, "control": control}, rows


ENTRIES = {
    "scaffold": MethodEntry(
        method=Scaffold,
        view="global",
        title="SCAFFOLD",
        paper="Karimireddy et al., 2020",
        personal="a control, beside one model for all",
        sent="all weights, and a control of as many numbers",
        never_neutral="counts clients equally, and its controls cannot be switched off",
    ),
}
