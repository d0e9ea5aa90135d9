"""Thin FedSelect: personal masks that grow where weights change most. Shape, not fidelity."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import Method, Part, Stage, average, mask, tree


def invert(masks):
    return tree.each(torch.logical_not, masks)


@dataclass(frozen=True, kw_only=True)
class ThinFedSelect(Method):
    grow: float = 0.2
    """Share of the still shared entries of a tensor that become personal in a round."""
    views: ClassVar = ("personal",)

    def row_init(self, task, who):
        return {"personal": invert(mask.full(task.initial))}

    def client_init(self, task, who):
        return {"personal": invert(mask.full(task.initial)), "params": task.initial}

    def download(self, task, server, row, round):
        return {"params": Part(server["params"], invert(row["personal"]))}

    def start(self, task, message, client, round):
        params = tree.where(client["personal"], client["params"], message["params"].values)
        return {"params": params, "before": params, "personal": client["personal"]}

    def plan(self, task, round):
        def grow(work, round):
            personal = {}
            for name, held in work["personal"].items():
                change = (work["params"][name] - work["before"][name]).abs()
                count = torch.floor((~held).sum() * self.grow).to(torch.int64)
                personal[name] = mask.regrow(held, change, count)
            return {**work, "personal": personal}

        personal = self.descend(task, within=lambda work: work["personal"])
        shared = self.descend(task, within=lambda work: invert(work["personal"]))
        return (
            Stage("personal", personal, self.epochs),
            Stage("shared", shared, self.epochs, then=grow),
        )

    def finish(self, task, work, message, client, round):
        held = {"personal": work["personal"], "params": work["params"]}
        return {"params": Part(work["params"], invert(work["personal"]))}, held

    def aggregate(self, task, server, rows, uploads, cohort, round):
        params = average(uploads["params"], cohort.samples, server["params"])
        return {"params": params}, {"personal": invert(uploads["params"].keep)}

    def personalize(self, task, message, client, view):
        return {"params": Part(client["params"])}
