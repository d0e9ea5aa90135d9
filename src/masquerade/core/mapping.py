"""Whether this runs inside a map over clients: what is fast there is not what is fast alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_batching: ContextVar[bool] = ContextVar("batching", default=False)


@contextmanager
def batching() -> Iterator[None]:
    """Tell functions that they run inside a map over clients."""
    token = _batching.set(True)
    try:
        yield
    finally:
        _batching.reset(token)


def mapped() -> bool:
    """Tell whether this runs inside a map over clients."""
    return _batching.get()
