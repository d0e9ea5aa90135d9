"""Preprocessing that is fitted to clients' data before training, from messages like all others."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from torch import Tensor

from masquerade.config.resolve import TrainingSpec
from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.preprocess import Preprocess, Raw, Unfitted, describe, moved
from masquerade.core.tree import Tree
from masquerade.data import Federation
from masquerade.wire import nbytes

SUMMED = 1024
"""Samples that lie in memory as float64 at a time."""

_add = partial(tree.each, torch.add)


@dataclass(frozen=True, eq=False)
class Fitting:
    """The preprocessing of a run, and what fitting it cost: mean bytes per client."""

    preprocess: Preprocess
    """That of all clients; it does nothing where each client has its own, applied beforehand."""
    down: float = 0.0
    up: float = 0.0
    sent: tuple[str, ...] = ()
    """What clients sent sums of."""
    own: tuple[Preprocess, ...] = ()
    """By client, where each fits it on its own training samples."""

    def of(self, client: int) -> Preprocess:
        """Return what a client does to its samples."""
        return self.own[client] if self.own else self.preprocess

    def after(self, uploads: Iterable[Message], dtype: torch.dtype, clients: int) -> "Fitting":
        """Fit preprocessing to what clients sent; its cost is the mean over so many clients."""
        unfitted, total, up = self.preprocess, Tree(), 0
        assert isinstance(unfitted, Unfitted)
        for message in uploads:
            sent = message["statistics"].values
            total = _merge(unfitted)(total, sent) if total else sent
            up += int(nbytes(message))
        found = moved(unfitted.fitted(total), dtype)
        down = self.down + float(nbytes(download(found)))
        return Fitting(found, down, self.up + up / clients, (*self.sent, *total))

    @property
    def text(self) -> str:
        """Say what is done to samples."""
        whose = ", fitted by each client on its own training samples" if self.own else ""
        return describe(self.of(0)) + whose

    def applied(self, data: Federation) -> Federation:
        """Return samples as their owners preprocess them, where each does it in its own way."""
        if not self.own:
            return data
        made: Tensor | None = None
        for client, own in enumerate(self.own):
            samples = torch.cat([part[client] for part in (data.train, data.validation, data.test)])
            found = moved(own, data.x.device)(data.x[samples])
            made = found.new_zeros(len(data.x), *found.shape[1:]) if made is None else made
            made[samples] = found
        assert made is not None
        return replace(data, x=made, features=(), impute="")


def eligible(spec: TrainingSpec) -> Tensor:
    """Return the clients that can take part in training: with training samples, and not novel."""
    counts = spec.federation.samples.cpu()
    kept_out = torch.tensor(spec.novel, dtype=torch.int64)
    return torch.nonzero(counts.index_fill(0, kept_out, 0)).flatten()


def fit(spec: TrainingSpec) -> Fitting:
    """Fit the preprocessing of a training where clients' data decide it; it is the same each time.

    Every client that can take part sends what its training samples sum to. The server merges that,
    and sends everybody the constants; where further sums need these, it asks again. Where it is
    fitted per client, nothing is sent; novel clients fit it too, and what has no training sample is
    fitted to none.
    """
    unfitted, data = spec.task.preprocess, spec.federation
    if not isinstance(unfitted, Unfitted):
        return Fitting(unfitted)
    # Tokens are refused where a task is shown them: nothing is fitted on them.
    spec.task.with_example(data.x)
    if getattr(unfitted, "per_client", False):
        fitted = (fitted_alone(unfitted, data.x[own]) for own in data.train)
        return Fitting(Raw(), own=tuple(moved(each, spec.task.dtype) for each in fitted))
    found, clients = Fitting(unfitted), data.clients - len(spec.novel)
    while isinstance(unfitted := found.preprocess, Unfitted):
        uploads = [upload(unfitted, data.x[data.train[id]]) for id in eligible(spec).tolist()]
        found = found.after(uploads, spec.task.dtype, clients)
    return found


def fitted_alone(unfitted: Unfitted, x: Tensor) -> Preprocess:
    """Return preprocessing that one client fits on its own samples x [samples, …]."""
    found: Preprocess = unfitted.fitted(statistics(unfitted, x))
    return fitted_alone(found, x) if isinstance(found, Unfitted) else found


def statistics(unfitted: Unfitted, x: Tensor) -> Tree:
    """Return the sums of samples x [samples, …], which depend on no thread."""
    with _one_thread():
        found = [unfitted.statistics(some.cpu()) for some in torch.split(x, SUMMED)]
        return reduce(_merge(unfitted), found)


def _merge(unfitted: Unfitted) -> Callable[[Tree, Tree], Tree]:
    """Return how the statistics of two groups of samples become those of both."""
    merge: Callable[[Tree, Tree], Tree] = getattr(unfitted, "merged", _add)
    return merge


def upload(unfitted: Unfitted, x: Tensor) -> Message:
    """Return what a client sends: the sums of its training samples x [samples, …]."""
    return message_of(statistics(unfitted, x))


def message_of(sums: Tree) -> Message:
    """Return sums as they are sent: of counts that are mostly zero, as in a histogram, the others.

    So what has a mask depends on them.
    """
    sparse = {name for name, value in sums.items() if 2 * value.count_nonzero() < value.numel()}
    return {"statistics": Part(sums, {name: sums[name] != 0 for name in sparse})}


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
