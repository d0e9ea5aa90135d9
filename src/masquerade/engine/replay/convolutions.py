"""Convolutions with other weights for every client, as CUDA likes them.

Mapped over clients, a convolution becomes one of as many groups, which cuDNN does well where many
channels come in and badly where few do: on an H200, ten clients' first layer (3 channels, 5 × 5,
64 samples each) took 1.1 ms for the gradient of its weights, and 0.09 ms as a product of matrices.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv_transpose2d, max_pool2d, pad
from torch.overrides import TorchFunctionMode

from masquerade.engine.replay.pools import pool, poolable

LARGEST = 300
"""Weights of one output up to which the product of matrices wins."""


EIGHT = 8
"""Tensor cores want products of matrices whose sides are multiples of it."""


def _columns(x: Tensor, shape: torch.Size, stride: tuple[int, int]) -> Tensor:
    """Return what every output sees [samples, rows, outputs]: a window, a one, and zeros.

    The one meets the bias, so that bias and weights are one product, and so are their gradients.
    """
    windows = x.unfold(2, shape[2], stride[0]).unfold(3, shape[3], stride[1])
    windows = windows.permute(0, 1, 4, 5, 2, 3)
    seen = shape[1:].numel()
    columns = x.new_empty(len(x), seen + _padded(seen), *windows.shape[4:])
    columns[:, :seen].view(windows.shape).copy_(windows)
    columns[:, seen:] = 0
    columns[:, seen] = 1
    return columns.flatten(2)


def _padded(seen: int) -> int:
    """Return how many rows a one and zeros take."""
    return EIGHT - seen % EIGHT


class _Product(torch.autograd.Function):
    """A convolution whose output and weight gradient are products of matrices."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        columns = _columns(x, weight.shape, stride)
        rows = pad(
            torch.cat([weight.flatten(1), bias[:, None]], 1), (0, _padded(weight[0].numel()) - 1)
        )
        found = rows @ columns
        sides = zip(x.shape[2:], weight.shape[2:], stride, strict=True)
        height, width = ((own - seen) // far + 1 for own, seen, far in sides)
        return found.reshape(*found.shape[:2], height, width), columns

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.stride = inputs
        columns = output[1]
        ctx.mark_non_differentiable(columns)
        ctx.save_for_backward(x, weight, columns)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, columns = ctx.saved_tensors
        gradient, _ = gradients
        if torch.is_grad_enabled():
            # Made again, because the kept ones are cut off from second derivatives.
            columns = _columns(x, weight.shape, ctx.stride)
        moved = (gradient.flatten(2) @ columns.transpose(1, 2)).sum(0)
        seen = weight[0].numel()
        back = None
        if ctx.needs_input_grad[0]:
            sides = zip(x.shape[2:], weight.shape[2:], ctx.stride, strict=True)
            unseen = [(own - seen) % far for own, seen, far in sides]
            back = conv_transpose2d(gradient, weight, None, ctx.stride, 0, unseen)
        return back, moved[:, :seen].reshape(weight.shape), moved[:, seen], None


def product(x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, int]) -> Tensor:
    """Return a convolution with a bias, computed as a product of matrices."""
    found: Tensor = _Product.apply(x, weight, bias, stride)[0]  # type: ignore[no-untyped-call]
    return found


def _convolve(
    products: bool,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if input.is_cuda and torch.is_autocast_enabled("cuda"):
        # All at once: mapped over clients, a bias would be left out of autocast.
        dtype = torch.get_autocast_dtype("cuda")
        input, weight = input.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    simple = products and groups == 1 and _pair(dilation) == (1, 1) and not isinstance(padding, str)
    if not simple or not input.is_cuda or weight.shape[1:].numel() > LARGEST:
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    top, left = _pair(padding)
    framed = pad(input, (left, left, top, top)) if top or left else input
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return product(framed, weight, bias, _pair(stride))


def _pool(
    function: Any,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    how = (kernel_size, stride, padding, dilation, ceil_mode)
    if not return_indices and poolable(input, *how):
        return pool(input, kernel_size)
    indices = {"return_indices": True} if return_indices else {}
    return function(input, *how, **indices)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]


class Convolving(TorchFunctionMode):
    """Within it, convolutions of few channels on CUDA are products of matrices, and pools ours."""

    def __init__(self, products: bool = True) -> None:
        super().__init__()
        self.products = products

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace one function, and leave all others."""
        if function is torch.conv2d:
            return _convolve(self.products, *args, **(kwargs or {}))
        if self.products and function in (max_pool2d, torch.max_pool2d):
            return _pool(function, *args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def convolving(device: torch.device, products: bool) -> AbstractContextManager[object]:
    """Return the mode for work on a device: nothing but CUDA is worth its cost in every call.

    Without products it is there for autocast alone, which mapped biases would be left out of.
    """
    return Convolving(products) if device.type == "cuda" else nullcontext()
