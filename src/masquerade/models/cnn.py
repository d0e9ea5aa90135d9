"""Convolutional networks of the papers, and a small one for digits.

They take every size from their tensors, so that narrower tensors make a narrower network, and they
register their layers in the order of use. A ReLU follows its pool: the largest of a window is the
same before and after it, and there is a quarter left to compute.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from masquerade.core.dropout import Dropout
from masquerade.models.norm import norm_of


class CifarCNN(nn.Module):
    """The CIFAR network of DM-PFL (Zhang et al., 2023): 797,962 parameters for 10 classes.

    `norm` is "none", as in the paper, "group" (of four channels) or "batch".
    """

    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)

    def __init__(self, classes: int = 10, norm: str = "none") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 5)
        self.norm1 = norm_of(norm, 64)
        self.conv2 = nn.Conv2d(64, 64, 5)
        self.norm2 = norm_of(norm, 64)
        self.fc1 = nn.Linear(64 * 5 * 5, 384)
        self.fc2 = nn.Linear(384, 192)
        self.fc3 = nn.Linear(192, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, 3, 32, 32]."""
        x = relu(max_pool2d(self.norm1(self.conv1(x)), 2))
        x = relu(max_pool2d(self.norm2(self.conv2(x)), 2))
        x = relu(self.fc1(x.flatten(1)))
        x = relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


class DropoutCNN(nn.Module):
    """The CIFAR network of pfl-research's speed benchmark: 1,626,442 parameters for 10 classes."""

    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.drop1 = Dropout(0.25)
        self.fc1 = nn.Linear(64 * 14 * 14, 128)
        self.drop2 = Dropout(0.5)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, 3, 32, 32]."""
        x = relu(self.conv2(relu(self.conv1(x))))
        x = self.drop1(max_pool2d(x, 2))
        x = self.drop2(relu(self.fc1(x.flatten(1))))
        logits: Tensor = self.fc2(x)
        return logits


class MnistCNN(nn.Module):
    """The MNIST network of FedAvg (McMahan et al., 2017): 1,663,370 parameters for 10 classes."""

    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 7 * 7, 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, 1, 28, 28]."""
        x = relu(max_pool2d(self.conv1(x), 2))
        x = relu(max_pool2d(self.conv2(x), 2))
        x = relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


class LeNet(nn.Module):
    """The networks of pFedGate (Chen et al., 2023): two convolutions, then dense layers.

    For CIFAR-10 the dense layers are 120 and 84 wide: 256,830 parameters. For CIFAR-100 the
    release's commands have 1920 and 504, 4,146,300 parameters, but the paper counts those of one
    layer of 2048, 3,537,444. With such a layer EMNIST's network has 2,278,334 for 62 classes; the
    paper's 2,171,786 are those for 10. With one layer of 512 it is the network of PFLlib.
    """

    side: ClassVar[int] = 16
    """The least height and width of an image."""

    def __init__(
        self,
        shape: tuple[int, ...] = (3, 32, 32),
        classes: int = 10,
        dense: Sequence[int] = (120, 84),
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        # Each convolution takes four off a side, and each pooling halves it.
        left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        ends = [64 * left[0] * left[1], *dense, classes]
        self.dense = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(ends))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, channels, height, width]."""
        x = relu(max_pool2d(self.conv1(x), 2))
        x = relu(max_pool2d(self.conv2(x), 2)).flatten(1)
        *hidden, last = self.dense
        for layer in hidden:
            x = relu(layer(x))
        logits: Tensor = last(x)
        return logits


class DigitsCNN(nn.Module):
    """A small network for digits, which those of MNIST are too: 13,706 parameters for 8 × 8.

    `norm` is "none", "group" (of four channels) or "batch".
    """

    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)
    side: ClassVar[int] = 4
    """The least height and width of an image."""

    def __init__(
        self, classes: int = 10, norm: str = "none", shape: tuple[int, ...] = (1, 8, 8)
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.norm1 = norm_of(norm, 16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = norm_of(norm, 32)
        # Each pooling halves a side.
        self.fc1 = nn.Linear(32 * (height // 4) * (width // 4), 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, channels, height, width]."""
        x = relu(max_pool2d(self.norm1(self.conv1(x)), 2))
        x = relu(max_pool2d(self.norm2(self.conv2(x)), 2))
        x = relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits
