"""Whether a step sees padding: samples that fill up a batch, and that `batch.valid` does not mark.

Engines pad batches so that clients with different numbers of samples can be stacked. Padding is
made of real samples here, as it is there, so that whoever counts it comes to another result.
"""

import math

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.round import Batch, Round, Stage
from masquerade.core.tree import State

PADDING = 2
"""Samples of padding in a batch."""


def with_and_without(
    stage: Stage, work: State, x: Tensor, y: Tensor, round: Round
) -> tuple[State, State]:
    """Take one step of a stage with padding, and one without; return what each gives.

    `work` is as `stage.prepare` gives it, x and y are samples, at least one for each of the stage's
    draws. The last ones are the padding; where there are few, the first serve as padding too.
    """
    real = max(len(y) - PADDING * stage.draws, stage.draws)
    given = []
    for padding in (PADDING, 0):
        batches = [_batch(x, y, real, draw, stage.draws, padding) for draw in range(stage.draws)]
        given.append(batches[0] if stage.draws == 1 else tuple(batches))
    padded, plain = (stage.step(work, each, round) for each in given)
    return padded, plain


def padding_changes(stage: Stage, work: State, x: Tensor, y: Tensor, round: Round) -> float:
    """Return how far padding moves the work of a step; infinity where no number says how far."""
    padded, plain = (tree.named(work) for work in with_and_without(stage, work, x, y, round))
    if padded.keys() != plain.keys():
        return math.inf
    return max((_apart(padded[name], value) for name, value in plain.items()), default=0.0)


def _batch(x: Tensor, y: Tensor, real: int, draw: int, draws: int, padding: int) -> Batch:
    """Make the batch of a draw: its real samples, dealt out in turn, and the padding."""
    own = torch.arange(draw, real, draws, device=y.device)
    others = torch.arange(real, real + padding, device=y.device) % len(y)
    chosen = torch.cat([own, others])
    valid = torch.arange(len(chosen), device=y.device) < len(own) if padding else None
    return Batch(x[chosen], y[chosen], valid, torch.tensor(draw, device=y.device))


def _apart(left: Tensor, right: Tensor) -> float:
    if left.shape != right.shape or not left.is_floating_point():
        return 0.0 if torch.equal(left, right) else math.inf
    apart = float((left - right).abs().max()) if left.numel() else 0.0
    return math.inf if math.isnan(apart) else apart
