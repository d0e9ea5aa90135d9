"""Padding: samples that fill up a batch where clients are mapped, and that must change nothing."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.round import Round, Stage
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.core.vmap import over

PADDING = 3
"""How many samples a batch is padded with where padding is tried."""
ROUNDED = 64
"""Difference that rounding explains, in units of a value's last place."""


def padded(batch: Any, count: int = PADDING) -> Any:
    """Append copies of the first sample to a batch, or to each of a tuple, marked as padding."""
    if isinstance(batch, tuple):
        return tuple(padded(each, count) for each in batch)
    x, y = (torch.cat([each, *[each[:1]] * count]) for each in (batch.x, batch.y))
    valid = torch.arange(len(y), device=y.device) < len(batch.y)
    return replace(batch, x=x, y=y, valid=valid)


def padding_error(stage: Stage, work: State, given: Any, round: Round) -> tuple[str, float]:
    """Take a step with and without padding; return the entry of the work that differs most.

    `given` is a batch without padding, or a tuple of them where the stage draws several. With it
    comes how far the entry lies apart, as a share of how far the step moves it. The padded step is
    mapped over one client, as padded steps are; what cannot be mapped raises there.
    """
    plain = stage.step(work, given, round)
    with over(1) as inside:
        one, own = tree.transform(lambda value: inside.enter(value[None]), (work, padded(given)))
        filled = tree.transform(inside.leave, stage.step(one, own, round))
    filled = tree.take(filled, 0)
    apart = {entry: _apart(value, filled[entry], work[entry]) for entry, value in plain.items()}
    return max(apart.items(), key=lambda each: each[1], default=("", 0.0))


def _apart(plain: Any, filled: Any, before: Any) -> float:
    """Return how far two results lie apart, as a share of how far the first one has moved.

    All tensors of an entry are looked at together: where one of them has no gradient at all, what
    it moves by is rounding.
    """
    rounding = difference = moved = 0.0
    for one, other, old in zip(*map(tree.leaves, (plain, filled, before)), strict=True):
        difference, moved = max(difference, _largest(one, other)), max(moved, _largest(one, old))
        if one.is_floating_point() and one.numel():
            last = torch.finfo(one.dtype).eps * float(one.abs().max())
            rounding = max(rounding, ROUNDED * last)
    if difference <= rounding:
        return 0.0
    return (difference - rounding) / moved if moved else math.inf


def _largest(left: Tensor, right: Tensor) -> float:
    """Return the largest difference of two tensors, of bits the share that differs."""
    if not left.numel():
        return 0.0
    if left.dtype is torch.bool:
        return float((left != right).double().mean())
    if not left.is_floating_point():
        left, right = left.double(), right.double()
    found = float((left - right).abs().max())
    return math.inf if math.isnan(found) else found


def couples(task: Task, x: Tensor) -> bool:
    """Tell whether the output for one sample changes with the others of its batch."""
    if task.couples_batch:
        return True
    batch, key = x[:3], torch.tensor(0, device=x.device)
    # Whole numbers may be tokens, which have bounds: others of the data take their place.
    other = batch[1:].flip(0) + 1 if batch.is_floating_point() else x[-2:]
    others = torch.cat([batch[:1], other])
    outputs = []
    for given in (batch, others):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(0)
            outputs.append(task(task.initial, given, train=True, key=key)[0][0])
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
