"""Thin FedEM: a private mixture of shared models. Shape, not fidelity."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import Method, Part, Stage, average


@dataclass(frozen=True, kw_only=True)
class ThinFedEM(Method):
    names: tuple = ("first", "second")
    views: ClassVar = ("personal",)

    def server_init(self, task):
        return {n: task.fresh(i) if i else task.initial for i, n in enumerate(self.names)}

    def client_init(self, task, who):
        return {"mixture": torch.ones(len(self.names), dtype=task.dtype) / len(self.names)}

    def download(self, task, server, row, round):
        return {name: Part(server[name]) for name in self.names}

    def start(self, task, message, client, round):
        models = {name: message[name].values for name in self.names}
        began = {f"{name}?": model for name, model in models.items()}
        return models | began | client | {"mass": torch.zeros_like(client["mixture"])}

    def shares(self, task, work, batch):
        losses = [task.losses(work[f"{n}?"], batch)[0] for n in self.names]
        return (work["mixture"].log() - torch.stack(losses, 1)).softmax(1)

    def plan(self, task, round):
        def look(work, batch, round):
            columns = self.shares(task, work, batch).unbind(1)
            return {**work, "mass": work["mass"] + torch.stack([*map(batch.total, columns)])}

        def loss(work, batch, round):
            losses = torch.stack([task.losses(work[n], batch)[0] for n in self.names], 1)
            return batch.mean((self.shares(task, work, batch) * losses).sum(1)), {}

        def settle(work, round):
            return {**work, "mixture": work["mass"] / work["mass"].sum().clamp(min=1e-12)}

        step = self.descend(task, loss, on=self.names)
        return (Stage("look", look, stream=1), Stage("train", step, self.epochs, then=settle))

    def finish(self, task, work, message, client, round):
        return {n: Part(work[n]) for n in self.names}, {"mixture": work["mixture"]}

    def aggregate(self, task, server, rows, uploads, cohort, round):
        return {n: average(uploads[n], cohort.samples, server[n]) for n in self.names}, rows

    def personalize(self, task, message, client, view):
        return message | {"mixture": Part({"mixture": client["mixture"]})}

    def predict(self, task, personal, x):
        outputs = [task(personal[n].values, x)[0].softmax(-1) for n in self.names]
        return (torch.stack(outputs, -1) @ personal["mixture"].values["mixture"]).log()
