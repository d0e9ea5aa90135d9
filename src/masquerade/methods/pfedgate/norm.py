"""Norms that couple a batch, written for padded ones: they see its valid samples only.

A norm called NAME reads `NAME.weight`, `NAME.bias` and its running statistics `NAME.mean` and
`NAME.var` from a tree. In training it normalizes by the batch and returns the statistics moved on;
in use it normalizes by them. A single value has no variance: it is normalized by the running
statistics, and they stay.
"""

import torch
from torch import Tensor

from masquerade.core.tree import Tree

MOMENTUM = 0.1
"""How far running statistics move toward those of a batch."""
EPSILON = 1e-5


def mean(values: Tensor, valid: Tensor | None) -> Tensor:
    """Average values [samples, …] over the valid samples."""
    if valid is None:
        return values.mean(0)
    mine = valid.reshape(-1, *[1] * (values.ndim - 1))
    # Padding is selected away, not multiplied: it may be infinite.
    return torch.where(mine, values, 0).sum(0) / valid.sum().clamp(min=1)


def batch_init(name: str, features: int, dtype: torch.dtype) -> tuple[Tree, Tree]:
    """Return the values and the running statistics of a batch norm before training."""
    one, zero = torch.ones(features, dtype=dtype), torch.zeros(features, dtype=dtype)
    return {f"{name}.weight": one, f"{name}.bias": zero}, {f"{name}.mean": zero, f"{name}.var": one}


def batch_norm(
    tree: Tree, name: str, x: Tensor, valid: Tensor | None, train: bool
) -> tuple[Tensor, Tree]:
    """Normalize x [samples, features, …] feature by feature: (result, running statistics)."""
    flat = x.reshape(*x.shape[:2], -1)
    middle, var, running = _over_batch(tree, name, flat, valid, train)
    return _apply(tree, name, flat, middle[:, None], var[:, None]).reshape(x.shape), running


def switch_init(name: str, shape: torch.Size, dtype: torch.dtype) -> tuple[Tree, Tree]:
    """Return the values and the running statistics of a switchable norm for samples of a shape."""
    values, running = batch_init(name, shape[0], dtype)
    # Differs: without places beside the features an instance is a single number, and has no branch.
    even = torch.ones(3 if shape[1:].numel() > 1 else 2, dtype=dtype)
    return {**values, f"{name}.mean_mix": even, f"{name}.var_mix": even}, running


def switch_norm(
    tree: Tree, name: str, x: Tensor, valid: Tensor | None, train: bool
) -> tuple[Tensor, Tree]:
    """Normalize x [samples, features, …] by a learned mixture of statistics (Luo et al., 2019).

    They are those of the batch, of the sample (layer), and of each feature of it (instance).
    """
    flat = x.reshape(*x.shape[:2], -1)
    middle, var, running = _over_batch(tree, name, flat, valid, train)
    means, vars_ = [middle[:, None]], [var[:, None]]
    # One branch per weight of the mixture; the last one is there where samples have places.
    for axes in [(1, 2), (2,)][: len(tree[f"{name}.mean_mix"]) - 1]:
        center = flat.mean(axes, keepdim=True)
        means.append(center)
        vars_.append((flat - center).square().mean(axes, keepdim=True))
    middle = _mix(tree[f"{name}.mean_mix"], means)
    var = _mix(tree[f"{name}.var_mix"], vars_)
    return _apply(tree, name, flat, middle, var).reshape(x.shape), running


def _mix(weights: Tensor, parts: list[Tensor]) -> Tensor:
    shares = zip(weights.softmax(0).unbind(), parts, strict=True)
    first, *others = (share * part for share, part in shares)
    for other in others:
        first = first + other
    return first


def _apply(tree: Tree, name: str, flat: Tensor, middle: Tensor, var: Tensor) -> Tensor:
    normal = (flat - middle) / (var + EPSILON).sqrt()
    return normal * tree[f"{name}.weight"][:, None] + tree[f"{name}.bias"][:, None]


def _over_batch(
    tree: Tree, name: str, flat: Tensor, valid: Tensor | None, train: bool
) -> tuple[Tensor, Tensor, Tree]:
    """Return mean and variance of every feature of [samples, features, places], and the running."""
    old = tree[f"{name}.mean"], tree[f"{name}.var"]
    if not train:
        return *old, {}
    middle = mean(flat.mean(-1), valid)
    var = mean((flat - middle[:, None]).square().mean(-1), valid)
    ones = torch.ones_like(flat[:, 0, 0]) if valid is None else valid.to(flat.dtype)
    count = ones.sum() * flat.shape[-1]
    several = count > 1
    # As torch does it: the batch is normalized by its own variance, the running one is unbiased.
    unbiased = var * count / (count - 1).clamp(min=1)
    moved = [
        torch.where(several, past + MOMENTUM * (new.detach() - past), past)
        for past, new in zip(old, (middle, unbiased), strict=True)
    ]
    running = {f"{name}.mean": moved[0], f"{name}.var": moved[1]}
    middle, var = (
        torch.where(several, new, past) for new, past in zip((middle, var), old, strict=True)
    )
    return middle, var, running
