"""Networks of sign activations, for methods that binarize weights.

Every hidden layer is followed by a norm and then by the sign; the input of the first layer stays
real. Norms are over channels of one sample, not over a batch: they have no statistics to share, and
clients with ragged batches can be batched. Hidden layers have no bias; their norms have one.
"""

import math
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import hardtanh, max_pool2d

from masquerade.models.norm import ChannelGroupNorm

NEAR = 1e-5
"""What counts as zero, and so as positive, or as one: sums of signs are often equal, and what a
norm makes of them is 0 or ±1 up to a rounding that differs from engine to engine."""


def sign(x: Tensor) -> Tensor:
    """Return −1 or +1, with the slope of x where |x| ≤ 1 and none elsewhere (straight through)."""
    passed = hardtanh(x, -1 - NEAR, 1 + NEAR)
    return torch.where(x >= -NEAR, 1.0, -1.0).to(x.dtype) + (passed - passed.detach())


class _Full(nn.Module):
    """A linear layer and a norm over all of its outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs, bias=False)
        self.norm = ChannelGroupNorm(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.layer(x.flatten(1)))
        return normed


class _Last(nn.Module):
    """A linear layer whose logits are of size one when its weights are −1 and +1."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        # Differs: the paper has a norm here. One over the few classes of one sample would divide
        # by nothing where logits are equal, which sums of signs often are.
        logits: Tensor = self.layer(x.flatten(1) / math.sqrt(self.layer.in_features))
        return logits


class _Conv(nn.Module):
    """A convolution that halves the image, and a norm over four channels at a time."""

    def __init__(self, inputs: int, outputs: int, kernel: int, padding: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False)
        self.norm = ChannelGroupNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(max_pool2d(self.layer(x), 2))
        return normed


class _Binary(nn.Module):
    """Layers with signs between them."""

    binary: ClassVar[bool] = True

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes]."""
        first, *others = self.layers
        x = first(x)
        for layer in others:
            x = layer(sign(x))
        return x


class BinaryMLP(_Binary):
    """Linear layers, for inputs of any shape."""

    def __init__(self, inputs: int, hidden: tuple[int, ...] = (64,), classes: int = 10) -> None:
        *sizes, last = pairwise((inputs, *hidden, classes))
        super().__init__(*(_Full(*pair) for pair in sizes), _Last(*last))


class BinaryCNN(_Binary):
    """Convolutions, then linear layers, for images of one shape."""

    shape: ClassVar[tuple[int, ...]]
    """What it takes where no shape is given."""
    channels: ClassVar[tuple[int, ...]]
    hidden: ClassVar[tuple[int, ...]]
    kernel: ClassVar[int]
    padding: ClassVar[int]

    def __init__(self, classes: int = 10, shape: tuple[int, ...] | None = None) -> None:
        first, *sides = shape or self.shape
        for _ in self.channels:
            sides = [(side + 2 * self.padding - self.kernel + 1) // 2 for side in sides]
        *sizes, last = pairwise((self.channels[-1] * math.prod(sides), *self.hidden, classes))
        super().__init__(
            *(
                _Conv(*pair, self.kernel, self.padding)
                for pair in pairwise((first, *self.channels))
            ),
            *(_Full(*pair) for pair in sizes),
            _Last(*last),
        )


class BinaryCifarCNN(BinaryCNN):
    """The layers of `CifarCNN`, binarized."""

    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)
    channels: ClassVar[tuple[int, ...]] = (64, 64)
    hidden: ClassVar[tuple[int, ...]] = (384, 192)
    kernel: ClassVar[int] = 5
    padding: ClassVar[int] = 0


class BinaryMnistCNN(BinaryCNN):
    """The layers of `MnistCNN`, binarized."""

    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    channels: ClassVar[tuple[int, ...]] = (32, 64)
    hidden: ClassVar[tuple[int, ...]] = (512,)
    kernel: ClassVar[int] = 5
    padding: ClassVar[int] = 2


class BinaryDigitsCNN(BinaryCNN):
    """The layers of `DigitsCNN`, binarized."""

    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)
    channels: ClassVar[tuple[int, ...]] = (16, 32)
    hidden: ClassVar[tuple[int, ...]] = (64,)
    kernel: ClassVar[int] = 3
    padding: ClassVar[int] = 1
