"""VGG16 (Simonyan and Zisserman, 2015) for small images, and a slim one for ordinary machines."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad, relu

STAGES = (2, 2, 3, 3, 3)
"""Convolutions before each of the five poolings."""
SIDE = 32
"""Height and width that five poolings turn into one pixel."""


def _draw(layer: nn.Conv2d | nn.Linear) -> None:
    """Draw weights that keep the scale of what passes a ReLU; biases begin at zero.

    Sixteen layers without norms need it: torch's default lets the signal die out on its way.
    """
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class _Conv(nn.Conv2d):
    def reset_parameters(self) -> None:
        _draw(self)


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        _draw(self)


def _framed(x: Tensor) -> Tensor:
    """Put images in the middle of 32 × 32."""
    down, right = (SIDE - side for side in x.shape[2:])
    if not (down or right):
        return x
    return pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))


class VGG16(nn.Module):
    """Thirteen convolutions and three dense layers: 134,301,514 parameters for 10 classes.

    Layers are those of torchvision's `vgg16`, without its dropout. Images that are smaller than
    32 × 32, such as EMNIST's, get a margin of zeros.
    """

    def __init__(
        self,
        classes: int = 10,
        widths: Sequence[int] = (64, 128, 256, 512, 512),
        dense: int = 4096,
        field: int = 7,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.field = field
        sizes = [width for width, count in zip(widths, STAGES, strict=True) for _ in range(count)]
        self.features = nn.ModuleList(
            _Conv(before, after, 3, padding=1) for before, after in pairwise([channels, *sizes])
        )
        inputs = widths[-1] * field * field
        ends = [inputs, dense, dense, classes]
        self.classifier = nn.ModuleList(_Linear(*pair) for pair in pairwise(ends))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, channels, 28..32, 28..32]."""
        x = _framed(x)
        convolutions = iter(self.features)
        for count in STAGES:
            for _ in range(count):
                x = relu(next(convolutions)(x))
            x = max_pool2d(x, 2)
        # Five poolings leave one pixel of 32 × 32; torchvision's average pooling repeats it.
        x = x.expand(-1, -1, self.field, self.field).flatten(1)
        *hidden, last = self.classifier
        for layer in hidden:
            x = relu(layer(x))
        logits: Tensor = last(x)
        return logits


def slim_vgg(classes: int = 10, channels: int = 3) -> VGG16:
    """Make VGG16 with an eighth of the channels: as deep, 256,690 parameters for 10 classes."""
    return VGG16(classes, widths=(8, 16, 32, 64, 64), dense=128, field=1, channels=channels)
