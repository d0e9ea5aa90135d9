"""DP-SGD (Abadi et al., 2016): gradients of samples, each clipped, summed, and noised.

    g = (Σ_i clip(g_i) + z · C · N(0, 1)) / B      clip(g) = g · min(1, C / ‖g‖)

B is the batch size that is expected, never the one that was drawn. Noise comes from the operating
system, so no seed repeats it.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.random import fold
from masquerade.core.round import Batch
from masquerade.core.sgd import gradient as gradient_of
from masquerade.core.tree import Tree
from masquerade.core.vmap import outside, over

Trees = dict[str, Tree]


@dataclass(frozen=True)
class DPSGD:
    """How the gradients of a training are made private."""

    noise_multiplier: float
    """Standard deviation of the noise as a multiple of the bound (z); 0 clips alone."""
    max_grad_norm: float
    """What the gradient of a sample is clipped to (C)."""
    batch_size: int
    """How many samples a batch is expected to have (B)."""

    def steps(self, samples: Tensor) -> Tensor:
        """Count the batches of a pass over so many samples."""
        return -(-samples // self.batch_size)

    def gradient(
        self,
        function: Callable[[Trees, Batch], tuple[Tensor, Any]],
        trees: Trees,
        batch: Batch,
        keep: Mapping[str, Tensor] | None,
    ) -> Trees:
        """Return the private gradient of `function(trees, one sample)`, a mean over samples.

        Outside of `keep` gradients count as zero, in norms too. That of a sample is clipped as a
        whole, with that of a penalty, which may depend on the sample.
        """
        count = len(batch.y)
        keys = torch.as_tensor(fold(batch.key, torch.arange(count, device=batch.y.device)))
        with over(count) as inside:
            x, y, key = (inside.enter(each) for each in (batch.x, batch.y, keys))
            one = Batch(x[None], y[None], None, key)
            grads, _, _ = gradient_of(lambda moved: function(moved, one), trees)
            found: Trees = tree.transform(inside.leave, grads)
        if keep is not None:
            found = {entry: _only(keep, grads) for entry, grads in found.items()}
        total = _clipped_sum(found, batch.valid, self.max_grad_norm)
        size = self.noise_multiplier * self.max_grad_norm
        noisy: Trees = tree.transform(
            lambda value: (value + size * noise(value) if size else value) / self.batch_size, total
        )
        return noisy


def _only(keep: Mapping[str, Tensor], grads: Tree) -> Tree:
    return {
        name: torch.where(keep[name], value, 0) if name in keep else value
        for name, value in grads.items()
    }


def _clipped_sum(grads: Trees, valid: Tensor | None, bound: float) -> Trees:
    """Sum gradients [samples, …], each clipped to a norm over all trees; padding counts as none."""
    flat = [value.flatten(1) for value in tree.leaves(grads)]
    if not flat:
        return grads
    norms = torch.stack([value.square().sum(1) for value in flat]).sum(0).sqrt()
    # A gradient that is not finite adds nothing: else one sample would decide everything.
    real = norms.isfinite() if valid is None else valid & norms.isfinite()
    scale = (bound / norms.clamp(min=1e-12)).clamp(max=1)

    def summed(value: Tensor) -> Tensor:
        lead = (-1, *[1] * (value.ndim - 1))
        return torch.where(real.reshape(lead), value * scale.reshape(lead), 0).sum(0)

    found: Trees = tree.transform(summed, grads)
    return found


def secret(shape: tuple[int, ...]) -> Tensor:
    """Draw uniform numbers in (0, 1) from the operating system: 53 bits each, float64."""
    count = math.prod(shape)
    if not count:
        return torch.zeros(shape, dtype=torch.float64)
    words = torch.frombuffer(bytearray(secrets.token_bytes(8 * count)), dtype=torch.int64)
    return (((words >> 11) & ((1 << 53) - 1)).double() + 0.5).mul(2.0**-53).reshape(shape)


def noise(like: Tensor) -> Tensor:
    """Draw standard normal numbers of a shape from the operating system (Box and Muller).

    Inside a map every client gets its own.
    """

    def drawn(lead: tuple[int, ...]) -> Tensor:
        shape = (*lead, *like.shape)
        count = math.prod(shape)
        radius, angle = secret((2, -(-count // 2))).to(like.device)
        radius, angle = (-2 * radius.log()).sqrt(), 2 * math.pi * angle
        both = torch.cat([radius * angle.cos(), radius * angle.sin()])
        return both[:count].reshape(shape).to(like.dtype)

    return outside(drawn)
