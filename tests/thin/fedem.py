"""Thin FedEM: a private mixture of shared models. Shape, not fidelity."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import Method, Part, Stage, average


@dataclass(frozen=True, kw_only=True)
class ThinFedEM(Method):
    models: int = 2
    views: ClassVar = ("personal",)

    def names(self):
        return [f"model{i}" for i in range(self.models)]

    def server_init(self, task):
        return {n: task.fresh(i) if i else task.initial for i, n in enumerate(self.names())}

    def client_init(self, task, who):
        return {"mixture": torch.full((self.models,), 1 / self.models, dtype=task.dtype)}

    def download(self, task, server, row, round):
        return {name: Part(server[name]) for name in self.names()}

    def start(self, task, message, client, round):
        models = {name: message[name].values for name in self.names()}
        mass = torch.zeros_like(client["mixture"])
        return models | {f"{n}?": m for n, m in models.items()} | client | {"mass": mass}

    def shares(self, task, work, batch):
        """Return whose sample each one is [batch, models], by the models the round began with."""
        losses = [task.losses(work[f"{n}?"], batch)[0] for n in self.names()]
        return (work["mixture"].log() - torch.stack(losses, 1)).softmax(1)

    def plan(self, task, round):
        def look(work, batch, round):
            shares = self.shares(task, work, batch)
            mass = torch.stack([batch.total(column) for column in shares.unbind(1)])
            return {**work, "mass": work["mass"] + mass}

        def loss(work, batch, round):
            shares = self.shares(task, work, batch).unbind(1)
            losses = [task.losses(work[n], batch)[0] for n in self.names()]
            return sum(batch.mean(s * one) for s, one in zip(shares, losses, strict=True)), {}

        def settle(work, round):
            return {**work, "mixture": work["mass"] / work["mass"].sum().clamp(min=1e-12)}

        step = self.descend(task, loss, on=tuple(self.names()))
        return (Stage("look", look, stream=1), Stage("train", step, self.epochs, then=settle))

    def finish(self, task, work, message, client, round):
        return {n: Part(work[n]) for n in self.names()}, {"mixture": work["mixture"]}

    def aggregate(self, task, server, rows, uploads, cohort, round):
        return {n: average(uploads[n], cohort.samples, server[n]) for n in self.names()}, rows

    def personalize(self, task, message, client, view):
        return message | {"mixture": Part({"mixture": client["mixture"]})}

    def predict(self, task, personal, x):
        mixture = personal["mixture"].values["mixture"].unbind()
        outputs = [task(personal[n].values, x)[0].softmax(-1) for n in self.names()]
        return sum(share * one for share, one in zip(mixture, outputs, strict=True)).log()
