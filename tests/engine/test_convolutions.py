"""Convolutions as products of matrices: the same outputs, slopes, and slopes of slopes."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import max_pool2d

from masquerade.engine.replay.convolutions import Convolving, product

SHAPES = [
    # channels, height, width, outputs, window, stride
    (3, 9, 8, 4, (3, 2), (1, 1)),
    (2, 9, 8, 3, (3, 3), (2, 2)),
    (1, 7, 10, 2, (2, 3), (3, 2)),
]


def inputs(
    channels: int, height: int, width: int, out: int, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Samples and weights of five clients."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(5, 4, channels, height, width, dtype=torch.float64, generator=draw)
    weight = torch.randn(5, out, channels, *window, dtype=torch.float64, generator=draw)
    return x, weight


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_the_convolution(shape) -> None:
    x, weight = inputs(*shape[:5])
    found = vmap(lambda one, own: product(one, own, own[:, 0, 0, 0], shape[5]))(x, weight)
    wanted = vmap(lambda one, own: torch.conv2d(one, own, own[:, 0, 0, 0], shape[5]))(x, weight)
    torch.testing.assert_close(found, wanted)


def slopes(convolution, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    def value(one: Tensor, own: Tensor) -> Tensor:
        return convolution(one, own).sin().sum()

    found: tuple[Tensor, Tensor] = vmap(grad(value, (0, 1)))(x, weight)
    return found


def slopes_of_slopes(convolution, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What MAML needs: how the weights' slope changes with both."""

    def value(one: Tensor, own: Tensor) -> Tensor:
        moved = grad(lambda w: convolution(one, w).sin().sum())(own)
        return convolution(one, own - 0.1 * moved).cos().sum()

    found: tuple[Tensor, Tensor] = vmap(grad(value, (0, 1)))(x, weight)
    return found


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ask", [slopes, slopes_of_slopes])
def test_its_slopes_are_those_of_the_convolution(shape, ask) -> None:
    x, weight = inputs(*shape[:5])
    found = ask(lambda one, own: product(one, own, own[:, 0, 0, 0], shape[5]), x, weight)
    wanted = ask(lambda one, own: torch.conv2d(one, own, own[:, 0, 0, 0], shape[5]), x, weight)
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right)


def test_on_a_cpu_layers_stay_as_they_are() -> None:
    layer, x = nn.Conv2d(3, 4, 3, padding=1), torch.ones(2, 3, 5, 5)
    with Convolving():
        inside = layer(x)
    assert torch.equal(inside, layer(x))


@pytest.mark.cuda
def test_on_cuda_every_form_of_a_layer_is_the_same() -> None:
    for settings in ({}, {"padding": 1}, {"stride": 2}, {"padding": "same"}, {"bias": False}):
        layer = nn.Conv2d(3, 4, 3, **settings).double().cuda()
        x = torch.ones(2, 3, 5, 6, dtype=torch.float64, device="cuda").cumsum(-1)
        with Convolving():
            inside = layer(x)
        torch.testing.assert_close(inside, layer(x))


def pooled(x: Tensor, inside: bool, side: int) -> tuple[Tensor, ...]:
    """Pool the samples of clients; return outputs, slopes, and slopes of slopes."""

    def value(one: Tensor) -> Tensor:
        return max_pool2d(one, side).sin().sum()

    with Convolving() if inside else nullcontext():
        slope = vmap(grad(value))
        return (
            vmap(lambda one: max_pool2d(one, side))(x),
            slope(x),
            vmap(grad(lambda one: (grad(value)(one) * one).sum()))(x),
        )


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("side", [2, 3])
def test_on_cuda_a_pool_is_bit_for_bit_that_of_torch(dtype: torch.dtype, side: int) -> None:
    draw = torch.Generator().manual_seed(1)
    # Rounded, so that a window's largest is there more than once; 7 leaves a rest in both axes.
    x = torch.randn(3, 4, 2, 7, 8, generator=draw).round(decimals=0).to("cuda", dtype)
    x[0, 0, 0, 1, 1] = torch.nan
    for found, wanted in zip(pooled(x, True, side), pooled(x, False, side), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.cuda
def test_on_cuda_pools_that_overlap_are_those_of_torch() -> None:
    x = torch.ones(2, 3, 7, 7, device="cuda").cumsum(-1)
    for settings in ({"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"return_indices": True}):
        with Convolving():
            inside = max_pool2d(x, 2, **settings)
        torch.testing.assert_close(inside, max_pool2d(x, 2, **settings))
