"""Thin FedMask: bits over frozen weights, a structure at hello. Shape, not fidelity."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import Method, Part, Stage, average, mask, tree


@dataclass(frozen=True, kw_only=True)
class ThinFedMask(Method):
    views: ClassVar = ("personal",)

    def server_init(self, task):
        return {"bits": mask.full(task.initial)}

    def row_init(self, task, who):
        return {"structure": mask.full(task.initial), "bits": mask.full(task.initial)}

    client_init = row_init

    def download(self, task, server, row, round):
        return {"bits": Part(server["bits"], row["structure"])}

    def start(self, task, message, client, round):
        bits = tree.where(client["structure"], message["bits"].values, client["bits"])
        return {**client, "scores": tree.each(lambda b: b.to(task.dtype) - 0.5, bits)}

    def plan(self, task, round):
        def loss(work, batch, round):
            soft = tree.each(torch.sigmoid, work["scores"])
            gates = tree.each(lambda s: (s >= 0.5).to(s.dtype) + s - s.detach(), soft)
            inside = tree.only(work["structure"], task.initial)
            return task.loss(tree.each(torch.mul, inside, gates), batch)

        def structure(work, round):
            size = tree.each(lambda s, w: (s.sigmoid() * w).abs(), work["scores"], task.initial)
            return {**work, "structure": tree.each(lambda s: mask.top(s, s.numel() // 2), size)}

        step, hello = self.descend(task, loss, on=("scores",)), round.kind == "hello"
        return (Stage("hi", step, 1, then=structure) if hello else Stage("go", step, self.epochs),)

    greet = plan

    def finish(self, task, work, message, client, round):
        held = {"structure": work["structure"], "bits": tree.each(lambda s: s >= 0, work["scores"])}
        sent = held["structure" if round.kind == "hello" else "bits"]
        return {"bits": Part(sent, work["structure"])}, held

    def aggregate(self, task, server, rows, uploads, cohort, round):
        if round.kind == "hello":
            return server, {**rows, "structure": uploads["bits"].values}
        return {"bits": average(uploads["bits"], cohort.samples, server["bits"], least=2)}, rows

    def personalize(self, task, message, client, view):
        return {"bits": Part(mask.both(client["bits"], client["structure"]))}

    def predict(self, task, personal, x):
        return task(tree.only(personal["bits"].values, task.initial), x)[0]
