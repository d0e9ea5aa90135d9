"""A model in two halves, entry by entry: a client's own where a mask says so, shared elsewhere.

    θ = where(personal, own, shared)

A step trains one half and leaves the other as it is. In LocalAlt (Pillutla et al., 2022) full
passes over the two halves take turns.
"""

from typing import Any

import torch

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Part
from masquerade.core.round import Stage
from masquerade.core.sgd import SGDStep
from masquerade.core.task import Task
from masquerade.core.tree import State, Tree


def split(task: Task, norms: str, buffers: str) -> tuple[Tree, Tree, Tree]:
    """Sort the initial tensors by where they may live: (masked, private, sent).

    Masked ones are personal entry by entry, private ones never leave a client, and what is sent
    has all the others. Parameters of norms are "masked", "shared" or "personal"; buffers are
    "local" or "averaged".
    """
    layers = [layer for layer in task.layers if layer.kind == "norm"]
    of_norms = {name for layer in layers for name in (layer.weight, layer.bias)}
    masked: Tree = {}
    private: Tree = {}
    for name, value in task.initial.items():
        if task.trainable(name) and (norms == "masked" or name not in of_norms):
            masked[name] = value
        elif norms == "personal" if name in of_norms else buffers == "local":
            private[name] = value
    sent = {name: value for name, value in task.initial.items() if name not in private}
    return masked, private, sent


def invert(masks: Tree) -> Tree:
    """Return masks of what the given ones leave out."""
    return tree.each(torch.logical_not, masks)


def compose(own: Part, shared: Part) -> Tree:
    """Return the model of a client's own part and of what it was sent."""
    return {**shared.values, **tree.where(own.keep, own.values, shared.values)}


def step(method: Method, task: Task, half: str, **changes: Any) -> SGDStep:
    """Build the step that trains one half, `work["own"]` or `work["shared"]`.

    The gradient of a half is zero where the other is chosen, and what it holds there is never read.
    """
    return method.sgd_step(task, model=model, on=(half,), **changes)


def model(work: State) -> Tree:
    """Return the model that the two halves in `work` make."""
    return {**work["shared"], **tree.where(work["personal"], work["own"], work["shared"])}


def alternate(method: Method, task: Task) -> tuple[Stage, ...]:
    """List the passes of LocalAlt: in each of the method's epochs the own half, then the shared.

    Shared passes see the batches that FedAvg would see. Buffers move with them.
    """
    own, shared = (step(method, task, half) for half in ("own", "shared"))
    return tuple(
        stage
        for epoch in range(method.local_epochs)
        for stage in (
            Stage(f"own {epoch}", own, stream=1, epoch=epoch, masks=_own),
            Stage(f"shared {epoch}", shared, epoch=epoch, masks=_shared),
        )
    )


# All weights take part in a forward pass; only the half that is trained needs its gradient.


def _own(work: State) -> tuple[Tree, Tree]:
    return {}, work["personal"]


def _shared(work: State) -> tuple[Tree, Tree]:
    return {}, invert(work["personal"])
