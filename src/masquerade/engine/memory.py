"""Memory: kept for the next step, and shared by processes, so that states need not be sent."""

import ctypes
import math
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch.utils import _pytree as pytree

from masquerade.core import tree

ALIGNED = 64
"""Tensors begin at multiples of so many bytes."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_KEPT = 1 << 30


def keep_freed() -> None:
    """Let this process use freed memory again instead of giving it back, up to a gibibyte.

    Every step frees and takes megabytes. What was given back comes as pages that have to be cleared
    first, which cost a Ditto step of a CNN a twentieth. Without glibc nothing is done.
    """
    options = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if options is not None:
        options(_MMAP_THRESHOLD, _KEPT)
        options(_TRIM_THRESHOLD, _KEPT)


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a state lie in one piece of memory."""

    numbered: Any
    """The state, with a number instead of every tensor."""
    forms: list[tuple[tuple[int, ...], torch.dtype, int]]
    """Shape, type and first byte of every tensor."""
    size: int

    @classmethod
    def of(cls, state: Any, *lead: int) -> "Layout":
        """Lay out a state; with a leading size, as many states like it: [clients, …]."""
        leaves, spec = pytree.tree_flatten(state)
        forms, size = [], 0
        for leaf in leaves:
            shape = (*lead, *leaf.shape)
            forms.append((shape, leaf.dtype, size))
            size += -(-math.prod(shape) * leaf.element_size() // ALIGNED) * ALIGNED
        numbered = pytree.tree_unflatten(range(len(leaves)), spec)
        return cls(numbered, forms, max(size, ALIGNED))

    def view(self, path: str) -> Any:
        """Return the state whose tensors are the memory at a path."""
        with open(path, "r+b") as file:
            # Whoever comes first makes the room; for the others it changes nothing.
            os.ftruncate(file.fileno(), self.size)
            memory = torch.frombuffer(mmap.mmap(file.fileno(), self.size), dtype=torch.uint8)
        tensors = []
        for shape, dtype, first in self.forms:
            count = math.prod(shape) * dtype.itemsize
            tensors.append(memory[first : first + count].view(dtype).view(shape))
        return tree.transform(lambda number: tensors[number], self.numbered)


@contextmanager
def shared() -> Iterator[str]:
    """Yield the path of memory that other processes can open until this ends.

    What was viewed by then stays; no name remains, so that nothing is left behind by those who die.
    """
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("masquerade")
        try:
            yield f"/proc/{os.getpid()}/fd/{number}"
        finally:
            os.close(number)
    else:
        with NamedTemporaryFile(prefix="masquerade-") as file:
            yield file.name
