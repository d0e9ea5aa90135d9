"""Models that answer all of a client's samples alike: with one class, or with one number."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from masquerade.core.task import accuracy
from masquerade.engine.base import Evaluation

if TYPE_CHECKING:
    from masquerade.evaluation.evaluate import Evaluator

ALIKE = 1e-6
"""Numbers that differ by less, as a share of the largest, are rounded and not told apart."""


def answering_alike(
    evaluator: "Evaluator", ids: Sequence[int], found: Evaluation
) -> tuple[int, ...]:
    """Return the clients whose own test targets differ, and whose model answers all of them alike.

    `found` are the models and scores of the clients `ids`. Outputs are asked for only where scores
    leave it open.
    """
    if not (evaluator.has_classes or evaluator.has_numbers):
        return ()
    data, own, asked = evaluator.simulation.federation, evaluator.own, evaluator.asked()
    by_sample = evaluator.server.task.metric is accuracy
    places = []
    for place, id in enumerate(ids):
        y, at = data.y[own[id]], torch.searchsorted(asked[id], own[id].cpu())
        right = found.scores[place][at.to(y.device)] > 0
        if len(torch.unique(y, dim=0)) > 1 and (not by_sample or may_be_one_class(y, right)):
            places.append(place)
    models, samples = [found.models[at] for at in places], [own[ids[at]] for at in places]
    outputs = evaluator.engine.outputs(models, samples, data.x) if places else ()
    alike = one_class if evaluator.has_classes else one_number
    return tuple(ids[place] for place, each in zip(places, outputs, strict=True) if alike(each))


def one_class(outputs: Tensor) -> bool:
    """Tell whether logits name one class for all samples."""
    return len(torch.unique(outputs.argmax(-1))) == 1


def one_number(outputs: Tensor) -> bool:
    """Tell whether all samples get one number, or one vector of them, but for rounding."""
    spread = (outputs.amax(0) - outputs.amin(0)).max()
    return bool(spread <= ALIKE * outputs.abs().max())


def may_be_one_class(y: Tensor, right: Tensor) -> bool:
    """Tell whether one class, answered to all samples, could have got just these scores."""
    known = torch.unique(y[right])
    return len(known) < 2 and bool(right.sum() == (y[:, None] == known).sum())
