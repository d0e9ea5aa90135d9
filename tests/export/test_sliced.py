"""Sliced = masked, for structured masks over every kind of network that slices pass through."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from masquerade.core.random import fold, normal, uniform
from masquerade.export.graph import trace_function
from masquerade.export.sliced import cut
from masquerade.models import MLP, VGG16, DigitsCNN
from masquerade.models.norm import norm_of
from masquerade.models.resnet import Block


class SmallResNet(nn.Module):
    """Two blocks, one of which widens: the sums and the shortcut of ResNet-18 at a small size."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(Block(16, 16, 1, norm), Block(16, 32, 2, norm))
        self.fc = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(self.blocks(self.stem(x).relu()).mean((2, 3)))
        return found


class Pooled(nn.Module):
    """A convolution without padding, whose steady channels the next one's bias takes over."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)
        self.norm, self.last = norm_of("batch", 6), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = avg_pool2d(self.norm(self.one(x)).tanh(), 2)
        logits: Tensor = self.last(self.two(found).sigmoid().mean((2, 3)))
        return logits


NETWORKS = {
    "mlp": (lambda: MLP(6, (12, 8), 3), (6,)),
    "mlp group": (lambda: MLP(6, (12, 8), 3, "group"), (6,)),
    "mlp batch": (lambda: MLP(6, (12, 8), 3, "batch"), (6,)),
    "cnn": (lambda: DigitsCNN(4), (1, 8, 8)),
    "cnn group": (lambda: DigitsCNN(4, "group"), (1, 8, 8)),
    "cnn batch": (lambda: DigitsCNN(4, "batch"), (1, 8, 8)),
    "vgg": (lambda: VGG16(5, (4, 4, 6, 6, 8), 10, 2), (3, 32, 32)),
    "resnet batch": (lambda: SmallResNet("batch"), (3, 8, 8)),
    "resnet group": (lambda: SmallResNet("group"), (3, 8, 8)),
    "pooled": (Pooled, (3, 10, 10)),
}


def network(name: str, seed: int) -> nn.Module:
    """Build a network whose every tensor, statistics too, is drawn from a seed."""
    model = NETWORKS[name][0]().eval()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                drawn = normal(fold(seed, key), tuple(value.shape)).float()
                scale = (2 / value[0].numel()) ** 0.5 if value.ndim > 1 else 0.3
                positive = key.endswith("var") or ("norm" in key and key.endswith("weight"))
                value.copy_(drawn.abs() + 0.5 if positive else drawn * scale)
    return model


def masked(model: nn.Module, seed: int, density: float, whole: bool) -> nn.Module:
    """Set rows and columns of weights to zero; biases with them, or not."""
    with torch.no_grad():
        for key, value in model.named_parameters():
            lines = min(value.ndim, 2) if whole or value.ndim > 1 else 0
            for axis in range(lines):
                kept = uniform(fold(seed, key, axis), (value.shape[axis],)) < density
                shape = [1] * value.ndim
                shape[axis] = -1
                value.mul_(kept.reshape(shape))
    return model


def inputs(name: str, seed: int) -> Tensor:
    return normal(fold(seed, "x"), (3, *NETWORKS[name][1])).float()


def sizes(program) -> int:
    return sum(value.numel() for value in program.module.buffers())


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31), density=st.floats(0.0, 1.0), whole=st.booleans())
def test_sliced_is_masked(name: str, seed: int, density: float, whole: bool) -> None:
    model = masked(network(name, seed), seed, density, whole)
    x = inputs(name, seed)
    program = trace_function(model, x)
    small = cut(program)
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)
    assert sizes(small) <= sizes(program) + sum(len(b) for n, b in small.module.named_buffers())
