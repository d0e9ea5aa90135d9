"""Mapping over clients: `torch.func.vmap` and its gradient, without what these do in every call.

`vmap` walks states of dicts of dicts several times, and `torch.func.grad` keeps a graph of the
backward pass, for derivatives of derivatives that nobody here takes. On small networks that took
most of the time. This uses the functions of torch that both are built on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_torch: Any = torch._C._functorch


@dataclass(frozen=True)
class Map:
    """A map that is being taken: inside it a tensor [clients, …] stands for one client's."""

    level: int
    clients: int

    def enter(self, stacked: Tensor) -> Tensor:
        """Return one client's tensor, which stands for all of them."""
        entered: Tensor = _torch._add_batch_dim(stacked, 0, self.level)
        return entered

    def leave(self, own: Tensor) -> Tensor:
        """Return all clients' tensors; what does not depend on a client is expanded."""
        left: Tensor = _torch._remove_batch_dim(own, self.level, self.clients, 0)
        return left


@dataclass(frozen=True)
class Gradient:
    """A gradient that is being taken inside of a map."""

    level: int

    def enter(self, value: Tensor) -> Tensor:
        """Return a tensor whose gradient can be taken."""
        entered: Tensor = _torch._wrap_for_grad(value, self.level)
        return entered.requires_grad_()

    def leave(self, value: Tensor) -> Tensor:
        """Return what a tensor is outside."""
        left: Tensor = _torch._unwrap_for_grad(value, self.level)
        return left


_current: ContextVar[Map | None] = ContextVar("current", default=None)


@contextmanager
def over(clients: int) -> Iterator[Map]:
    """Map what is done inside over so many clients."""
    _prepare()
    level = _torch._vmap_increment_nesting(clients, "error")
    made = Map(level, clients)
    token = _current.set(made)
    try:
        yield made
    finally:
        _current.reset(token)
        _torch._vmap_decrement_nesting()


@cache
def _prepare() -> None:
    """Have torch load what maps need, which it does when it is first asked for one."""
    torch.func.vmap(torch.neg)(torch.zeros(1))


def mapped() -> bool:
    """Tell whether this runs inside a map over clients, where other code is fast."""
    return _current.get() is not None


def outside(make: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    """Return what `make(leading sizes)` makes without torch: in a map, for every client.

    A map refuses to draw random numbers; what is made elsewhere may enter it.
    """
    current = _current.get()
    return make(()) if current is None else current.enter(make((current.clients,)))


@contextmanager
def differentiating() -> Iterator[Gradient]:
    """Take a gradient of what is done inside, in a map."""
    level = _torch._grad_increment_nesting()
    before = _torch.get_inplace_requires_grad_allowed()
    _torch.set_inplace_requires_grad_allowed(True)
    try:
        with torch.enable_grad():
            yield Gradient(level)
    finally:
        _torch.set_inplace_requires_grad_allowed(before)
        _torch._grad_decrement_nesting()
