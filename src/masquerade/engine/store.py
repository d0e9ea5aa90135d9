"""Where the states of all clients lie between rounds: on the device, or in host memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.tree import onto


@dataclass
class Store:
    """A state stacked over all clients [clients, …], at `place`; cohorts are taken to `device`."""

    state: Any
    device: torch.device
    place: torch.device

    @classmethod
    def of(
        cls, states: Iterable[Any], clients: int, device: torch.device, place: torch.device
    ) -> "Store":
        """Stack the states of so many clients at a place, one after another.

        They are not held beside one another before: of thousands, that would be twice the memory.
        """
        coming = iter(states)
        first = next(coming)
        state = tree.transform(lambda value: _room(value, clients, place), first)
        for id, each in enumerate(chain([first], coming)):
            tree.transform(lambda room, value, id=id: room[id].copy_(value), state, each)
        return cls(state, device, place)

    @classmethod
    def at(cls, state: Any, device: torch.device, place: torch.device) -> "Store":
        """Bring a state that is stacked already to its place."""
        return cls(tree.transform(lambda value: value.to(place), state), device, place)

    def take(self, ids: Tensor, lend: bool = False) -> Any:
        """Return the states of some clients, on the device: copies, unless those of all are lent.

        What is lent must be copied by whoever gets it: a method may keep what it is given.
        """
        leaves = tree.leaves(self.state)
        lend = lend and bool(leaves) and torch.equal(ids, torch.arange(len(leaves[0])))
        taken = self.state if lend else tree.take(self.state, ids)
        return tree.transform(lambda value: onto(value, self.device), taken)

    def put(self, ids: Tensor, states: Any) -> None:
        """Write the states of some clients; all others keep their bits."""
        leaves = tree.leaves(self.state)
        places = onto(ids, leaves[0].device) if leaves else ids

        def write(old: Tensor, new: Tensor) -> Tensor:
            return old.index_copy_(0, places, new.to(old.device, old.dtype))

        tree.transform(write, self.state, states)


def _room(value: Tensor, clients: int, place: torch.device) -> Tensor:
    return torch.empty(clients, *value.shape, dtype=value.dtype, device=place)
