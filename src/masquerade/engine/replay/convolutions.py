"""Convolutions with other weights for every client, as CUDA likes them.

Mapped over clients, a convolution becomes one of as many groups, which cuDNN does well where many
channels come in and badly where few do: on an H200, ten clients' first layer (3 channels, 5 × 5,
64 samples each) took 1.1 ms for the gradient of its weights, and 0.15 ms as a product of matrices.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv_transpose2d, pad
from torch.overrides import TorchFunctionMode

LARGEST = 300
"""Weights of one output up to which the product of matrices wins."""


def _columns(x: Tensor, shape: torch.Size, stride: tuple[int, int]) -> Tensor:
    """Return what every output sees [samples, channels × height × width, outputs]."""
    windows = x.unfold(2, shape[2], stride[0]).unfold(3, shape[3], stride[1])
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


class _Product(torch.autograd.Function):
    """A convolution whose output and weight gradient are products of matrices."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: tuple[int, int]) -> Tensor:
        found = weight.flatten(1) @ _columns(x, weight.shape, stride)
        sides = zip(x.shape[2:], weight.shape[2:], stride, strict=True)
        return found.reshape(
            *found.shape[:2], *((own - seen) // far + 1 for own, seen, far in sides)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, ctx.stride = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        # The columns are made again: kept, they would be cut off from second derivatives.
        columns = _columns(x, weight.shape, ctx.stride)
        moved = (gradient.flatten(2) @ columns.transpose(1, 2)).sum(0).reshape(weight.shape)
        back = None
        if ctx.needs_input_grad[0]:
            sides = zip(x.shape[2:], weight.shape[2:], ctx.stride, strict=True)
            unseen = [(own - seen) % far for own, seen, far in sides]
            back = conv_transpose2d(gradient, weight, None, ctx.stride, 0, unseen)
        return back, moved, None


product: Callable[..., Tensor] = _Product.apply


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
    found = product(framed, weight, _pair(stride))
    return found if bias is None else found + bias[:, None, None]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]


class Convolving(TorchFunctionMode):
    """Within it, convolutions of few channels on CUDA are products of matrices."""

    def __init__(self, products: bool = True) -> None:
        super().__init__()
        self.products = products

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace one function, and leave all others."""
        if function is torch.conv2d:
            return _convolve(self.products, *args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def convolving(device: torch.device, products: bool) -> AbstractContextManager[object]:
    """Return the mode for work on a device: nothing but CUDA is worth its cost in every call.

    Without products it is there for autocast alone, which mapped biases would be left out of.
    """
    return Convolving(products) if device.type == "cuda" else nullcontext()
