"""The one reduction: the mean over the clients that hold a coordinate."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from masquerade.core.part import Part
from masquerade.core.tree import Tree, onto, select

TOGETHER = 64
"""How many clients' values a GPU converts to float64 at a time."""


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
    private coordinate cannot reach a shared one. Sums are taken in float64, on a CPU in client
    order.

    >>> part = Part({"w": torch.tensor([[1., 5.], [3., 7.]])},
    ...             {"w": torch.tensor([[True, False], [True, False]])})
    >>> average(part, torch.tensor([1., 3.]), {"w": torch.tensor([0., 9.])})
    {'w': tensor([2.5000, 9.0000])}
    """
    shares = weights.tolist()
    whole = {name: values for name, values in part.values.items() if name not in part.keep}
    sums = _sums(whole, shares, otherwise)
    result: Tree = {}
    for name, values in part.values.items():
        held = part.held(name)
        old = otherwise[name]
        if held is None:
            enough = len(shares) >= least and sum(shares) > 0
            result[name] = like(sums[name].div_(sum(shares)), old) if enough else old
            continue
        total, mass = _held(values, held, shares)
        enough = mass > 0 if least <= 1 else (votes(held) >= least) & (mass > 0)
        if absent == "zero":
            mass.fill_(sum(shares))
        mean = total / torch.where(mass > 0, mass, 1)
        result[name] = torch.where(enough, like(mean, old), old)
    return result


def _sums(stacked: Tree, shares: list[float], like: Mapping[str, Tensor]) -> Tree:
    """Add up what all clients hold, client after client, all tensors at once."""
    if any(values.is_cuda for values in stacked.values()):
        return {name: _at_once(values, shares) for name, values in stacked.items()}
    totals = {
        name: torch.zeros(like[name].shape, dtype=torch.float64, device=like[name].device)
        for name in stacked
    }
    if stacked:
        clients = zip(*(values.unbind() for values in stacked.values()), strict=True)
        for values, share in zip(clients, shares, strict=True):
            torch._foreach_add_(list(totals.values()), list(values), alpha=share)
    return totals


def _held(values: Tensor, held: Tensor, shares: list[float]) -> tuple[Tensor, Tensor]:
    """Add up what clients hold of a tensor, and the shares of those who hold each coordinate."""
    if values.is_cuda:
        return _at_once(select(held, values), shares), _at_once(held, shares)
    total = torch.zeros(values.shape[1:], dtype=torch.float64)
    mass = torch.zeros_like(total)
    for value, mine, share in zip(values, held, shares, strict=True):
        total.add_(select(mine, value), alpha=share)
        mass.add_(mine, alpha=share)
    return total, mass


def _at_once(values: Tensor, shares: list[float]) -> Tensor:
    """Add up rows on a GPU, some at a time: there every operation has its price."""
    weights = onto(torch.tensor(shares, dtype=torch.float64), values.device)
    total = torch.zeros(values.shape[1:], dtype=torch.float64, device=values.device)
    for some, share in zip(
        *(torch.split(each, TOGETHER) for each in (values, weights)), strict=True
    ):
        weight = share.reshape(-1, *[1] * (values.ndim - 1))
        total += some.to(torch.float64).mul_(weight).sum(0)
    return total


def like(mean: Tensor, old: Tensor) -> Tensor:
    """Return a mean in the type of the old values; whole numbers are rounded."""
    return mean.to(old.dtype) if old.is_floating_point() else mean.round().to(old.dtype)


def votes(keep: Tensor) -> Tensor:
    """Count for every coordinate the clients whose mask [clients, …] holds it."""
    if keep.is_cuda:
        return keep.sum(0)
    total = torch.zeros(keep.shape[1:], dtype=torch.int64)
    # On a CPU a sum of bools takes thirty times as long as adding bytes does.
    for some in torch.split(keep.to(torch.uint8), 255):
        count = torch.zeros(keep.shape[1:], dtype=torch.uint8)
        for own in some:
            count += own
        total += count
    return total
