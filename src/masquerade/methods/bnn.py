"""BNN-FedAvg: binarized networks (Courbariaux, Hubara et al., 2016) under FedAvg.

Weights are −1 or +1 wherever they are used. A client trains real-valued shadows of them, and what
crosses the wire is one bit per weight:

    received bit b → shadow w = ±scale/√fan-in → forward with sign(w), slope straight through to w
    → w clipped to [−1, 1] → sent bit w ≥ 0;    the server takes the sign of Σ n_k b_k, b_k = ±1
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from masquerade.core import Bounds, MasqueradeError, Message, Method, Part, State, Task, Tree, tree
from masquerade.core.round import Cohort, Round, Stage
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class BNN(Method):
    """FedAvg on networks whose weights and activations are −1 or +1."""

    # Differs: no paper says where the shadows begin after a download. At ±1, where a sign would put
    # them, the steps of a round never reach zero, and no bit ever flips.
    scale: float = 0.01
    """Size of the real-valued weights that a round begins with, in units of 1 / √(inputs of a
    layer)."""

    bounds: ClassVar[Bounds] = {"scale": (1e-9, 1)}

    def binarized(self, task: Task) -> list[str]:
        """List the tensors that are binarized: all weights of linear and convolutional layers."""
        layers = [layer for layer in task.layers if layer.kind in ("linear", "conv")]
        return [layer.weight for layer in layers if layer.weight is not None]

    def bits(self, task: Task, values: Tree) -> Tree:
        """Replace the weights to be binarized by their signs, True for +1; zero counts as +1."""
        return values | {name: values[name] >= 0 for name in self.binarized(task)}

    def server_init(self, task: Task) -> State:
        """Hold bits, and as real numbers what is not binarized."""
        if not getattr(task.module, "binary", False):
            kind = type(task.module).__name__
            text = f"BNN-FedAvg needs a network of sign activations and norms, and {kind} is none"
            raise MasqueradeError("E202", f"{text}; take NAME_binary, or set `binary = True` in it")
        return {"params": self.bits(task, task.initial)}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Put the shadows on the side of zero that the bits say."""
        values = message["params"].values
        return {"params": values | self.weights(task, values, self.scale)}

    def weights(self, task: Task, values: Tree, scale: float | None = None) -> Tree:
        """Turn bits into −1 and +1, or into shadows at `scale` / √(inputs)."""
        found = {}
        for name in self.binarized(task):
            size = 1.0 if scale is None else scale / math.sqrt(task.shapes[name][1:].numel())
            found[name] = torch.where(values[name], size, -size).to(task.dtype)
        return found

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train the shadows through the signs, and keep them within [−1, 1]."""
        names = self.binarized(task)

        def signed(work: State) -> Tree:
            params: Tree = work["params"]
            return params | {name: sign(params[name]) for name in names}

        def clipped(work: State) -> State:
            params = work["params"]
            return {**work, "params": params | {name: params[name].clamp(-1, 1) for name in names}}

        step = self.sgd_step(task, model=signed, project=clipped)
        return (Stage("train", step, self.local_epochs),)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the signs of the shadows, and the rest as it is."""
        return {"params": Part(self.bits(task, work["params"]))}, client

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Let clients vote on every bit, by their samples; a tie leaves it. Average the rest."""
        # Differs: no paper says what a tie is, nor whether votes are weighted.
        old, new = server["params"], uploads["params"].values
        signs = {name: torch.where(new[name], 1.0, -1.0) for name in self.binarized(task)}
        zeros = {name: torch.zeros(old[name].shape, device=old[name].device) for name in signs}
        mean = cohort.average(Part(signs), zeros)
        votes = {n: torch.where(mean[n] == 0, old[n], mean[n] > 0) for n in signs}
        _, others = tree.split(new, signs)
        # Apart from the signs, of which all are as far from zero.
        return {"params": {**old, **cohort.average(Part(others), old), **votes}}, rows

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the signs, as numbers: both are weights, and none is left out."""
        values = message["params"].values
        signs = tree.each(lambda sign: sign.to(torch.int8), self.weights(task, values))
        return {"params": Part(values | signs)}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        """Answer with binarized weights."""
        values = personal["params"].values
        signs = {name: values[name].to(task.dtype) for name in self.binarized(task)}
        return task(values | signs, x)[0]


def sign(weight: Tensor) -> Tensor:
    """Return −1 or +1 exactly, with the slope of the weight itself (straight through)."""
    return torch.where(weight >= 0, 1.0, -1.0).to(weight.dtype) + (weight - weight.detach())


ENTRIES = {
    "bnn": MethodEntry(
        method=BNN,
        view="global",
        title="BNN-FedAvg",
        paper="Hubara et al., 2016",
        personal="nothing",
        sent="one bit per weight, and norms",
        variant="binary",
        never_neutral="uses the signs of weights",
    ),
}
