"""Where the states of clients lie between rounds: on the device, in host memory, or on a disk.

What a client begins with is a function of the client alone. So it is made when it is asked for, and
only states that were put are held: memory grows with the clients that took part, not with all.
"""

import mmap
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.tree import onto

Place = torch.device | Path
"""A device, or a folder in which files without a name are made."""


@dataclass
class Store:
    """The states of some clients, stacked at `place`; cohorts are taken to `device`."""

    first: Callable[[int], Any]
    """What a client begins with, by its number; a pure function."""
    clients: int
    device: torch.device
    place: Place
    more: dict[str, Tensor] = field(default_factory=dict)
    """What every client's state has beside, since `add`."""
    _held: Any = None
    """Stacked [room, …], of those that were put."""
    _count: int = 0
    _room: int = 0
    _files: list[mmap.mmap] = field(default_factory=list)
    _slots: Tensor = field(init=False)
    """[clients]: where in `_held` the state of each lies, −1 where it never was put."""

    def __post_init__(self) -> None:
        self._slots = torch.full((self.clients,), -1)

    @property
    def state(self) -> Any:
        """Return a copy of the states of all clients, stacked [clients, …]."""
        return self.take(torch.arange(self.clients))

    @property
    def nbytes(self) -> int:
        """Count the bytes of the states that were put, wherever they lie."""
        held = {} if self._held is None else self._held
        return sum(leaf[: self._count].nbytes for leaf in tree.leaves(held))

    def begun(self, id: int) -> Any:
        """Return what a client begins with."""
        first = self.first(id)
        return first | self.more if self.more else first

    def one(self, id: int) -> Any:
        """Return a copy of the state of one client, on the device."""
        return tree.take(self.take(torch.tensor([id])), 0)

    def take(self, ids: Tensor, lend: bool = False) -> Any:
        """Return the states of some clients, on the device: copies, unless those of all are lent.

        What is lent must be copied by whoever gets it: a method may keep what it is given.
        """
        slots = self._slots[ids]
        fresh = torch.nonzero(slots < 0).flatten()
        if not len(fresh):
            return self._taken(slots, lend)
        states = [self.begun(id) for id in ids[fresh].tolist()]
        made = tree.transform(lambda value: onto(value, self.device), tree.stack(states))
        there = torch.nonzero(slots >= 0).flatten()
        if not len(there):
            return made
        back = torch.cat([there, fresh]).argsort()
        both = tree.transform(lambda *two: torch.cat(two), self._taken(slots[there]), made)
        return tree.take(both, back)

    def _taken(self, slots: Tensor, lend: bool = False) -> Any:
        leaves = tree.leaves(self._held)
        lend = lend and bool(leaves) and torch.equal(slots, torch.arange(len(leaves[0])))
        taken = self._held if lend else tree.take(self._held, slots)
        self._release()
        return tree.transform(lambda value: onto(value, self.device), taken)

    def put(self, ids: Tensor, states: Any) -> None:
        """Write the states of some clients; all others keep their bits."""
        self._make_room(ids)
        tree.put(self._held, self._slots[ids], states)
        self._release()

    def grow(self, other: "Store") -> None:
        """Have room for all clients of another store; those that are new begin as they do there."""
        mine, theirs, known = self.first, other.first, self.clients
        self.first = lambda id: mine(id) if id < known else theirs(id)
        self._slots = torch.cat([self._slots, torch.full((other.clients - known,), -1)])
        self.clients = other.clients

    def add(self, more: Mapping[str, Tensor]) -> None:
        """Let the state of every client, a dict, have further names, with the same values."""
        self.more |= more
        if self._held is not None:
            for name, value in more.items():
                self._held[name] = self._empty(value, self._room)
                self._held[name][: self._count] = value

    def _make_room(self, ids: Tensor) -> None:
        """Give a slot to those that have none, with twice the room where it does not suffice."""
        if self._held is None:
            first = self.begun(int(ids[0]))
            self._held = tree.transform(lambda value: self._empty(value, 0), first)
        new = ids[self._slots[ids] < 0]
        self._slots[new] = torch.arange(self._count, self._count + len(new))
        self._count += len(new)
        if self._count > self._room:
            # What lies in a file takes no room before it is written.
            twice = max(self._count, 2 * self._room)
            self._room = self.clients if isinstance(self.place, Path) else min(self.clients, twice)
            self._held = tree.transform(self._grown, self._held)

    def _grown(self, value: Tensor) -> Tensor:
        grown = self._empty(value.new_empty(value.shape[1:]), self._room)
        grown[: len(value)] = value
        return grown

    def _empty(self, value: Tensor, room: int) -> Tensor:
        """Return room for so many values like one."""
        shape, size = (room, *value.shape), room * value.nbytes
        if not isinstance(self.place, Path):
            return torch.empty(shape, dtype=value.dtype, device=self.place)
        if not size:
            return torch.empty(shape, dtype=value.dtype)
        with tempfile.TemporaryFile(dir=self.place) as file:
            file.truncate(size)
            self._files.append(mmap.mmap(file.fileno(), size))
        return torch.frombuffer(self._files[-1], dtype=value.dtype).reshape(shape)

    def _release(self) -> None:
        """Let the memory go that was read of files, or written to them: the system has it."""
        for each in self._files:
            each.madvise(mmap.MADV_DONTNEED)
