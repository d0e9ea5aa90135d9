"""Thin HeteroFL: clients train the leading channels they can hold. Shape, not fidelity."""

from dataclasses import dataclass

from masquerade.core import Method, Part, Stage, slice, tree


@dataclass(frozen=True, kw_only=True)
class ThinHeteroFL(Method):
    narrow: float = 0.5
    """Width of the clients whose budget is below one."""

    def width(self, task, who):
        share = self.narrow if who.budget < 1 else 1.0
        return slice.keep(slice.widths(task, share), task.initial)

    def row_init(self, task, who):
        return {"keep": self.width(task, who)}

    def download(self, task, server, row, round):
        return {"params": Part(tree.only(row["keep"], server["params"]), row["keep"])}

    def start(self, task, message, client, round):
        return {"params": message["params"].values, "keep": message["params"].keep}

    def plan(self, task, round):
        step = self.descend(task, within=lambda work: work["keep"])

        def keep(work):
            return work["keep"], work["keep"]

        return (Stage("train", step, self.epochs, keep=keep, slim=True),)

    def finish(self, task, work, message, client, round):
        return {"params": Part(work["params"], work["keep"])}, client

    def limit(self, task, who):
        counts = {name: int(keep.sum()) for name, keep in self.width(task, who).items()}
        return {"use": counts, "upload": counts}
