"""Dropout that draws its noise from the key of a batch, so that every engine drops the same."""

import sys

import torch
from torch import Tensor, nn

from masquerade.core.random import draw
from masquerade.core.vmap import mapped

_LANES = 4
_RANGE = 1 << 16


class Dropout(nn.Module):
    """Set a share (below 1) of the entries to zero in training, and scale up the others.

    A task gives it a key with every training batch. What is dropped of a sample depends on the key
    and on the sample's place in the batch, never on how many samples follow: a padded batch loses
    the same entries as one that is not. The share is rounded to a multiple of 1 / 65,536.
    """

    key: Tensor | None = None

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """Drop some of x [samples, …]; in use nothing is dropped."""
        if not self.training:
            return x
        assert self.key is not None, "a task gives the key: call `Task`, not its module"
        keep = noise(self.key, x.shape) >= round(self.share * _RANGE) - _RANGE // 2
        # Multiplied: on a CPU, selecting by a mask without a pattern costs ten times as much.
        return x * (keep.to(x.dtype) * (1 / (1 - self.share)))

    def extra_repr(self) -> str:
        """Say the share in a network's description."""
        return f"share={self.share}"


def noise(key: Tensor, shape: torch.Size) -> Tensor:
    """Return random integers of a shape, from −32,768 to 32,767."""
    count = shape.numel()
    # One hash serves four entries: the noise of a convolution's output costs as much as a layer.
    words = draw(key, -(-count // _LANES))
    if not mapped() and sys.byteorder == "little":
        return words.view(torch.int16)[:count].reshape(shape)
    # Shifted and cut off, because another view of the same memory cannot be mapped.
    lanes = torch.arange(0, 64, 64 // _LANES, device=words.device)
    return (words[:, None] >> lanes).to(torch.int16).flatten()[:count].reshape(shape)
