"""Models that answer with one class, whatever they are asked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from masquerade.core.task import accuracy
from masquerade.engine.base import Evaluation

if TYPE_CHECKING:
    from masquerade.evaluation.evaluate import Evaluator


def answering_one_class(
    evaluator: "Evaluator", ids: Sequence[int], found: Evaluation
) -> tuple[int, ...]:
    """Return the clients whose own test labels differ, and whose model answers all of them alike.

    `found` are the models and scores of the clients `ids`. Outputs are asked for only where scores
    leave it open.
    """
    if not evaluator.has_classes:
        return ()
    data, own, asked = evaluator.simulation.federation, evaluator.own, evaluator.asked()
    by_sample = evaluator.server.task.metric is accuracy
    places = []
    for place, id in enumerate(ids):
        y, at = data.y[own[id]], torch.searchsorted(asked[id], own[id].cpu())
        right = found.scores[place][at.to(y.device)] > 0
        if len(torch.unique(y)) > 1 and (not by_sample or may_be_one_class(y, right)):
            places.append(place)
    models, samples = [found.models[at] for at in places], [own[ids[at]] for at in places]
    outputs = evaluator.engine.outputs(models, samples, data.x) if places else ()
    return tuple(
        ids[place]
        for place, each in zip(places, outputs, strict=True)
        if len(torch.unique(each.argmax(-1))) == 1
    )


def may_be_one_class(y: Tensor, right: Tensor) -> bool:
    """Tell whether one class, answered to all samples, could have got just these scores."""
    known = torch.unique(y[right])
    return len(known) < 2 and bool(right.sum() == (y[:, None] == known).sum())
