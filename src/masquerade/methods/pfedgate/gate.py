"""A gate: a small private network that reads a client's inputs and scores blocks of the model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from masquerade.core.random import Label, fold, uniform
from masquerade.core.round import Batch
from masquerade.core.sgd import Losses, in_chunks
from masquerade.core.task import Task
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError
from masquerade.methods.pfedgate import norm
from masquerade.methods.pfedgate.blocks import Layout


@dataclass(frozen=True)
class Gate:
    """Switchable norm → linear → batch norm → sigmoid; all but the linear layer can be left out."""

    outputs: int
    pre_norm: bool = True
    post_norm: bool = True
    squash: bool = True

    def init(self, sample: Tensor, key: int, dtype: torch.dtype) -> tuple[Tree, Tree]:
        """Draw the values for inputs like `sample` [1, …], with the norms' running statistics."""
        if not sample.is_floating_point():
            kind = str(sample.dtype).removeprefix("torch.")
            text = f"a gate reads inputs as numbers, and these are {kind}; it has no use for tokens"
            raise MasqueradeError("E202", text)
        shape = sample.shape[1:]
        reach = shape.numel() ** -0.5
        linear, bias = (
            (uniform(fold(key, Label.GATE, name), size, dtype) * 2 - 1) * reach
            for name, size in (("linear", (self.outputs, shape.numel())), ("bias", (self.outputs,)))
        )
        pre, post = (
            norm.switch_init("gate.pre", shape, dtype) if self.pre_norm else ({}, {}),
            norm.batch_init("gate.post", self.outputs, dtype) if self.post_norm else ({}, {}),
        )
        values = {**pre[0], "gate.linear": linear, "gate.bias": bias, **post[0]}
        device = sample.device
        return (
            {name: value.to(device) for name, value in values.items()},
            {name: value.to(device) for name, value in {**pre[1], **post[1]}.items()},
        )

    def __call__(
        self, tree: Tree, x: Tensor, valid: Tensor | None = None, train: bool = False
    ) -> tuple[Tensor, Tree]:
        """Score inputs: (scores [samples, outputs], running statistics)."""
        x = x.to(tree["gate.linear"].dtype)
        running: Tree = {}
        if self.pre_norm:
            x, running = norm.switch_norm(tree, "gate.pre", x, valid, train)
        scores = x.flatten(1) @ tree["gate.linear"].T + tree["gate.bias"]
        if self.post_norm:
            scores, moved = norm.batch_norm(tree, "gate.post", scores, valid, train)
            running = {**running, **moved}
        return scores.sigmoid() if self.squash else scores, running


@dataclass(frozen=True)
class Gated:
    """A network whose blocks a gate chooses and scales: for a batch, or for every sample `alone`.

    The gate's first scores are the importances G of the blocks, its last ones their weights M; with
    as many scores as blocks they are the same.
    """

    task: Task
    blocks: Layout
    gate: Gate
    alone: bool
    exact: bool
    scale: bool
    chunk: int
    """How many samples alone are in memory at a time, each with a network of its own."""

    def scores(
        self, tree: Tree, x: Tensor, valid: Tensor | None = None, train: bool = False
    ) -> tuple[Tensor, Tree]:
        """Score the blocks: ([samples, scores], or their mean [scores]; running statistics)."""
        found, running = self.gate(tree, x, valid, train)
        return found if self.alone else norm.mean(found, valid), running

    def choose(self, scores: Tensor, room: Tensor) -> Tensor:
        """Choose blocks [..., blocks] by their importance, as far as the room goes."""
        importance = scores[..., : len(self.blocks.sizes)]
        if importance.ndim == 1:
            return self.blocks.choose(importance, room, self.exact)
        found: Tensor = torch.func.vmap(lambda one: self.blocks.choose(one, room, self.exact))(
            importance
        )
        return found

    def weights(self, scores: Tensor, flags: Tensor) -> Tensor:
        """Return M · I, where the gradient takes G for I: straight through."""
        size = flags.shape[-1]
        importance, weight = scores[..., :size], scores[..., -size:]
        # I − G.detach() + G, in the order that gives I to the last bit.
        straight = flags.to(scores.dtype) + (importance - importance.detach())
        return straight * weight if self.scale else straight

    def values(self, params: Tree, weights: Tensor) -> Tree:
        """Return the network's values, every block multiplied by its weight [blocks]."""
        expanded = self.blocks.expand(weights, params)
        return {**params, **{name: params[name] * each for name, each in expanded.items()}}

    def output(self, params: Tree, weights: Tensor, x: Tensor) -> Tensor:
        """Return the outputs for x."""
        if weights.ndim == 1:
            return self.task(self.values(params, weights), x)[0]

        def one(weight: Tensor, sample: Tensor) -> Tensor:
            return self.task(self.values(params, weight), sample[None])[0][0]

        found: Tensor = torch.func.vmap(one, chunk_size=self.chunk)(weights, x)
        return found

    def losses(self, params: Tree, weights: Tensor, batch: Batch) -> Losses:
        """Return the losses of a batch and new buffers; weights of single samples, as a penalty."""
        if weights.ndim == 1:
            return self.task.losses(self.values(params, weights), batch)

        def one(params: Tree, weight: Tensor, single: Batch) -> Tensor:
            lone = Batch(single.x[None], single.y[None], None, single.key)
            return self.task.losses(self.values(params, weight), lone)[0][0]

        def some(params: Tree, weights: Tensor, part: tuple[Batch, Tensor]) -> Tensor:
            singles, real = part
            each = torch.func.vmap(one, (None, 0, 0), randomness="different")
            return torch.where(real, each(params, weights, singles), 0).sum()

        keys = torch.as_tensor(fold(batch.key, torch.arange(len(batch.y), device=batch.y.device)))
        real = torch.ones_like(keys, dtype=torch.bool) if batch.valid is None else batch.valid
        singles = Batch(batch.x, batch.y, None, keys)
        total = in_chunks(some, params, weights, (singles, real), self.chunk)
        # The gradient of every chunk was taken on the way, so that the mean is taken here.
        return None, {}, total / batch.count().clamp(min=1)
