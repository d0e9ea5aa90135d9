"""Networks that survive batching over clients and slicing; they return logits."""

from masquerade.models.binary import (
    BinaryCifarCNN,
    BinaryCNN,
    BinaryDigitsCNN,
    BinaryMLP,
    BinaryMnistCNN,
)
from masquerade.models.cnn import CifarCNN, DigitsCNN, DropoutCNN, LeNet, MnistCNN
from masquerade.models.lstm import LSTM, CharLSTM, RowLSTM
from masquerade.models.mlp import MLP
from masquerade.models.norm import ChannelBatchNorm, ChannelGroupNorm
from masquerade.models.registry import MODELS, build, suitable
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
    "LeNet",
    "MnistCNN",
    "ResNet18",
    "RowLSTM",
    "build",
    "load_weights",
    "slim_vgg",
    "suitable",
]
