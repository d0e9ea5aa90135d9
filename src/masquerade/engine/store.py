"""Where the states of all clients lie between rounds: on the device, or in host memory."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree


@dataclass
class Store:
    """A state stacked over all clients [clients, …], at `place`; cohorts are taken to `device`."""

    state: Any
    device: torch.device

    @classmethod
    def of(cls, states: list[Any], device: torch.device, place: torch.device) -> "Store":
        """Stack the states of all clients and keep them at a place."""
        return cls(tree.transform(lambda value: value.to(place), tree.stack(states)), device)

    def take(self, ids: Tensor) -> Any:
        """Return the states of some clients, on the device."""
        return tree.transform(lambda value: value[ids.to(value.device)].to(self.device), self.state)

    def put(self, ids: Tensor, states: Any) -> None:
        """Write the states of some clients; all others keep their bits."""

        def write(old: Tensor, new: Tensor) -> Tensor:
            return old.index_copy_(0, ids.to(old.device), new.to(old.device, old.dtype))

        tree.transform(write, self.state, states)
