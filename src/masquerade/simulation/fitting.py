"""Preprocessing that clients' data decide: fitted before training, from messages like others."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from masquerade.config.resolve import TrainingSpec
from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.preprocess import Preprocess, Unfitted, moved
from masquerade.core.tree import Tree
from masquerade.wire import nbytes

SUMMED = 1024
"""Samples that lie in memory as float64 at a time."""

_add = partial(tree.each, torch.add)


@dataclass(frozen=True, eq=False)
class Fitting:
    """The preprocessing of a run, and what fitting it cost: mean bytes per client."""

    preprocess: Preprocess
    down: float = 0.0
    up: float = 0.0


def eligible(spec: TrainingSpec) -> Tensor:
    """Return the clients that can take part in training: with training samples, and not novel."""
    counts = spec.federation.samples.cpu()
    kept_out = torch.tensor(spec.novel, dtype=torch.int64)
    return torch.nonzero(counts.index_fill(0, kept_out, 0)).flatten()


def fit(spec: TrainingSpec) -> Fitting:
    """Fit the preprocessing of a training where clients' data decide it; it is the same each time.

    Every client that can take part sends what its training samples sum to. The server adds that up,
    and sends everybody the constants.
    """
    unfitted, data = spec.task.preprocess, spec.federation
    if not isinstance(unfitted, Unfitted):
        return Fitting(unfitted)
    # Tokens are refused where a task is shown them: nothing is fitted on them.
    spec.task.with_example(data.x)
    uploads = [upload(unfitted, data.x[data.train[id]]) for id in eligible(spec).tolist()]
    total: Tree = reduce(_add, (message["statistics"].values for message in uploads))
    fitted = moved(unfitted.fitted(total), spec.task.dtype)
    up = sum(int(nbytes(message)) for message in uploads) / (data.clients - len(spec.novel))
    return Fitting(fitted, float(nbytes(download(fitted))), up)


def upload(unfitted: Unfitted, x: Tensor) -> Message:
    """Return what a client sends: the sums of its training samples x [samples, …]."""
    with _one_thread():
        sums = [unfitted.statistics(some.cpu()) for some in torch.split(x, SUMMED)]
    return {"statistics": Part(reduce(_add, sums))}


def download(fitted: Preprocess) -> Message:
    """Return what everybody is sent: the constants, in the type of the network."""
    assert isinstance(fitted, torch.nn.Module)
    return {"preprocess": Part(dict(fitted.state_dict()))}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Add up in one order: how a sum is divided among threads decides its last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
