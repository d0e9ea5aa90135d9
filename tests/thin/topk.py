"""Thin Top-k: sparse updates with error feedback. Shape, not fidelity."""

from dataclasses import dataclass

from masquerade.core import Method, Part, average, mask, tree


@dataclass(frozen=True, kw_only=True)
class ThinTopK(Method):
    share: float = 0.1

    def counts(self, task):
        return {name: max(1, int(self.share * s.numel())) for name, s in task.shapes.items()}

    def client_init(self, task, who):
        return {"residual": tree.zeros(task.initial)}

    def start(self, task, message, client, round):
        return {"params": message["params"].values, "received": message["params"].values}

    def finish(self, task, work, message, client, round):
        change = tree.each(
            lambda new, old, left: new - old + left,
            work["params"],
            work["received"],
            client["residual"],
        )
        keep = mask.top_by_layer(tree.each(lambda v: v.abs(), change), self.counts(task))
        residual = tree.where(keep, tree.zeros(change), change)
        return {"change": Part(tree.only(keep, change), keep)}, {"residual": residual}

    def aggregate(self, task, server, rows, uploads, cohort, round):
        zeros = tree.zeros(server["params"])
        mean = average(uploads["change"], cohort.samples, zeros, absent="zero")
        return {"params": tree.each(lambda a, b: a + b, server["params"], mean)}, rows

    def limit(self, task, who):
        return {"use": {}, "upload": self.counts(task)}
