"""Preprocessing: what turns raw samples into what a network reads, a part of the task itself.

Any function x -> x on a batch [samples, …] will do. Those here are modules, because their constants
move with the task and are traced with it. Tokens never come here.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from masquerade.core import tree
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError

Preprocess = Callable[[Tensor], Tensor]

SHOWN = 4
"""How many constants a description lists."""
ROUNDING = 1e-24
"""The share of a squared mean below which a variance is no more than what sums were rounded by."""


@runtime_checkable
class Unfitted(Protocol):
    """Preprocessing fitted to clients' data, from sums alone: the server never sees a sample.

    What a function `merged(one, other)` makes of two clients' statistics stands for both; without
    it they are added. Where there is an attribute `per_client` that is true, each client fits it on
    its own samples, and sums are never sent.
    """

    def statistics(self, x: Tensor) -> Tree:
        """Return statistics of one client's samples x [samples, …], to be merged over clients."""
        ...

    def fitted(self, total: Tree) -> nn.Module:
        """Return the preprocessing fitted to the sums; its tensors are sent to everybody.

        What it returns may be unfitted itself: then clients are asked once more, for statistics
        that the first ones were needed for.
        """
        ...


class Scale(nn.Module):
    """Divide bytes by 255, and leave all other numbers as they are."""

    top: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Divided by a tensor: by a number CUDA multiplies with its inverse, to other bits.
        top = torch.tensor(255.0, dtype=torch.float64)
        self.register_buffer("top", top, persistent=False)

    @property
    def text(self) -> str:
        """Describe it."""
        return "bytes are divided by 255"

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers of the constants' own type."""
        numbers = x.to(self.top.dtype)
        return numbers / self.top if x.dtype == torch.uint8 else numbers


class Raw(nn.Module):
    """Leave all numbers as they are: bytes are numbers from 0 to 255."""

    text = "bytes are read as numbers from 0 to 255"

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


class Normalize(Scale):
    """Divide bytes by 255, then subtract a mean and divide by a std.

    Both are one number, or one for every channel or feature: axis 1 of a batch.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        for name, given in (("mean", mean), ("std", std)):
            values = [given] if isinstance(given, int | float) else list(given)
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        finite = math.isfinite(float(self.mean.sum() + self.std.sum()))
        if len(self.mean) != len(self.std) or not finite or not bool((self.std > 0).all()):
            text = f"`mean` is {mean} and `std` {std}; give as many of both, and stds above 0"
            raise MasqueradeError("E201", text)

    @property
    def text(self) -> str:
        """Describe it."""
        if len(self.mean) > SHOWN:
            named = f"each of {len(self.mean)} features has its own mean subtracted and is divided"
            return f"{super().text}, then {named} by its std"
        mean, std = (", ".join(f"{one:.4g}" for one in each) for each in (self.mean, self.std))
        return f"{super().text}, then mean {mean} is subtracted and the rest divided by std {std}"

    def forward(self, x: Tensor) -> Tensor:
        """Return (x − mean) / std."""
        count = len(self.mean)
        if count > 1 and (x.ndim < 2 or x.shape[1] != count):
            text = f"normalizing has constants for {count} channels or features (axis 1 of a batch)"
            shape = list(x.shape[1:])
            raise MasqueradeError(
                "E202",
                f"{text}, and samples have the shape {shape}; give one for all or one for each "
                "(`data.normalize`, or `preprocess` of a task)",
            )
        shape = [count, *[1] * (x.ndim - 2)]
        return (super().forward(x) - self.mean.reshape(shape)) / self.std.reshape(shape)


class FittedLater(nn.Module):
    """Preprocessing that a run fits before training."""

    def __init__(self, per_client: bool = False) -> None:
        super().__init__()
        self.per_client = per_client

    def merged(self, one: Tree, other: Tree) -> Tree:
        """Return the statistics of two groups of samples together."""
        return merged(one, other)

    def forward(self, x: Tensor) -> Tensor:
        """Refuse: nothing is known of the samples yet."""
        raise MasqueradeError(
            "E202",
            "this preprocessing is not fitted yet; a run fits it and its result holds the fitted "
            "task, or give `mq.Normalize(mean, std)`",
        )


class Standardize(FittedLater):
    """Normalize by mean and std of the training samples, per channel or feature; not fitted yet.

    A run fits it before training: clients send counts and sums, and the server sends back mean and
    std. With `per_client` each client takes its own mean and std, and nothing is sent.
    """

    text = "samples are normalized by mean and std of the training samples"

    def statistics(self, x: Tensor) -> Tree:
        """Return count, sum and squared deviations of every channel or feature, in float64."""
        channels = x.shape[1] if x.ndim > 1 else 1
        values = Scale()(x).reshape(len(x), channels, math.prod(x.shape[2:]))
        count = torch.tensor(float(len(x) * values.shape[2]), dtype=torch.float64)
        return moments(values.transpose(0, 1).flatten(1), count)

    def fitted(self, total: Tree) -> Normalize:
        """Return the normalization; what is constant is divided by 1."""
        mean, std = mean_and_std(total)
        return Normalize(mean.tolist(), std.tolist())


def moments(values: Tensor, count: Tensor, known: Tensor | None = None) -> Tree:
    """Return count, sum and squared deviations from the mean of every row [rows, values].

    Sums of squares would hide a spread that is small beside the mean: near 1e9 float64 rounds them
    by more than it. `known` says which values are counted, where not all are.
    """
    found = values if known is None else torch.where(known, values, 0.0)
    total = found.sum(1)
    apart = found - (total / count.clamp(min=1))[:, None]
    apart = apart if known is None else torch.where(known, apart, 0.0)
    return {"count": count, "sum": total, "deviations": apart.square().sum(1)}


def merged(one: Tree, other: Tree) -> Tree:
    """Return the statistics of two groups of samples together.

    What is counted and summed is added. Squared deviations are from the mean of either group, and
    the distance of the means comes on top: n₁n₂/(n₁+n₂) · (m₁−m₂)².
    """
    total = tree.each(torch.add, one, other)
    weight = one["count"] * other["count"] / total["count"].clamp(min=1)
    means = [each["sum"] / each["count"].clamp(min=1) for each in (one, other)]
    between = weight * (means[0] - means[1]).square()
    return total | {"deviations": total["deviations"] + between}


def mean_and_std(total: Tree) -> tuple[Tensor, Tensor]:
    """Return what `count`, `sum` and `deviations` decide; the std of what is constant is 1."""
    count = total["count"].clamp(min=1)
    mean, variance = total["sum"] / count, total["deviations"] / count
    varies = variance > ROUNDING * mean.square()
    return mean, torch.where(varies, variance, 1.0).sqrt()


def fitted_on(preprocess: Preprocess, x: Tensor) -> Preprocess:
    """Return preprocessing fitted on samples x [samples, …] alone, where data decide it."""
    while isinstance(preprocess, Unfitted):
        preprocess = preprocess.fitted(preprocess.statistics(x.cpu()))
    return preprocess


def shape_after(preprocess: Preprocess | None, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a sample as the network reads it, where preprocessing says its width."""
    width = getattr(preprocess, "width", None)
    return tuple(shape) if width is None else (width,)


def describe(preprocess: Preprocess) -> str:
    """Say what is done to samples; of a function of one's own, its name."""
    text = getattr(preprocess, "text", None)
    name = getattr(preprocess, "__name__", type(preprocess).__name__)
    return text if isinstance(text, str) else f"samples go through `{name}`"


def moved(preprocess: Preprocess, to: torch.device | torch.dtype | str) -> Preprocess:
    """Return preprocessing whose constants are on a device or of a type."""
    if not isinstance(preprocess, nn.Module):
        return preprocess
    return copy.deepcopy(preprocess).to(to).requires_grad_(False).eval()
