"""Sliced = masked, for structured masks over every kind of network that slices pass through."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import avg_pool2d

from masquerade.core.random import fold, normal, uniform
from masquerade.export.graph import Program, trace_function
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
    """Set rows and columns of weights to zero, in whole groups of four; biases too, or not."""
    with torch.no_grad():
        for key, value in model.named_parameters():
            lines = min(value.ndim, 2) if whole or value.ndim > 1 else 0
            for axis in range(lines):
                size, step = value.shape[axis], 1 if value.shape[axis] % 4 else 4
                kept = uniform(fold(seed, key, axis), (size // step,)) < density
                shape = [1] * value.ndim
                shape[axis] = size
                value.mul_(kept.repeat_interleave(step).reshape(shape))
    return model


def inputs(name: str, seed: int) -> Tensor:
    return normal(fold(seed, "x"), (3, *NETWORKS[name][1])).float()


def weights(program: Program) -> int:
    """Count the numbers of weights; biases may come instead of columns."""
    return sum(value.numel() for value in program.module.buffers() if value.ndim > 1)


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
@given(seed=st.integers(0, 2**31), density=st.floats(0.2, 1.0), whole=st.booleans())
def test_sliced_is_masked(name: str, seed: int, density: float, whole: bool) -> None:
    model = masked(network(name, seed), seed, density, whole)
    x = inputs(name, seed)
    program = trace_function(model, x)
    small, blocks = cut(program, block=1), cut(program, block=8)
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(blocks(x), model(x), rtol=1e-5, atol=1e-5)
    assert weights(small) <= weights(blocks) <= weights(program)


@pytest.mark.drill
@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), density=st.floats(0.0, 1.0), whole=st.booleans())
def test_sliced_is_masked_a_hundred_times(
    name: str, seed: int, density: float, whole: bool
) -> None:
    test_sliced_is_masked.hypothesis.inner_test(name, seed, density, whole)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_masks_remove_is_gone(name: str) -> None:
    """Of every hidden layer the last half is masked: half of its rows is left, or whole groups."""
    model, x = network(name, 1), inputs(name, 1)
    *hidden, last = (key for key, value in model.named_parameters() if value.ndim > 1)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.rpartition(".")[0] != last.rpartition(".")[0]:
                value[len(value) // 2 :] = 0
    step = {"resnet group": 16, "mlp group": 4, "cnn group": 4}.get(name, 1)
    tensors = dict(model.named_parameters())
    wanted = [math.ceil(len(tensors[key]) // 2 / step) * step for key in hidden]
    small = cut(trace_function(model, x), block=1)
    left = [len(value) for value in small.module.buffers() if value.ndim > 1]
    # Of rows that are kept some are steady, and go as well; a layer without rows is gone whole.
    assert left
    assert all(found <= most for found, most in zip(left, wanted, strict=False))


def test_a_steady_unit_moves_into_the_next_bias() -> None:
    """By hand: the second unit is ReLU(3) = 3 for every input, and is read with weight 5."""
    first, last = nn.Linear(2, 2), nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
        first.bias.copy_(torch.tensor([0.5, 3.0]))
        last.weight.copy_(torch.tensor([[2.0, 5.0]]))
        last.bias.copy_(torch.tensor([1.0]))
    model = nn.Sequential(first, nn.ReLU(), last)
    small = cut(trace_function(model, torch.ones(1, 2)))
    found = [value.tolist() for value in small.module.buffers()]
    # 1 + 5 · 3 = 16 is the new bias; of the first layer one row is left.
    assert sorted(found, key=str) == sorted([[[1.0, 2.0]], [0.5], [[2.0]], [16.0]], key=str)
    # x = (1, 1): ReLU(3.5) · 2 + 16 = 23.
    assert small(torch.ones(1, 2)).item() == 23.0


def test_zero_padding_keeps_a_steady_channel_that_is_not_zero() -> None:
    """At an edge a padded convolution sees less of the constant, so no bias can replace it."""
    first, last = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1)
    with torch.no_grad():
        first.weight[1] = 0
        first.bias.copy_(torch.tensor([0.1, 3.0]))
    x = normal(1, (2, 1, 5, 5)).float()
    model = nn.Sequential(first, nn.ReLU(), last)
    assert weights(cut(trace_function(model, x), block=1)) == 36
    with torch.no_grad():
        first.bias[1] = -3.0
    small = cut(trace_function(model, x), block=1)
    assert weights(small) == 18
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x))


def test_channels_of_convolutions_stay_in_blocks() -> None:
    """Of 40 channels 17 are read: with blocks of 16 that makes 32, and linear units stay 17."""
    first, last = nn.Conv2d(1, 40, 3), nn.Conv2d(40, 40, 3)
    model = nn.Sequential(first, nn.ReLU(), last, nn.Flatten(), nn.Linear(40, 40), nn.Linear(40, 2))
    with torch.no_grad():
        last.weight[:, 17:] = 0
        model[4].weight[:, 20:] = 0
        model[5].weight[:, 17:] = 0
    x = normal(1, (2, 1, 5, 5)).float()
    small = cut(trace_function(model, x))
    assert [len(value) for value in small.module.buffers() if value.ndim > 1] == [32, 32, 17, 2]
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)


class Gated(nn.Module):
    """What is multiplied by something else of the network is not understood."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.one(x)
        logits: Tensor = self.two(found * found.softmax(1))
        return logits


def test_what_is_not_understood_stays_whole_and_right() -> None:
    model, x = Gated(), normal(1, (3, 4)).float()
    with torch.no_grad():
        model.two.weight[:, :3] = 0
        program = trace_function(model, x)
        small = cut(program)
        assert weights(small) == weights(program)
        torch.testing.assert_close(small(x), model(x))


class Spelled(nn.Module):
    """Two convolutions, one added to the other or not, and something between them and the last."""

    def __init__(self, middle: Callable[[Tensor, Tensor], Tensor], places: int = 1) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 6, 3), nn.Conv2d(1, 6, 3)
        self.last, self.middle = nn.Linear(6 * places, 3), middle

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.middle(self.one(x), self.two(x)))
        return logits


def mean(x: Tensor) -> Tensor:
    return x.mean((2, 3))


SPELLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu_": lambda one, _: mean(functional.relu_(one)),
    "hardtanh_": lambda one, _: mean(functional.hardtanh_(one)),
    "relu6": lambda one, _: mean(functional.relu6(one)),
    "relu6_": lambda one, _: mean(functional.relu6(one, inplace=True)),
    "elu": lambda one, _: mean(functional.elu(one, 0.7)),
    "elu_": lambda one, _: mean(functional.elu_(one)),
    "add_": lambda one, two: mean(one.relu_().add_(two).relu_()),
    "dropout": lambda one, _: mean(functional.dropout(one, training=False)),
    "dropout2d": lambda one, _: mean(functional.dropout2d(one, training=False)),
    "adaptive_max": lambda one, _: functional.adaptive_max_pool2d(one, 1).flatten(1),
    "adaptive_avg": lambda one, _: functional.adaptive_avg_pool2d(one, 1).flatten(1),
    "view": lambda one, _: one.view(one.shape[0], -1),
    "view of a size": lambda one, _: one.relu().view(-1, 6 * 16),
    "reshape": lambda one, _: one.tanh().reshape(one.shape[0], -1),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_a_layer_is_followed(name: str) -> None:
    """Of six channels two have no weights and a bias, and the last layer reads one less."""
    model = Spelled(SPELLINGS[name], 16 if "view" in name or "shape" in name else 1)
    x = normal(1, (3, 1, 6, 6)).float()
    with torch.no_grad():
        for layer in (model.one, model.two):
            layer.weight[[0, 4]] = 0
            layer.bias[[0, 4]] = torch.tensor([0.7, -0.3])
        places = model.last.in_features // 6
        model.last.weight[:, :places] = 1
        model.last.weight[:, 2 * places : 3 * places] = 0
        small = cut(trace_function(model, x), block=1)
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)
    used = 2 if name == "add_" else 1
    assert weights(small) == 3 * (9 * used + 3 * places)


class Pooling(nn.Module):
    """A convolution of some dimension before a pool of that dimension."""

    def __init__(self, first: nn.Module, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.pool, self.last = first, pool, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.pool(self.first(x)).flatten(1))
        return logits


POOLINGS: dict[str, tuple[Callable[[], nn.Module], int, Callable[[Tensor], Tensor]]] = {
    "avg1": (lambda: nn.Conv1d(1, 6, 3), 1, lambda x: functional.adaptive_avg_pool1d(x, 1)),
    "max1": (lambda: nn.Conv1d(1, 6, 3), 1, lambda x: functional.adaptive_max_pool1d(x, 1)),
    "avg3": (lambda: nn.Conv3d(1, 6, 3), 3, lambda x: functional.adaptive_avg_pool3d(x, 1)),
    "max3": (lambda: nn.Conv3d(1, 6, 3), 3, lambda x: functional.adaptive_max_pool3d(x, 1)),
    "window1": (lambda: nn.Conv1d(1, 6, 3), 1, lambda x: functional.avg_pool1d(x, 4)),
    "window3": (lambda: nn.Conv3d(1, 6, 3), 3, lambda x: functional.avg_pool3d(x, 4)),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_pools_of_every_dimension_are_followed(name: str) -> None:
    first, dimensions, pool = POOLINGS[name]
    model, x = Pooling(first(), pool), normal(1, (2, 1, *[6] * dimensions)).float()
    with torch.no_grad():
        model.first.weight[[0, 4]] = 0
        small = cut(trace_function(model, x), block=1)
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)
    assert weights(small) == 4 * 3**dimensions + 3 * 4


def test_a_window_with_a_divisor_of_its_own_changes_even_a_steady_channel() -> None:
    """Four times 0.7 by 3 is not 0.7, so that no bias takes it over."""
    model = Spelled(lambda one, _: mean(avg_pool2d(one, 2, divisor_override=3)))
    x = normal(1, (3, 1, 6, 6)).float()
    with torch.no_grad():
        model.one.weight[:3] = 0
        model.one.bias[:3] = 0.7
        small = cut(trace_function(model, x), block=1)
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_value_that_is_overwritten_under_a_view_is_left_whole() -> None:
    """The view was made before the ReLU, and reads what the ReLU wrote."""

    def middle(one: Tensor, two: Tensor) -> Tensor:
        view = one.view(one.shape[0], -1)
        return view + one.relu_().flatten(1)

    model = Spelled(middle, 16)
    x = normal(1, (3, 1, 6, 6)).float()
    with torch.no_grad():
        model.one.weight[:3] = 0
        model.one.bias[:3] = -0.7
        small = cut(trace_function(model, x), block=1)
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)
