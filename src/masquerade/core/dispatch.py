"""Modes that see every operation of torch, without the compiler of torch."""

from typing import TypeVar

from torch.utils._python_dispatch import TorchDispatchMode

Mode = TypeVar("Mode", bound=type[TorchDispatchMode])


def uncompiled(mode: Mode) -> Mode:
    """Put a mode's own `__torch_dispatch__` back in place of what torch made of it.

    Torch wraps it, so that its compiler leaves it alone, and imports the compiler at its first
    call. Nothing is compiled here, and the import takes longer than a small run.
    """
    made = mode.__torch_dispatch__
    # Where a version of torch wraps nothing, there is nothing to unwrap.
    mode.__torch_dispatch__ = getattr(made, "__wrapped__", made)  # type: ignore[method-assign]
    return mode
