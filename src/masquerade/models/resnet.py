"""ResNet-18 (He et al., 2016), its tensors named as torchvision names them.

It registers its layers in the order of use and writes nothing in place, so that it survives
batching over clients.
"""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from masquerade.models.norm import ChannelBatchNorm, ChannelGroupNorm

WIDTHS = (64, 64, 128, 256, 512)
"""Channels of the stem and of the four stages."""


def _norm(channels: int, kind: str) -> nn.Module:
    return ChannelBatchNorm(channels) if kind == "batch" else ChannelGroupNorm(channels, 16)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = _norm(after, norm)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = _norm(after, norm)
        # Where sizes change the shortcut is a convolution; elsewhere it has no tensors.
        self.downsample = nn.Sequential()
        if stride > 1 or before != after:
            self.downsample.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.downsample.append(_norm(after, norm))

    def forward(self, x: Tensor) -> Tensor:
        """Return features [samples, after, ...]."""
        found = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(found)) + self.downsample(x))


class ResNet18(nn.Module):
    """ResNet-18 for images of any size: 11,181,642 parameters for 3 channels and 10 classes.

    `stem="imagenet"` begins with a 7 × 7 convolution and pooling, which quarter the sides of an
    image, `stem="cifar"` with a 3 × 3 convolution that keeps them. `norm="group"` normalizes groups
    of 16 channels instead of batches.
    """

    def __init__(
        self, classes: int = 10, channels: int = 3, stem: str = "imagenet", norm: str = "batch"
    ) -> None:
        super().__init__()
        self.pools = stem == "imagenet"
        size, stride, margin = (7, 2, 3) if self.pools else (3, 1, 1)
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], size, stride, margin, bias=False)
        self.bn1 = _norm(WIDTHS[0], norm)
        for number, (before, after) in enumerate(pairwise(WIDTHS), start=1):
            first = Block(before, after, 1 if number == 1 else 2, norm)
            self.add_module(f"layer{number}", nn.Sequential(first, Block(after, after, 1, norm)))
        self.fc = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, channels, height, width]."""
        x = relu(self.bn1(self.conv1(x)))
        x = max_pool2d(x, 3, 2, 1) if self.pools else x
        for number in range(1, len(WIDTHS)):
            x = self.get_submodule(f"layer{number}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits
