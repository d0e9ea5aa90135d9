"""FedDST (Bibikar, Vikalo, Wang, Chen; AAAI 2022): one sparse global model whose mask moves.

Clients train inside the server's mask m. Every ΔR rounds they also readjust it: prune α_r of each
layer by magnitude, regrow as many by gradient, α_r = α/2 · (1 + cos(π r / R_end)). The server
averages every weight over the clients that hold it, then prunes by magnitude to the sparsity S.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import mask, tree
from masquerade.core.method import Bounds, Choices, Method
from masquerade.core.part import Message, Part
from masquerade.core.round import ClientInfo, Cohort, Round, Stage
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedDST(Method):
    """FedAvg inside one sparse mask that clients readjust and the server prunes."""

    sparsity: float = 0.5
    """Share of the masked weights that are zero (S)."""
    densities: str = "erk"
    """How layers share the sparsity: small layers denser ("erk"), or all alike ("uniform")."""
    first_dense: bool = False
    """Whether the first layer stays dense."""
    biases_dense: bool = True
    """Whether biases stay dense."""
    readjust: float = 0.01
    """Share of the mask that a readjustment prunes and regrows (α), annealed by cosine to 0."""
    readjust_every: int = 10
    """Rounds from one readjustment to the next (ΔR)."""
    readjust_until: float = 0.5
    """Share of the run after which the mask stays as it is, and α is 0 (R_end)."""
    # Differs: the release readjusts after the last epoch (`settle` 0) and sends new weights as
    # zeros, which the server's pruning takes away again; here the new mask is trained.
    settle: int = 1
    """Epochs at the end of a round that train inside the readjusted mask."""

    bounds: ClassVar[Bounds] = {
        "sparsity": (0, 1 - 1e-9),
        "readjust": (0, 1),
        "readjust_every": (1, math.inf),
        "readjust_until": (1e-9, 1),
        "settle": (0, math.inf),
    }
    choices: ClassVar[Choices] = {"densities": ("erk", "uniform")}

    def schedule(self, number: int, rounds: int) -> Hashable:
        """Name the rounds in which the mask moves."""
        due = number % self.readjust_every == 0 and number < self.readjust_until * rounds
        return "readjust" if due and self.readjust > 0 else "train"

    def counts(self, task: Task) -> dict[str, int]:
        """Return how many entries of every masked tensor are kept."""
        return mask.budget(task, self.sparsity, self.densities, self.first_dense, self.biases_dense)

    def server_init(self, task: Task) -> State:
        """Prune the initial weights by magnitude."""
        keep = mask.top_by_layer(tree.each(torch.abs, task.initial), self.counts(task))
        return {"params": tree.only(keep, task.initial), "keep": keep}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send the mask and the weights inside it."""
        return {"params": Part(server["params"], server["keep"])}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Take the received weights and mask."""
        return {"params": message["params"].values, "keep": message["params"].keep}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train inside the mask; in some rounds readjust it before the last `settle` epochs."""
        step = self.sgd_step(task, within=mask.kept)
        if round.phase != "readjust":
            return (Stage("train", step, self.local_epochs, masks=mask.trained),)
        search = max(1, self.local_epochs - self.settle)
        # Differs: the release takes the gradient of the last batch anew, after its step; here it
        # is the one that the step took.
        dense = self.sgd_step(task, within=mask.kept, gradient=True)
        return (
            Stage("search", dense, search, then=self._move, masks=mask.searched),
            Stage("settle", step, self.local_epochs - search, epoch=search, masks=mask.trained),
        )

    def _move(self, work: State, round: Round) -> State:
        """Prune by magnitude and regrow by gradient, fewer as the run goes on."""
        return mask.readjust(
            work, mask.annealed(self.readjust, round.progress / self.readjust_until)
        )

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the weights and the mask."""
        return {"params": Part(work["params"], work["keep"])}, client

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Average over the holders; where masks moved, keep the largest weights that are held."""
        params, keep = cohort.average(uploads["params"], server["params"]), server["keep"]
        if round.phase == "readjust":
            held = {name: each.any(0) for name, each in uploads["params"].keep.items()}
            size = {name: torch.where(held[name], params[name].abs(), -1) for name in held}
            keep = mask.both(mask.top_by_layer(size, self.counts(task)), held)
        return {"params": tree.only(keep, params), "keep": keep}, rows

    def limit(self, task: Task, info: ClientInfo) -> dict[str, dict[str, int]]:
        """Bound the model and the upload by the sparsity."""
        return {"use": self.counts(task), "upload": self.counts(task)}


ENTRIES = {
    "feddst": MethodEntry(
        method=FedDST,
        view="global",
        title="FedDST",
        paper="Bibikar et al., 2022",
        personal="nothing",
        sent="weights inside a mask, and the mask",
        neutral={"sparsity": 0.0, "readjust": 0.0},
    ),
}
