"""Max pooling whose windows do not overlap, on CUDA.

There an entry belongs to one window, which its gradient can be read from. torch looks through all
windows that an entry might belong to: on an H200, the first pool of ten clients (64 samples of 64
channels, 28 × 28) took it 0.10 ms forward and 0.35 ms backward.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

BLOCK = 256
"""Entries of one program of a kernel."""
MOST = 2**31 - BLOCK
"""Entries that 32 bits can number."""


@cache
def _kernels() -> Any:
    """Return the kernels; None where there is no Triton."""
    try:
        from masquerade.engine.replay import pool_kernels
    except ImportError:
        return None
    return pool_kernels


def poolable(x: Tensor, side: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> bool:
    """Tell whether a pool is one that these kernels compute."""
    plain = isinstance(side, int) and 1 < side <= 11 and stride in (None, side)
    plain = plain and padding == 0 and dilation == 1 and not ceil
    return plain and x.is_cuda and x.numel() < MOST and _kernels() is not None


def pool(x: Tensor, side: int) -> Tensor:
    """Return the largest of every `side` × `side` entries of the last two axes."""
    found: Tensor = _Pool.apply(x, side)[0]  # type: ignore[no-untyped-call]
    return found


def _launch(kernel: Any, tensors: tuple[Tensor, ...], count: int, *sides: int, side: int) -> None:
    """Run a kernel for so many entries or windows."""
    if count:
        kernel[(-(-count // BLOCK),)](*tensors, count, *sides, side=side, block=BLOCK)


class _Pool(torch.autograd.Function):
    """Windows are independent, so that a map over clients is one more axis of planes."""

    @staticmethod
    def forward(x: Tensor, side: int) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        *planes, height, width = x.shape
        rows, columns = height // side, width // side
        y = x.new_empty(*planes, rows, columns)
        at = torch.empty_like(y, dtype=torch.int8)
        sides = (height, width, rows, columns)
        _launch(_kernels().largest, (x, y, at), y.numel(), *sides, side=side)
        return y, at

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.side = inputs
        ctx.sides = x.shape[-2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (at,) = ctx.saved_tensors
        return _Unpool.apply(gradients[0], at, ctx.side, *ctx.sides), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, side: int) -> Any:
        axis = in_dims[0]
        if axis > x.ndim - 3:  # The clients' axis is one of the window's.
            x, axis = x.movedim(axis, 0), 0
        return _Pool.apply(x, side), (axis, axis)  # type: ignore[no-untyped-call]


class _Unpool(torch.autograd.Function):
    """The gradient of a pool: every window's value where its largest was, zeros elsewhere."""

    @staticmethod
    def forward(y: Tensor, at: Tensor, side: int, height: int, width: int) -> Tensor:
        y, at = y.contiguous(), at.contiguous()
        *planes, rows, columns = y.shape
        x = y.new_empty(*planes, height, width)
        sides = (height, width, rows, columns)
        _launch(_kernels().spread, (y, at, x), x.numel(), *sides, side=side)
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, at, ctx.side, _, _ = inputs
        ctx.save_for_backward(at)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (at,) = ctx.saved_tensors
        side = ctx.side
        windows = gradients[0].unfold(-2, side, side).unfold(-2, side, side).flatten(-2)
        chosen = windows.gather(-1, at.long().unsqueeze(-1)).squeeze(-1)
        return chosen, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, y: Tensor, at: Tensor, *sides: int) -> Any:
        own, places = in_dims[:2]
        if own is None:
            y, own = y.unsqueeze(0).expand(info.batch_size, *y.shape), 0
        if places is None:
            at, places = at.unsqueeze(0).expand(info.batch_size, *at.shape), 0
        return _Unpool.apply(y.movedim(own, places), at, *sides), places  # type: ignore[no-untyped-call]
