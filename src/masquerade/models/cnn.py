"""Convolutional networks of the papers, and a small one for digits.

They take every size from their tensors, so that narrower tensors make a narrower network, and they
register their layers in the order of use.
"""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from masquerade.core.dropout import Dropout
from masquerade.models.norm import norm_of


class CifarCNN(nn.Module):
    """The CIFAR network of DM-PFL (Zhang et al., 2023): 797,962 parameters for 10 classes."""

    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 5)
        self.conv2 = nn.Conv2d(64, 64, 5)
        self.fc1 = nn.Linear(64 * 5 * 5, 384)
        self.fc2 = nn.Linear(384, 192)
        self.fc3 = nn.Linear(192, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, 3, 32, 32]."""
        x = max_pool2d(relu(self.conv1(x)), 2)
        x = max_pool2d(relu(self.conv2(x)), 2)
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
        x = max_pool2d(relu(self.conv1(x)), 2)
        x = max_pool2d(relu(self.conv2(x)), 2)
        x = relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


class DigitsCNN(nn.Module):
    """A small network for 8 × 8 digits; `norm` is "none", "group" (of four channels) or "batch"."""

    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)

    def __init__(self, classes: int = 10, norm: str = "none") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = norm_of(norm, 16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = norm_of(norm, 32)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, 1, 8, 8]."""
        x = max_pool2d(relu(self.norm1(self.conv1(x))), 2)
        x = max_pool2d(relu(self.norm2(self.conv2(x))), 2)
        x = relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits
