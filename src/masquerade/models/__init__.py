"""Networks that survive batching over clients and slicing; they return logits."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from masquerade.errors import MasqueradeError, nearest
from masquerade.models.binary import (
    BinaryCifarCNN,
    BinaryCNN,
    BinaryDigitsCNN,
    BinaryMLP,
    BinaryMnistCNN,
)
from masquerade.models.cnn import CifarCNN, DigitsCNN, DropoutCNN, MnistCNN
from masquerade.models.lstm import LSTM, CharLSTM, RowLSTM
from masquerade.models.mlp import MLP
from masquerade.models.norm import ChannelBatchNorm, ChannelGroupNorm
from masquerade.models.resnet import ResNet18
from masquerade.models.vgg import VGG16, slim_vgg
from masquerade.models.weights import load_weights

__all__ = [
    "LSTM",
    "MLP",
    "MODELS",
    "VGG16",
    "BinaryCNN",
    "BinaryCifarCNN",
    "BinaryDigitsCNN",
    "BinaryMLP",
    "BinaryMnistCNN",
    "ChannelBatchNorm",
    "ChannelGroupNorm",
    "CharLSTM",
    "CifarCNN",
    "DigitsCNN",
    "DropoutCNN",
    "MnistCNN",
    "ResNet18",
    "RowLSTM",
    "build",
    "load_weights",
    "slim_vgg",
    "suitable",
]

Maker = Callable[[tuple[int, ...], int], nn.Module]
"""From the shape of one input and the number of classes to a network."""


Images = (
    type[CifarCNN]
    | type[MnistCNN]
    | type[DigitsCNN]
    | type[DropoutCNN]
    | type[BinaryCNN]
    | type[VGG16]
)
"""Networks that take images of one shape."""


def _images(network: Images, make: Callable[[int], nn.Module] | None = None) -> Maker:
    """Make a network, or the one that `make` makes, for images of the one shape it takes."""

    def made(shape: tuple[int, ...], classes: int) -> nn.Module:
        if tuple(shape) != network.shape:
            raise MasqueradeError(
                "E202",
                f"{network.__name__} needs inputs of shape {network.shape}, but the data have "
                f"{tuple(shape)}; take `mlp`, which fits any shape, or reshape the data",
            )
        return (make or network)(classes)

    return made


def _resnet(stem: str, norm: str) -> Maker:
    def made(shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3:
            raise MasqueradeError(
                "E202",
                "ResNet18 needs images (channels, height, width), but the data have "
                f"{tuple(shape)}; take `mlp`, which fits any shape, or reshape the data",
            )
        return ResNet18(classes, shape[0], stem, norm)

    return made


def _rows(shape: tuple[int, ...], classes: int) -> nn.Module:
    if len(shape) != 3:
        raise MasqueradeError(
            "E202",
            f"RowLSTM needs images of shape (channels, rows, columns), but the data have "
            f"{tuple(shape)}; take `mlp`, which fits any shape, or reshape the data",
        )
    return RowLSTM(shape[0] * shape[2], classes=classes)


def _characters(shape: tuple[int, ...], classes: int) -> nn.Module:
    if len(shape) != 1:
        raise MasqueradeError(
            "E202",
            f"CharLSTM needs texts of shape (characters,), but the data have {tuple(shape)}; "
            "give one number per character",
        )
    return CharLSTM(classes)


MODELS: dict[str, Maker] = {
    "mlp": lambda shape, classes: MLP(math.prod(shape), classes=classes),
    "logistic": lambda shape, classes: MLP(math.prod(shape), hidden=(), classes=classes),
    "cifar_cnn": _images(CifarCNN),
    "mnist_cnn": _images(MnistCNN),
    "dropout_cnn": _images(DropoutCNN),
    "digits_cnn": _images(DigitsCNN),
    "mlp_bn": lambda shape, classes: MLP(math.prod(shape), classes=classes, norm="batch"),
    "digits_cnn_bn": _images(DigitsCNN, partial(DigitsCNN, norm="batch")),
    "mlp_binary": lambda shape, classes: BinaryMLP(math.prod(shape), classes=classes),
    "logistic_binary": lambda shape, classes: BinaryMLP(math.prod(shape), (), classes),
    "cifar_cnn_binary": _images(BinaryCifarCNN),
    "mnist_cnn_binary": _images(BinaryMnistCNN),
    "digits_cnn_binary": _images(BinaryDigitsCNN),
    "resnet18": _resnet("imagenet", "batch"),
    "resnet18_group": _resnet("imagenet", "group"),
    "resnet18_cifar": _resnet("cifar", "batch"),
    "resnet18_cifar_group": _resnet("cifar", "group"),
    "vgg16": _images(VGG16),
    "vgg_slim": _images(VGG16, slim_vgg),
    "row_lstm": _rows,
    "char_lstm": _characters,
}
"""The networks that `build` knows by name."""


def suitable(shape: tuple[int, ...]) -> str:
    """Name the network that fits inputs of one shape."""
    fitting = {
        DigitsCNN.shape: "digits_cnn",
        MnistCNN.shape: "mnist_cnn",
        CifarCNN.shape: "cifar_cnn",
    }
    return fitting.get(tuple(shape), "mlp")


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build a network by name for inputs of one shape, with initial weights drawn from a seed."""
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise MasqueradeError(
            "E201", f"unknown model `{name}`{nearest(name, MODELS)}; known are {known}"
        )
    # The CPU's generator alone is seeded, and put back: no other random numbers change.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return MODELS[name](shape, classes)
