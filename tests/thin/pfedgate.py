"""Thin pFedGate: a private gate chooses blocks under a budget per client. Shape, not fidelity."""

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch

from masquerade.core import Blocks, Method, Part, Stage
from masquerade.core.random import fold, normal


@dataclass(frozen=True, kw_only=True)
class ThinPFedGate(Method):
    blocks: int = 3
    gate_rate: float = 0.1
    inputs: int = 6
    unit: bool = False
    views: ClassVar = ("personal",)

    def grain(self, task):
        def sizes(count):
            ends = [count * (i + 1) // self.blocks for i in range(self.blocks)]
            return tuple(b - a for a, b in zip([0, *ends], ends, strict=False))

        return {name: Blocks(sizes(value.numel())) for name, value in task.initial.items()}

    def client_init(self, task, who):
        sizes = torch.tensor([s for g in self.grain(task).values() for s in g.sizes])
        gate = normal(fold(who.key, "gate"), (self.inputs, len(sizes)), task.dtype) * 0.1
        return {"gate": {"gate": gate}, "budget": torch.tensor(who.budget * float(sizes.sum()))}

    def start(self, task, message, client, round):
        params = message["params"].values
        none = torch.zeros_like(client["gate"]["gate"][0], dtype=torch.bool)
        return {"params": params, **client, "chosen": none, "last": none}

    def choose(self, task, work, batch):
        """Return (gates through which gradients flow, the blocks chosen within the budget)."""
        soft = (batch.x.to(task.dtype).flatten(1) @ work["gate"]["gate"]).sigmoid()
        soft = torch.stack([batch.mean(column) for column in soft.unbind(1)])
        sizes = torch.tensor([s for g in self.grain(task).values() for s in g.sizes])
        order = soft.argsort(descending=True, stable=True)
        fits = sizes[order].cumsum(0) <= work["budget"]
        chosen = torch.zeros_like(fits).scatter(0, order, fits)
        flow = chosen.to(soft.dtype) * (1 if self.unit else 1 + soft - soft.detach())
        return flow, chosen

    def spread(self, task, flags):
        ends = list(accumulate(len(g.sizes) for g in self.grain(task).values()))
        pieces = [flags[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return dict(zip(task.initial, pieces, strict=True))

    def plan(self, task, round):
        def step(work, batch, round):
            _, chosen = self.choose(task, work, batch)
            return {**inner(work, batch, round), "chosen": work["chosen"] | chosen, "last": chosen}

        def loss(work, batch, round):
            flow, _ = self.choose(task, work, batch)
            flows, grain = self.spread(task, flow), self.grain(task)
            gated = {n: v * grain[n].spread(flows[n], v) for n, v in work["params"].items()}
            return task.loss(gated, batch)

        inner = self.descend(task, loss, on=("params", "gate"), rate=(self.rate, self.gate_rate))
        return (Stage("train", step, self.epochs, begin=inner.prepare),)

    adapt = plan

    def finish(self, task, work, message, client, round):
        sent = Part(work["params"], self.spread(task, work["chosen"]), self.grain(task))
        held = {"gate": work["gate"], "budget": client["budget"]}
        return {"params": sent}, held | ({"last": work["last"]} if round.kind == "adapt" else {})

    def personalize(self, task, message, client, view):
        keep, grain = self.spread(task, client["last"]), self.grain(task)
        return {"params": Part(message["params"].values, keep, grain)}

    def predict(self, task, personal, x):
        part = personal["params"]
        values = {n: torch.where(part.held(n), v, 0) for n, v in part.values.items()}
        return task(values, x)[0]
