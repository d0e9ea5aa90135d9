"""Thin FedMask: bits over frozen weights, a structure at hello. Shape, not fidelity."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import Method, Part, Stage, average, mask, tree


def straight_through(scores):
    soft = scores.sigmoid()
    return (soft >= 0.5).to(soft.dtype) + soft - soft.detach()


@dataclass(frozen=True, kw_only=True)
class ThinFedMask(Method):
    share: float = 0.5
    views: ClassVar = ("personal",)

    def names(self, task):
        return [layer.weight for layer in task.layers]

    def server_init(self, task):
        return {"bits": mask.full({name: task.initial[name] for name in self.names(task)})}

    def row_init(self, task, who):
        return {"structure": self.server_init(task)["bits"]}

    def client_init(self, task, who):
        return self.row_init(task, who) | self.server_init(task)

    def download(self, task, server, row, round):
        return {"bits": Part(server["bits"], row["structure"])}

    def start(self, task, message, client, round):
        bits = tree.where(client["structure"], message["bits"].values, client["bits"])
        scores = {n: torch.where(b, 0.5, -0.5).to(task.dtype) for n, b in bits.items()}
        return {"scores": scores, "structure": client["structure"]}

    def plan(self, task, round):
        def loss(work, batch, round):
            gates = tree.each(straight_through, work["scores"])
            gated = {
                n: task.initial[n] * torch.where(work["structure"][n], g, 0)
                for n, g in gates.items()
            }
            return task.loss(task.initial | gated, batch)

        def structure(work, round):
            size = {n: (s.sigmoid() * task.initial[n]).abs() for n, s in work["scores"].items()}
            counts = {n: max(1, int(self.share * s.numel())) for n, s in size.items()}
            return {**work, "structure": mask.top_by_layer(size, counts)}

        step = self.descend(task, loss, on=("scores",))
        if round.kind == "hello":
            return (Stage("structure", step, 1, then=structure),)
        return (Stage("train", step, self.epochs),)

    greet = plan

    def finish(self, task, work, message, client, round):
        bits = tree.each(lambda s: s >= 0, work["scores"])
        held = {"structure": work["structure"], "bits": bits}
        if round.kind == "hello":
            return {"structure": Part(work["structure"])}, held
        return {"bits": Part(bits, work["structure"])}, held

    def aggregate(self, task, server, rows, uploads, cohort, round):
        if round.kind == "hello":
            return server, {"structure": uploads["structure"].values}
        bits = average(uploads["bits"], torch.ones(len(cohort.ids)), server["bits"], least=2)
        return {"bits": bits}, rows

    def personalize(self, task, message, client, view):
        return {"bits": Part(client["bits"], client["structure"])}

    def predict(self, task, personal, x):
        used = mask.both(personal["bits"].values, personal["bits"].keep)
        return task(tree.only(used, task.initial), x)[0]

    def limit(self, task, who):
        counts = {n: max(1, int(self.share * task.shapes[n].numel())) for n in self.names(task)}
        return {"use": counts, "upload": counts}
