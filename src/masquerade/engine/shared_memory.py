"""Memory that processes share, so that states need not be sent."""

import math
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from masquerade.core import tree

ALIGNED = 64
"""Tensors begin at multiples of so many bytes."""


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

    def over(self, memory: Tensor) -> Any:
        """Return the state whose tensors are some bytes."""
        tensors = []
        for shape, dtype, first in self.forms:
            count = math.prod(shape) * dtype.itemsize
            tensors.append(memory[first : first + count].view(dtype).view(shape))
        return tree.transform(lambda number: tensors[number], self.numbered)


class Place(NamedTuple):
    """Where other processes find shared memory, and how they tell that it is still the same."""

    path: str
    identity: tuple[int, int]

    @classmethod
    def of(cls, path: str) -> "Place":
        """Describe what is there now."""
        status = os.stat(path)
        return cls(path, (status.st_dev, status.st_ino))


@dataclass
class Memory:
    """Memory at a place, as one process sees it: mapped once, because mapping is slow."""

    place: Place
    room: mmap.mmap | None = None

    def view(self, layout: Layout) -> Any:
        """Return the state whose tensors are this memory."""
        if self.room is None or len(self.room) < layout.size:
            self.room = self._mapped(layout.size)
        return layout.over(torch.frombuffer(self.room, dtype=torch.uint8))

    def _mapped(self, size: int) -> mmap.mmap:
        with open(self.place.path, "r+b") as file:
            status = os.fstat(file.fileno())
            # When the memory is gone, its number may be that of any other file.
            if (status.st_dev, status.st_ino) != self.place.identity:
                raise RuntimeError("this shared memory is gone")
            # Whoever comes first makes the room. It never shrinks: others may have it in use.
            if status.st_size < size:
                os.ftruncate(file.fileno(), size)
            return mmap.mmap(file.fileno(), size)

    def held(self) -> bool:
        """Tell whether anybody still holds a tensor that is this memory."""
        # This attribute and the argument are two; a tensor's storage would be another.
        return self.room is not None and sys.getrefcount(self.room) > 2


@contextmanager
def shared() -> Iterator[Place]:
    """Yield the place of memory that other processes can open until this ends.

    What was viewed by then stays; no name remains, so that nothing is left behind by those who die.
    """
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("masquerade")
        try:
            yield Place.of(f"/proc/{os.getpid()}/fd/{number}")
        finally:
            os.close(number)
    else:
        with NamedTemporaryFile(prefix="masquerade-") as file:
            yield Place.of(file.name)
