"""The mean of clients' updates with user-level differential privacy (McMahan et al., 2018).

    w ← w + (Σ_c clip(u_c) + z · C · N(0, 1)) / M      u_c = w_c − w inside the mask of c, else 0

M is how many clients are expected, never who holds a coordinate: that is data of theirs. So an
update counts as zero where a client does not hold a coordinate. All clients count equally.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from masquerade.core.aggregation import Aggregation
from masquerade.core.dp import noise
from masquerade.core.part import Part
from masquerade.core.tree import Tree, select


@dataclass(frozen=True)
class DPMean(Aggregation):
    """The noised mean of clipped updates."""

    noise_multiplier: float = 0.0
    """Standard deviation of the noise as a multiple of the bound (z)."""
    max_grad_norm: float = 1.0
    """What the update of a client is clipped to, over all tensors (C)."""
    expected: int = 1
    """How many clients a round has (M)."""
    least: int = 0
    """Answers without which a round changes nothing; 0 is as many as are expected."""

    @property
    def plain(self) -> bool:
        """Say that it is not the mean alone."""
        return False

    @property
    def quorum(self) -> int:
        """Return how many answers a round needs."""
        return self.least or self.expected

    def reduce(
        self,
        part: Part,
        weights: Tensor,
        otherwise: Mapping[str, Tensor],
        absent: Literal["skip", "zero"] = "skip",
        least: int = 1,
    ) -> Tree:
        """Reduce a stacked part [clients, …] to one tree; weights do not count."""
        updates = {name: self._update(part, name, otherwise[name]) for name in part.values}
        norms = torch.stack([each.flatten(1).square().sum(1) for each in updates.values()])
        length = norms.sum(0).sqrt()
        scale = (self.max_grad_norm / length.clamp(min=1e-12)).clamp(max=1)
        size = self.noise_multiplier * self.max_grad_norm
        found: Tree = {}
        for name, update in updates.items():
            lead = (-1, *[1] * (update.ndim - 1))
            total = (update * scale.reshape(lead)).sum(0)
            if size:
                total = total + size * noise(total)
            old = otherwise[name]
            found[name] = (old.double() + total / self.expected).to(old.dtype)
        return found

    @staticmethod
    def _update(part: Part, name: str, old: Tensor) -> Tensor:
        """Return what clients change of a tensor [clients, …]; nothing where they hold nothing."""
        update = part.values[name].double() - old.double()
        held = part.held(name)
        return update if held is None else select(held, update)
