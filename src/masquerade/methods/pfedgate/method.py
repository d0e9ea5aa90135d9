"""pFedGate (Chen et al., 2023): a private gate chooses and scales blocks of the shared model.

    G, M = gate(x)        I* = argmax I·G  with  I·W ≤ s_i ΣW  (Eq. 6)        θ'_i = θ_g ⊗ (M · I*)

Each round a client trains θ_g and its gate through θ'_i, and sends the blocks that it chose. The
server averages every block over the clients that sent it (Appendix G). Gates are never sent.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from masquerade.core import (
    Batch,
    Bounds,
    Choices,
    ClientInfo,
    MasqueradeError,
    Message,
    Method,
    Part,
    Round,
    Stage,
    State,
    Task,
    Tree,
    tree,
)
from masquerade.core.sgd import Losses
from masquerade.methods.pfedgate.blocks import layout
from masquerade.methods.pfedgate.gate import Gate, Gated
from masquerade.methods.pfedgate.norm import mean
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class PFedGate(Method):
    """Sparse models that differ by client, by batch or by sample, each within its budget."""

    density: float = 0.5
    """Share of the model's costs that a client may use (s); a smaller budget of its own goes
    before."""
    # Differs: the paper gives no number; this is the release's for five blocks.
    least: float = 0.2
    """Share of every tensor that is always on (s_min)."""
    blocks: int = 5
    """How many blocks every tensor is cut into (B)."""
    split: str = "flat"
    """How tensors are cut: into equal pieces ("flat"), by outputs ("filter") or by inputs
    ("channel")."""
    cost: str = "parameters"
    """What the budget counts (W): "parameters", "flops", or what `table` says ("table")."""
    table: tuple[float, ...] = (1.0,)
    """What each tensor costs, in the network's order; read with cost = "table" alone."""
    solver: str = "greedy"
    """How blocks are chosen within the budget: "greedy" by importance, or "exact" (knapsack)."""
    # Differs: the text gates every sample; the release, and so its tables, a batch.
    gating: str = "batch"
    """What has a mask of its own: a "batch", a "sample" or a "client"."""
    chunk: int = 8
    """With gating = "sample": how many samples, each with a model of its own, are in memory at a
    time."""
    paths: int = 2
    """Scores of the gate for a block: 2, an importance G and a scale M, or 1 that is both."""
    gate_lr: float = 0.1
    """Learning rate of the gate (η)."""
    # Differs: the paper says SGD; these are the release's, with which both learn faster.
    # Momentum begins anew in every round, the release keeps it.
    momentum: float = 0.9
    """Momentum of SGD, for model and gate; begun anew in every round."""
    weight_decay: float = 5e-4
    """Weight decay of SGD, for model and gate."""
    clip: float = 10.0
    """Largest norm of a gradient; a longer one is scaled down to it."""
    tune_epochs: int = 5
    """Epochs in which a client that never took part trains its gate before use."""
    pre_norm: bool = True
    """Whether the gate normalizes its input."""
    post_norm: bool = True
    """Whether the gate normalizes its scores."""
    squash: bool = True
    """Whether a sigmoid keeps the gate's scores between 0 and 1."""
    scale: bool = True
    """Whether chosen blocks are multiplied by M; otherwise they are used as they are."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    foreseen: ClassVar[bool] = False
    budgeted: ClassVar[bool] = True
    joins: ClassVar[bool] = False
    bounds: ClassVar[Bounds] = {
        "density": (1e-9, 1),
        "least": (0, 1),
        "blocks": (2, math.inf),
        "table": (1e-30, math.inf),
        "chunk": (1, math.inf),
        "paths": (1, 2),
        "gate_lr": (0, math.inf),
        "tune_epochs": (0, math.inf),
    }
    choices: ClassVar[Choices] = {
        "split": ("flat", "filter", "channel"),
        "cost": ("parameters", "flops", "table"),
        "solver": ("greedy", "exact"),
        "gating": ("batch", "sample", "client"),
    }

    def problems(self) -> list[str]:
        """Refuse more that is always on than a model may have."""
        if self.least <= self.density:
            return []
        return [f"`method.least` is {self.least}, above `method.density` {self.density}; lower it"]

    def gated(self, task: Task) -> Gated:
        """Return the network with its blocks and the gate that chooses them."""
        table = self.table if self.cost == "table" else ()
        blocks = layout(task, self.blocks, self.least, self.split, self.cost, table)
        gate = Gate(self.paths * len(blocks.sizes), self.pre_norm, self.post_norm, self.squash)
        alone, exact = self.gating == "sample", self.solver == "exact"
        return Gated(task, blocks, gate, alone, exact, self.scale, self.chunk)

    def server_init(self, task: Task) -> State:
        """Hold θ_g."""
        if self.gating == "sample" and task.couples_batch:
            text = "a network with BatchNorm cannot have a mask for every sample of a batch"
            raise MasqueradeError("E202", f"{text}; take `gating` batch, or another norm")
        return {"params": task.initial}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold the gate φ_i, what the budget leaves to choose, and mean scores, at first one.

        A client that never trained so uses the first blocks that fit, as θ_g has them.
        """
        model = self.gated(task)
        gate, running = model.gate.init(task.inputs(task.sample), info.key, task.dtype)
        scores = torch.ones_like(gate["gate.bias"])
        room = model.blocks.room(min(self.density, info.budget))
        return {"gate": gate, "running": running, "scores": scores, "room": room}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Begin with no block chosen and nothing measured."""
        none = torch.zeros_like(self.gated(task).blocks.always)
        zero = client["scores"].new_zeros(())
        total = task.inputs(task.sample)[0] if self.gating == "client" else client["scores"]
        sums = {"load": none.to(zero.dtype), "steps": zero, "seen": zero}
        work = {key: value for key, value in client.items() if key != "scores"}
        work |= {"chosen": none, "pooled": torch.zeros_like(total, dtype=zero.dtype)}
        return {"params": message["params"].values, **work, **sums}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train θ_g and φ_i together."""
        return self._stages(task, ("params", "gate"), (self.lr, self.gate_lr), self.local_epochs)

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Let a client that is new train φ_i alone."""
        if not round.phase[1]:
            return ()
        return self._stages(task, ("gate",), (self.gate_lr,), self.tune_epochs)

    def _stages(
        self, task: Task, on: tuple[str, ...], lrs: tuple[float, ...], epochs: int
    ) -> tuple[Stage, ...]:
        """Train; before it a client-wise gate pools the inputs, after it others average scores."""
        model, pooled = self.gated(task), self.gating == "client"

        def scores(work: State, batch: Batch) -> tuple[Tensor, Tree]:
            x, valid = (
                (_average(work)[None], None) if pooled else (task.inputs(batch.x), batch.valid)
            )
            return model.scores({**work["gate"], **work["running"]}, x, valid, train=True)

        def loss(work: State, batch: Batch, round: Round) -> Losses:
            weights = model.weights(scores(work, batch)[0], work["flags"])
            return model.losses(work["params"], weights, batch)

        def within(work: State) -> Tree:
            # Differs: a block that the batch did not choose stays, momentum and decay or not.
            return model.blocks.expand(work["some"], work["params"])

        sgd_step = self.sgd_step(task, loss, on=on, lr=lrs, within=within)

        def step(work: State, batch: Batch, round: Round) -> State:
            found, running = scores(work, batch)
            flags = model.choose(found, work["room"])
            share = flags.to(found.dtype)
            share = mean(share, batch.valid) if self.gating == "sample" else share
            moved = sgd_step({**work, "flags": flags, "some": share > 0}, batch, round)
            return {
                **{key: moved[key] for key in work},
                "running": {**work["running"], **running},
                "chosen": work["chosen"] | (share > 0),
                "load": work["load"] + share,
                "steps": work["steps"] + 1,
            }

        def measure(work: State, batch: Batch, round: Round) -> State:
            values = {**work["gate"], **work["running"]}
            x = task.inputs(batch.x)
            found = x if pooled else model.gate(values, x)[0]
            count = batch.count().to(task.dtype)
            total = work["pooled"] + mean(found, batch.valid) * count
            return {**work, "pooled": total, "seen": work["seen"] + count}

        def used(work: State) -> tuple[Tree, Tree]:
            # The gate's gradient reads that of every block, also of those left out: it is dense.
            steps = work["steps"].clamp(min=1)[..., None]
            return model.blocks.shares(work["load"] / steps), {}

        def idle(work: State) -> tuple[Tree, None]:
            return model.blocks.shares(torch.zeros_like(work["load"])), None

        training = Stage("train", step, epochs, begin=sgd_step.prepare, masks=used)
        measuring = Stage("measure", measure, masks=idle)
        return (measuring, training) if pooled else (training, measuring)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the blocks that were chosen; keep φ_i and what it says of the training data."""
        model, scores = self.gated(task), _average(work)
        if self.gating == "client":
            # Normalized as in training: by what this one input is alone.
            values = {**work["gate"], **work["running"]}
            scores = model.scores(values, scores[None], None, train=True)[0]
        held = {key: work[key] for key in ("gate", "running", "room")}
        held["scores"] = torch.where(work["seen"] > 0, scores, client["scores"])
        return {"params": model.blocks.part(work["params"], work["chosen"])}, held

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use θ_g under the mask of the mean scores, or with the gate for every sample."""
        model, params = self.gated(task), message["params"].values
        flags = model.choose(client["scores"], client["room"])
        gate = {"weights": model.weights(client["scores"], flags)}
        if self.gating == "sample":
            gate |= {"room": client["room"], **client["gate"], **client["running"]}
            return {"params": message["params"], "gate": Part(gate)}
        kept = tree.only(model.blocks.expand(flags, params), params)
        return {"params": model.blocks.part(kept, flags), "gate": Part(gate)}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        """Answer by θ'_i."""
        model, gate = self.gated(task), personal["gate"].values
        weights = gate["weights"]
        if self.gating == "sample":
            scores, _ = model.scores(gate, task.inputs(x))
            weights = model.weights(scores, model.choose(scores, gate["room"]))
        return model.output(personal["params"].values, weights, x)

    def limit(self, task: Task, info: ClientInfo) -> dict[str, dict[str, int]]:
        """Bound a model in use; uploads unite masks, and one mask per sample needs all weights."""
        blocks = self.gated(task).blocks
        most = blocks.most(blocks.room(min(self.density, info.budget)))
        return {"use": {} if self.gating == "sample" else most, "upload": {}}

    def notes(self, task: Task, personal: Message) -> dict[str, Tensor]:
        """Count the gate's weights in 20 bins from 0 to 1; blocks left out weigh 0."""
        weights = personal["gate"].values["weights"].double().clamp(0, 1)
        # Counted by comparing: a histogram on CUDA adds up in any order, which is refused.
        bins = (weights.flatten() * 20).floor().clamp(max=19)
        places = torch.arange(20, device=bins.device)
        return {"gate_weights": (bins[:, None] == places).sum(0).double()}


def _average(work: State) -> Tensor:
    average: Tensor = work["pooled"] / work["seen"].clamp(min=1)
    return average


ENTRIES = {
    "pfedgate": MethodEntry(
        method=PFedGate,
        view="personal",
        title="pFedGate",
        paper="Chen et al., 2023",
        personal="a gate that chooses and scales blocks",
        sent="all weights down, the chosen blocks up",
        neutral={"density": 1.0, "scale": False},
    ),
    "pfedgate_sample": MethodEntry(
        method=PFedGate,
        view="personal",
        title="pFedGate, by sample",
        paper="Chen et al., 2023",
        personal="as pFedGate, with a mask for every sample",
        sent="as pFedGate",
        settings=(("gating", "sample"),),
        neutral={"density": 1.0, "scale": False},
        # Each sample's gradient is taken through a model of its own, and then averaged.
        neutral_within=1e-12,
    ),
}
