"""Class weights that clients' labels decide: found before training, from messages like others."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from masquerade.config.resolve import TrainingSpec
from masquerade.core.part import Message, Part
from masquerade.simulation.fitting import eligible
from masquerade.wire import nbytes


@dataclass(frozen=True, eq=False)
class Weighting:
    """What classes weigh in the loss of a run, and what finding out cost: mean bytes per client."""

    weights: Tensor | None = None
    """By class; None where all weigh the same."""
    down: float = 0.0
    up: float = 0.0


def weigh(spec: TrainingSpec) -> Weighting:
    """Return the weights of classes: n / (classes · n of the class), over all training labels.

    Every client that can take part sends how many labels of each class it has. The server adds that
    up, and sends everybody the weights.
    """
    if spec.train.class_weights == "none":
        return Weighting()
    data = spec.federation
    assert data.classes is not None
    uploads = [upload(data.y[data.train[id]], data.classes) for id in eligible(spec).tolist()]
    return merged(uploads, spec.task.dtype, data.clients - len(spec.novel))


def merged(uploads: Sequence[Message], dtype: torch.dtype, clients: int) -> Weighting:
    """Find weights from what clients sent; the cost is the mean over so many clients."""
    counts = reduce(torch.add, (message["labels"].values["counts"] for message in uploads))
    weights = balanced(counts).to(dtype)
    up = sum(int(nbytes(message)) for message in uploads) / clients
    return Weighting(weights, float(nbytes(download(weights))), up)


def balanced(counts: Tensor) -> Tensor:
    """Return what classes weigh, so that each has the same share in the loss of all samples.

    A class without a sample weighs as if it had one.
    """
    return counts.sum() / (len(counts) * counts.clamp(min=1).double())


def upload(labels: Tensor, classes: int) -> Message:
    """Return what a client sends: how many training samples of each class it has."""
    return {"labels": Part({"counts": labels.cpu().bincount(minlength=classes)})}


def download(weights: Tensor) -> Message:
    """Return what everybody is sent."""
    return {"class_weights": Part({"weights": weights})}
