"""Networks by name: what each is made of, what it takes, and whose it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from masquerade.errors import MasqueradeError, nearest
from masquerade.models.binary import BinaryCifarCNN, BinaryDigitsCNN, BinaryMLP, BinaryMnistCNN
from masquerade.models.cnn import CifarCNN, DigitsCNN, DropoutCNN, LeNet, MnistCNN
from masquerade.models.lstm import CharLSTM, RowLSTM
from masquerade.models.mlp import MLP
from masquerade.models.resnet import ResNet18
from masquerade.models.vgg import SIDE, VGG16, slim_vgg

Shape = tuple[int, ...]
Maker = Callable[[Shape, int], nn.Module]
"""From the shape of one input and the number of classes to a network."""

DIGITS, MNIST, CIFAR = DigitsCNN.shape, MnistCNN.shape, CifarCNN.shape
HAR, TEXT = (561,), (80,)


@dataclass(frozen=True)
class Network:
    """A network that has a name."""

    about: str
    make: Maker
    shape: Shape
    """Shape of one input in the setting that the network was made for."""
    classes: int = 10
    needs: str = "this shape"
    """What it takes: "this shape" alone, inputs of "any shape", "images" or "texts"."""
    side: int = 1
    """The least height and width of images."""
    most: int | None = None
    """The largest height and width of images, where there is one."""

    def takes(self, shape: Shape) -> bool:
        """Return whether it fits inputs of a shape."""
        match self.needs:
            case "any shape":
                return True
            case "images":
                fits = len(shape) == 3 and min(shape[1:]) >= self.side
                return fits and (self.most is None or max(shape[1:]) <= self.most)
            case "texts":
                return len(shape) == 1
        return tuple(shape) == self.shape

    def parameters(self) -> int:
        """Count the parameters in that setting; no memory is taken."""
        with torch.device("meta"):
            return sum(value.numel() for value in self.make(self.shape, self.classes).parameters())


def _mlp(
    about: str,
    hidden: tuple[int, ...],
    shape: Shape = DIGITS,
    classes: int = 10,
    norm: str = "none",
) -> Network:
    def make(shape: Shape, classes: int) -> nn.Module:
        return MLP(math.prod(shape), hidden, classes, norm)

    return Network(about, make, shape, classes, "any shape")


def _binary_mlp(
    about: str, hidden: tuple[int, ...], shape: Shape = DIGITS, classes: int = 10
) -> Network:
    def make(shape: Shape, classes: int) -> nn.Module:
        return BinaryMLP(math.prod(shape), hidden, classes)

    return Network(about, make, shape, classes, "any shape")


def _images(
    about: str, make: Callable[[int], nn.Module], shape: Shape, classes: int = 10
) -> Network:
    """Name a network that takes images of one shape."""
    return Network(about, lambda _, classes: make(classes), shape, classes)


def _digits(about: str, network: Callable[..., nn.Module]) -> Network:
    """Name a network of digits, which takes images of any size."""

    def make(shape: Shape, classes: int) -> nn.Module:
        return network(classes, shape=shape)

    return Network(about, make, DIGITS, needs="images", side=DigitsCNN.side)


def _lenet(about: str, dense: tuple[int, ...], shape: Shape = CIFAR, classes: int = 10) -> Network:
    return Network(about, partial(LeNet, dense=dense), shape, classes, "images", LeNet.side)


def _resnet(about: str, stem: str, norm: str) -> Network:
    def make(shape: Shape, classes: int) -> nn.Module:
        return ResNet18(classes, shape[0], stem, norm)

    return Network(f"ResNet-18, {about}", make, CIFAR, needs="images")


def _vgg(about: str, build: Callable[..., nn.Module]) -> Network:
    def make(shape: Shape, classes: int) -> nn.Module:
        return build(classes, channels=shape[0])

    return Network(about, make, CIFAR, needs="images", side=MNIST[1], most=SIDE)


def _row_lstm(hidden: int) -> Network:
    def make(shape: Shape, classes: int) -> nn.Module:
        return RowLSTM(shape[0] * shape[2], hidden, classes)

    return Network(f"an LSTM of {hidden} on the rows of images", make, MNIST, needs="images")


MODELS: dict[str, Network] = {
    "mlp": _mlp("one hidden layer of 64", (64,)),
    "logistic": _mlp("logistic regression", ()),
    "mlp_1024_512": _mlp("FedMask's, for UCI HAR", (1024, 512), HAR, 6),
    "mlp_300_100": _mlp("for UCI HAR; inferred for DM-PFL", (300, 100), HAR, 6),
    "mlp_256_128": _mlp("two hidden layers, for MNIST", (256, 128), MNIST),
    "cifar_cnn": _images("DM-PFL's, for CIFAR-10", CifarCNN, CIFAR),
    "mnist_cnn": _images("FedAvg's, for MNIST", MnistCNN, MNIST),
    "digits_cnn": _digits("two convolutions, for digits", DigitsCNN),
    "dropout_cnn": _images("that of pfl-research's CIFAR-10 benchmark", DropoutCNN, CIFAR),
    "lenet": _lenet("pFedGate's, for CIFAR-10", (120, 84)),
    "lenet_wide": _lenet("pFedGate's, for CIFAR-100, by its commands", (1920, 504), classes=100),
    "leaf_cnn": _lenet(
        "pFedGate's, for EMNIST and FEMNIST; by its text also for CIFAR-100", (2048,), MNIST, 62
    ),
    "pfllib_cnn": _lenet("PFLlib's, for CIFAR-100", (512,), classes=100),
    "mnist_conv": _lenet("two convolutions and one linear layer, for MNIST", (), MNIST),
    "mlp_bn": _mlp("mlp with batch norms", (64,), norm="batch"),
    "digits_cnn_bn": _digits("digits_cnn with batch norms", partial(DigitsCNN, norm="batch")),
    "cifar_cnn_bn": _images("cifar_cnn with batch norms", partial(CifarCNN, norm="batch"), CIFAR),
    "mlp_binary": _binary_mlp("mlp of signs", (64,)),
    "logistic_binary": _binary_mlp("logistic regression on signs", ()),
    "mlp_1024_512_binary": _binary_mlp("mlp_1024_512 of signs", (1024, 512), HAR, 6),
    "cifar_cnn_binary": _images("cifar_cnn of signs", BinaryCifarCNN, CIFAR),
    "mnist_cnn_binary": _images("mnist_cnn of signs", BinaryMnistCNN, MNIST),
    "digits_cnn_binary": _digits("digits_cnn of signs", BinaryDigitsCNN),
    "resnet18": _resnet("FedSelect's, as for ImageNet", "imagenet", "batch"),
    "resnet18_group": _resnet("as for ImageNet, group norms", "imagenet", "group"),
    "resnet18_cifar": _resnet("stem for small images", "cifar", "batch"),
    "resnet18_cifar_group": _resnet("stem for small images, group norms", "cifar", "group"),
    "vgg16": _vgg("FedMask's, for CIFAR-10 and EMNIST", VGG16),
    "vgg_slim": _vgg("VGG16 with an eighth of the channels", slim_vgg),
    "row_lstm": _row_lstm(128),
    "row_lstm_64": _row_lstm(64),
    "char_lstm": Network(
        "FedMask's, for the next character", lambda _, classes: CharLSTM(classes), TEXT, 80, "texts"
    ),
}
"""The networks that `build` knows by name."""


def suitable(shape: Shape) -> str:
    """Name the network that fits inputs of one shape."""
    fitting = {DIGITS: "digits_cnn", MNIST: "mnist_cnn", CIFAR: "cifar_cnn"}
    return fitting.get(tuple(shape), "mlp")


def build(name: str, shape: Shape, classes: int, seed: int) -> nn.Module:
    """Build a network by name for inputs of one shape, with initial weights drawn from a seed."""
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise MasqueradeError(
            "E201", f"unknown model `{name}`{nearest(name, MODELS)}; known are {known}"
        )
    network = MODELS[name]
    if not network.takes(shape):
        kind = "inputs" if network.needs == "this shape" else network.needs
        least = f" of {network.side} x {network.side} or more" if network.side > 1 else ""
        least += f" and up to {network.most} x {network.most}" if network.most else ""
        raise MasqueradeError(
            "E202",
            f"`{name}` needs {kind}{least} like {network.shape}, but the data have {tuple(shape)}; "
            "take `mlp`, which fits any shape, or reshape the data; see `masquerade models`",
        )
    # The CPU's generator alone is seeded, and put back: no other random numbers change.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return network.make(shape, classes)
