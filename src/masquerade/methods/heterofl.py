"""HeteroFL (Diao, Ding, Tarokh; ICLR 2021): one network of which clients train a part of the width.

A client of level r trains the leading r of the channels of every hidden layer, so about r² of the
weights. While it trains, the outputs of hidden layers are divided by r. Logits of classes that it
does not hold are zero in its loss. The server averages every weight over the clients that train it,
rows of the output layer over those that hold the class.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from masquerade.core import MasqueradeError, Method, mask, slicing, tree
from masquerade.core.part import Axis, Message, Part
from masquerade.core.random import Label, draw, fold
from masquerade.core.round import Batch, ClientInfo, Round, Stage
from masquerade.core.sgd import Losses, SGDStep
from masquerade.core.task import Task
from masquerade.core.tree import State, Tree
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class HeteroFL(Method):
    """Clients of several widths share the leading channels of one network."""

    # Differs: the paper's batch norm takes its statistics from all clients' data for testing; here
    # norms are group norms. Clients weigh by their samples; the paper counts each once.
    levels: tuple[float, ...] = (1.0, 0.5)
    """Widths of the network, as shares (r); a client draws one that its device can hold."""
    mask_labels: bool = True
    """Whether a client's loss and its output rows leave out classes that it does not hold."""

    views: ClassVar[tuple[str, ...]] = ("global", "full")
    budgeted: ClassVar[bool] = True

    def problems(self) -> list[str]:
        """Refuse levels outside of (0, 1]."""
        fit = self.levels and all(0 < level <= 1 for level in self.levels)
        return [] if fit else [f"`method.levels` is {self.levels}; give widths above 0, at most 1"]

    def width(self, task: Task, info: ClientInfo) -> float:
        """Draw a client's level, the same all run long, among those that fit its budget."""
        most = info.budget * tree.size(task.initial) + 1e-9
        able = [r for r in self.levels if slicing.count(self.cut(task, r), task.initial) <= most]
        able = able or [min(self.levels)]
        return able[int(draw(fold(info.key, Label.LEVEL), 1)) % len(able)]

    def cut(self, task: Task, width: float) -> slicing.Cut:
        """Return what a width keeps; where all levels are 1, nothing is cut."""
        return slicing.widths(task, width) if min(self.levels) < 1 else {}

    def server_init(self, task: Task) -> State:
        """Hold the full width."""
        if self.mask_labels and not task.classifies:
            text = "`mask_labels` needs a task of classes, whose loss is cross entropy"
            raise MasqueradeError("E202", f"{text}; set method.mask_labels = false")
        return super().server_init(task)

    def row_init(self, task: Task, info: ClientInfo) -> State:
        """Remember a client's width."""
        return {"keep": slicing.keep(self.cut(task, self.width(task, info)), task.initial)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold the width, for the scaler."""
        like = next(iter(task.initial.values()))
        return {"width": like.new_tensor(self.width(task, info))}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send the client's width; the view `full` uses all of it."""
        if round.kind == "adapt" and round.phase[0] == "full":
            return {"params": Part(server["params"])}
        return {"params": Part(tree.only(row["keep"], server["params"]), row["keep"])}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Take the received width; no class has been seen yet."""
        weight = task.initial[task.last(1)[0]]
        classes = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        received = message["params"]
        return {"params": received.values, "keep": received.keep, "classes": classes, **client}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """See which classes there are, then train the narrow network."""
        *inner, _ = (layer for layer in task.layers if layer.kind != "norm")
        names = [name for layer in inner for name in (layer.weight, layer.bias) if name]

        def measure(work: State, batch: Batch, round: Round) -> State:
            found = batch.y[:, None] == torch.arange(len(work["classes"]), device=batch.y.device)
            real = found if batch.valid is None else found & batch.valid[:, None]
            return {**work, "classes": work["classes"] | real.any(0)}

        def scaled(work: State) -> Tree:
            # What a linear layer or a convolution gives is linear in its weight and bias together,
            # so dividing both divides the output.
            smaller = {name: work["params"][name] / work["width"] for name in names}
            return {**work["params"], **smaller}

        def held(work: State, batch: Batch, round: Round) -> Losses:
            logits, buffers = task(scaled(work), batch.x, True, batch.key)
            logits = torch.where(work["classes"], logits, 0)
            return task.weighted_loss(logits, batch.y), buffers

        def train(step: SGDStep) -> Stage:
            return Stage("train", step, self.local_epochs, masks=mask.trained, sliceable=True)

        if not self.mask_labels:
            return (train(self.sgd_step(task, model=scaled, within=mask.kept)),)
        step = self.sgd_step(task, held, within=mask.kept)
        return Stage("measure", measure, masks=mask.unused), train(step)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the width, and of the output layer the rows of the classes held."""
        params, keep = work["params"], work["keep"]
        if self.mask_labels:
            owned = {name: Axis(0).expand(work["classes"], params[name]) for name in task.last(1)}
            keep = mask.both(keep, owned)
        return {"params": Part(params, keep)}, client

    def limit(self, task: Task, info: ClientInfo) -> dict[str, dict[str, int]]:
        """Bound the model and the upload by the width."""
        most = mask.ones(self.row_init(task, info)["keep"], task.initial)
        return {"use": most, "upload": most}


ENTRIES = {
    "heterofl": MethodEntry(
        method=HeteroFL,
        view="global",
        title="HeteroFL",
        paper="Diao et al., 2021",
        personal="the width of the network",
        sent="weights inside the width",
        neutral={"levels": (1.0,), "mask_labels": False},
    ),
}
