"""Top-k (Aji and Heafield, 2017) with error feedback (Stich et al., 2018), on rounds of FedAvg.

A client sends the largest entries of its update and keeps the rest for its next one:

    u = w_trained − w_received + e        sent: u on its largest entries        e ← the rest of u
    w ← w + Σ n_k sent_k / Σ n_k          entries that are not sent count as zeros
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import Bounds, Choices, Message, Method, Part, State, Task, mask, tree
from masquerade.core.round import ClientInfo, Cohort, Round
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class TopK(Method):
    """FedAvg whose clients send the largest entries of their updates."""

    share: float = 0.1
    """Share of the update's entries, the largest ones, that is sent (k / d)."""
    ranking: str = "layer"
    """Which entries are ranked together: those of each tensor ("layer"), or all ("overall")."""

    bounds: ClassVar[Bounds] = {"share": (0, 1)}
    choices: ClassVar[Choices] = {"ranking": ("layer", "overall")}

    def counts(self, task: Task) -> dict[str, int]:
        """Return how many entries of every parameter are sent: rounded down, at least one."""
        shapes = {name: task.shapes[name] for name in task.initial if task.trainable(name)}
        found = mask.counts(shapes, mask.uniform_densities(shapes, self.share))
        return {name: max(1, count) for name, count in found.items()}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold what was not sent yet (e), of parameters; buffers are always sent whole."""
        return {
            "residual": {name: torch.zeros_like(task.initial[name]) for name in self.counts(task)}
        }

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the largest entries of update and residual, and keep the others."""
        # Differs: the papers send gradients of single steps; here it is the update of a round.
        received, left = message["params"].values, client["residual"]
        update = tree.each(torch.sub, work["params"], received)
        update |= {name: update[name] + value for name, value in left.items()}
        sizes = {name: update[name].abs() for name in left}
        counts = self.counts(task)
        if self.ranking == "layer":
            keep = mask.top_by_layer(sizes, counts)
        else:
            keep = mask.top_overall(sizes, sum(counts.values()))
        residual = {name: torch.where(keep[name], 0, update[name]) for name in left}
        return {"update": Part(tree.only(keep, update), keep)}, {"residual": residual}

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Add the mean update, by samples; an entry that a client did not send is a zero."""
        old = server["params"]
        mean = cohort.average(uploads["update"], tree.zeros(old), absent="zero")
        return {"params": tree.each(torch.add, old, mean)}, rows

    def limit(self, task: Task, info: ClientInfo) -> dict[str, dict[str, int]]:
        """Bound what is sent of every parameter, or of all together."""
        counts = self.counts(task)
        most = counts if self.ranking == "layer" else {"": sum(counts.values())}
        return {"use": {}, "upload": most}


ENTRIES = {
    "topk": MethodEntry(
        method=TopK,
        view="global",
        title="Top-k",
        paper="Aji and Heafield, 2017",
        personal="nothing",
        sent="all weights down, the largest changes up",
        neutral={"share": 1.0},
        neutral_within=1e-12,
    ),
}
