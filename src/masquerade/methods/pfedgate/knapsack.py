"""The knapsack (Eq. 6): which blocks a client takes so that their costs stay within its budget."""

import math

import torch
from torch import Tensor

STEPS = 10_000
"""Steps of the scale that the exact choice measures costs on."""


def greedy(values: Tensor, costs: Tensor, always: Tensor, room: Tensor) -> Tensor:
    """Take blocks by value, the largest first, and skip those that do not fit."""
    order = torch.where(always, math.inf, values).argsort(descending=True, stable=True)
    costs = torch.where(always, 0, costs)[order]
    taken, left = [], room
    for cost in costs.unbind():
        fits = cost <= left
        left = torch.where(fits, left - cost, left)
        taken.append(fits)
    return torch.zeros_like(always).scatter(0, order, torch.stack(taken))


def exact(
    values: Tensor, units: tuple[int, ...], always: Tensor, room: Tensor, step: float
) -> Tensor:
    """Maximize the sum of values by dynamic programming over costs rounded up to steps.

    Differs: costs rounded up never exceed the room. The choice is exact where they are whole and
    sum up to at most `STEPS`, and within the rounding elsewhere; blocks of no value are left out.
    """
    best = values.new_zeros(STEPS + 1)
    took = []
    for value, unit in zip(values.unbind(), units, strict=True):
        # A block that is always on costs no step and is set at the end.
        fits = best[: max(STEPS + 1 - unit, 0)] + (value if unit else 0)
        moved = torch.cat([best.new_full((STEPS + 1 - len(fits),), -math.inf), fits])
        took.append(moved > best)
        best = torch.maximum(moved, best)
    left = (room / step).floor().clamp(0, STEPS).to(torch.int64)
    flags = []
    for took_here, unit in zip(reversed(took), reversed(units), strict=True):
        flags.append(took_here.gather(0, left.reshape(1))[0])
        left = left - flags[-1] * unit
    return torch.stack(flags[::-1]) | always


def steps(costs: list[float], always: list[bool]) -> tuple[tuple[int, ...], float]:
    """Return the costs of blocks in steps, rounded up, and the length of a step."""
    free = [0.0 if on else cost for cost, on in zip(costs, always, strict=True)]
    whole = all(cost == int(cost) for cost in free) and sum(free) <= STEPS
    step = 1.0 if whole else sum(free) / STEPS
    return tuple(math.ceil(cost / step) for cost in free), step
