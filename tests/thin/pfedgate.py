"""Thin pFedGate: a private gate chooses blocks under a budget per client. Shape, not fidelity."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import Blocks, Method, Part, Stage
from masquerade.core.random import fold, normal


@dataclass(frozen=True, kw_only=True)
class ThinPFedGate(Method):
    unit: bool = False
    views: ClassVar = ("personal",)

    def grain(self, task):
        counts = {name: value.numel() for name, value in task.initial.items()}
        return {name: Blocks((k // 3, k // 3, k - k // 3 * 2)) for name, k in counts.items()}

    def part(self, task, values, flags):
        return Part(values, dict(zip(values, flags.split(3), strict=True)), self.grain(task))

    def client_init(self, task, who):
        sizes = torch.tensor([size for g in self.grain(task).values() for size in g.sizes])
        gate = {"gate": 0.1 * normal(fold(who.key, "gate"), (6, len(sizes)), task.dtype)}
        return {"gate": gate, "sizes": sizes, "last": sizes < 0, "budget": who.budget * sizes.sum()}

    def start(self, task, message, client, round):
        return {"params": message["params"].values, **client, "chosen": client["sizes"] < 0}

    def choose(self, task, work, batch):
        columns = (batch.x.to(task.dtype) @ work["gate"]["gate"]).sigmoid().unbind(1)
        soft = torch.stack([*map(batch.mean, columns)])
        order = soft.argsort(descending=True, stable=True)
        chosen = (order < 0).scatter(0, order, work["sizes"][order].cumsum(0) <= work["budget"])
        return chosen.to(soft.dtype) * (1 if self.unit else 1 + soft - soft.detach()), chosen

    def plan(self, task, round):
        def step(work, batch, round):
            chosen = self.choose(task, work, batch)[1]
            return {**inner(work, batch, round), "chosen": work["chosen"] | chosen, "last": chosen}

        def loss(work, batch, round):
            part = self.part(task, work["params"], self.choose(task, work, batch)[0])
            return task.loss({n: v * part.held(n) for n, v in part.values.items()}, batch)

        inner = self.descend(task, loss, on=("params", "gate"), momentum=0)
        return (Stage("train", step, self.epochs),)

    adapt = plan

    def finish(self, task, work, message, client, round):
        held = {key: work[key] for key in client}
        return {"params": self.part(task, work["params"], work["chosen"])}, held

    def personalize(self, task, message, client, view):
        part = self.part(task, message["params"].values, client["last"])
        values = {name: value * part.held(name) for name, value in part.values.items()}
        return {"params": Part(values, part.keep, part.grain)}
