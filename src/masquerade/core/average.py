"""The one reduction: the mean over the clients that hold a coordinate."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from masquerade.core.part import Part
from masquerade.core.tree import Tree


def average(
    part: Part,
    weights: Tensor,
    otherwise: Mapping[str, Tensor],
    absent: Literal["skip", "zero"] = "skip",
    least: int = 1,
) -> Tree:
    """Average a stacked part [clients, …] over the clients that hold each coordinate.

    Where fewer than `least` clients hold it, or their weights sum to zero, the value of `otherwise`
    stays, bit for bit. `absent="zero"` counts a client that does not hold a coordinate as holding a
    zero there (sparsified updates). Values outside a client's mask are never read, so a NaN in a
    private coordinate cannot reach a shared one. Sums are taken in float64, in client order.

    >>> part = Part({"w": torch.tensor([[1., 5.], [3., 7.]])},
    ...             {"w": torch.tensor([[True, False], [True, False]])})
    >>> average(part, torch.tensor([1., 3.]), {"w": torch.tensor([0., 9.])})
    {'w': tensor([2.5000, 9.0000])}
    """
    result: Tree = {}
    for name, values in part.values.items():
        old = otherwise[name]
        held = part.held(name)
        if held is None:
            held = torch.ones((), dtype=torch.bool, device=values.device).expand(values.shape)
        weight = weights.to(values.device, torch.float64).reshape(-1, *[1] * (values.ndim - 1))
        total = torch.where(held, values.to(torch.float64) * weight, 0).sum(0)
        mass = torch.where(held, weight, 0).sum(0) if absent == "skip" else weight.sum(0)
        enough = (held.sum(0) >= least) & (mass > 0)
        mean = total / torch.where(mass > 0, mass, 1)
        if not old.is_floating_point():
            mean = mean.round()
        result[name] = torch.where(enough, mean.to(old.dtype), old)
    return result


def votes(keep: Tensor) -> Tensor:
    """Count for every coordinate the clients whose mask [clients, …] holds it."""
    return keep.sum(0)
