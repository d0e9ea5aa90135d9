"""Masks as values: how many per layer, which by score, pruning, regrowing, set algebra.

A mask is named by what True means. A keep-tree may lack names: those are kept whole.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.task import Layer, Task
from masquerade.core.tree import State, Tree
from masquerade.core.vmap import mapped


def top(scores: Tensor, count: int | Tensor) -> Tensor:
    """Mark the `count` largest scores; among equals the lower index wins.

    `count` may be a 0-d tensor: it is compared, never used as a size, so clients of one cohort may
    have different counts.

    >>> top(torch.tensor([3., 1., 3., 3.]), 2)
    tensor([ True, False,  True, False])
    """
    flat = scores.reshape(-1)
    if not flat.numel():
        return torch.zeros_like(scores, dtype=torch.bool)
    wanted = tree.scalar(count, flat.device).to(flat.device).clamp(0, flat.numel())
    bar = _largest(flat, wanted.clamp(min=1))
    above = flat > bar
    equal = flat == bar
    room = wanted - above.sum()
    chosen = above | (equal & (equal.cumsum(0) <= room))
    return (chosen & (wanted > 0)).reshape(scores.shape)


def _largest(scores: Tensor, place: Tensor) -> Tensor:
    """Return the score that is at a place, from 1, when the largest come first."""
    if not mapped() and scores.device.type == "cpu":
        # An eighth of the time of sorting, but the place has to be known to the host.
        return scores.kthvalue(len(scores) + 1 - int(place)).values
    return scores.sort(descending=True).values.gather(0, (place - 1).reshape(1))


def top_by_layer(scores: Mapping[str, Tensor], counts: Mapping[str, int | Tensor]) -> Tree:
    """Mark the largest scores of every tensor that `counts` names."""
    return {name: top(scores[name], count) for name, count in counts.items()}


def top_overall(scores: Mapping[str, Tensor], count: int | Tensor) -> Tree:
    """Mark the largest scores over all tensors together, in the order of their names given."""
    flat = torch.cat([value.reshape(-1) for value in scores.values()])
    pieces = torch.split(top(flat, count), [value.numel() for value in scores.values()])
    return {
        name: piece.reshape(value.shape)
        for (name, value), piece in zip(scores.items(), pieces, strict=True)
    }


def prune(keep: Tensor, scores: Tensor, count: int | Tensor) -> Tensor:
    """Drop the `count` kept entries of smallest score (of equals, the higher index goes first)."""
    ranked = tree.select(keep, scores, -math.inf)
    return top(ranked, keep.sum() - count) & keep


def regrow(keep: Tensor, scores: Tensor, count: int | Tensor) -> Tensor:
    """Add the `count` entries of largest score among those not kept."""
    return keep | top(tree.select(~keep, scores, -math.inf), count)


def distance(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensor:
    """Return the share of entries in which two masks differ, averaged over their tensors."""
    return torch.stack([(left[name] ^ right[name]).double().mean() for name in left]).mean()


def kept(work: State) -> Tree:
    """Return the mask that a client works in, `work["keep"]`: what `sgd_step` moves within."""
    keep: Tree = work["keep"]
    return keep


def trained(work: State) -> tuple[Tree, Tree]:
    """Return the masks of a stage that trains inside `work["keep"]`: (forward, gradient)."""
    return kept(work), kept(work)


def searched(work: State) -> tuple[Tree, Tree]:
    """Return the masks of a stage whose gradient regrowth reads: the gradient is counted dense."""
    return kept(work), {}


def seen(work: State) -> tuple[Tree, None]:
    """Return the masks of a stage that only measures: there is no gradient."""
    return kept(work), None


def unused(work: State) -> tuple[Tree, None]:
    """Return the masks of a stage that does not run the network: nothing is counted."""
    return {name: torch.zeros_like(value).bool() for name, value in work["params"].items()}, None


def annealed(ratio: float, progress: Tensor) -> Tensor:
    """Return a ratio that falls by cosine to 0 as progress goes from 0 to 1."""
    return ratio / 2 * (1 + torch.cos(math.pi * progress.clamp(max=1)))


def readjust(work: State, ratio: Tensor) -> State:
    """Prune a ratio of each tensor's mask by magnitude, regrow as many by the last gradient.

    Positions pruned here may regrow at once, and then keep their weights; others start at 0.
    Weights and momentum outside of the new mask are zero.
    """
    keep: Tree = {}
    for name, old in work["keep"].items():
        count = torch.ceil(ratio * old.sum() - 1e-9).to(torch.int64)
        left = prune(old, work["params"][name].abs(), count)
        keep[name] = regrow(left, work["gradient"]["params"][name].abs(), count)
    work = {**work, "params": tree.only(keep, work["params"]), "keep": keep}
    if "momentum" in work:
        kept = tree.only(keep, work["momentum"]["params"])
        work["momentum"] = {**work["momentum"], "params": kept}
    return work


def shrink(
    keep: Mapping[str, Tensor],
    scores: Mapping[str, Tensor],
    share: float,
    *,
    of_all: bool = False,
    overall: bool = False,
    least: float = 0.0,
) -> Tree:
    """Keep that share of the kept entries whose scores are largest, rounded down.

    `of_all` takes the share of all entries instead, `overall` lets tensors compete with one
    another, and of all entries at least the share `least` stays where it was kept.

    >>> keep, scores = torch.tensor([True, True, True, False]), torch.tensor([1., 3., 2., 9.])
    >>> shrink({"w": keep}, {"w": scores}, 0.7)
    {'w': tensor([False,  True,  True, False])}
    """

    def count(kept: Tensor, size: int) -> Tensor:
        base = torch.full_like(kept, size) if of_all else kept
        # The small terms undo the rounding of products such as 0.3 × 10.
        wanted = (base.double() * share + 1e-9).floor().to(torch.int64)
        return wanted.clamp(min=math.ceil(size * least - 1e-9))

    ranked = {name: tree.select(held, scores[name], -math.inf) for name, held in keep.items()}
    kept = {name: held.sum() for name, held in keep.items()}
    if overall:
        size = sum(held.numel() for held in keep.values())
        left = top_overall(ranked, count(torch.stack(list(kept.values())).sum(), size))
    else:
        left = top_by_layer(
            ranked, {name: count(kept[name], held.numel()) for name, held in keep.items()}
        )
    return {name: left[name] & held for name, held in keep.items()}


def full(values: Mapping[str, Tensor]) -> Tree:
    """Return a mask that keeps everything."""
    return {name: torch.ones_like(value, dtype=torch.bool) for name, value in values.items()}


def both(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tree:
    """Intersect two masks; a name absent from one is whole there."""
    joined = {name: value & right[name] if name in right else value for name, value in left.items()}
    return joined | {name: value for name, value in right.items() if name not in left}


def either(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tree:
    """Unite two masks; a name absent from one is whole, so it is absent from the union."""
    return {name: value | right[name] for name, value in left.items() if name in right}


def beyond(
    left: Mapping[str, Tensor], right: Mapping[str, Tensor], shapes: Mapping[str, Tensor]
) -> Tree:
    """Return what `left` keeps and `right` does not, for every name of `shapes`."""
    result = {}
    for name, value in shapes.items():
        nothing = torch.zeros_like(value, dtype=torch.bool)
        mine = left.get(name, ~nothing)
        result[name] = mine & ~right[name] if name in right else nothing
    return result


def ones(keep: Mapping[str, Tensor], shapes: Mapping[str, Tensor]) -> dict[str, int]:
    """Count what is kept of every tensor."""
    return {
        name: int(keep[name].sum()) if name in keep else value.numel()
        for name, value in shapes.items()
    }


def overlap(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """Return intersection over union on the names both have; 1 when both are empty."""
    common = [name for name in left if name in right]
    shared = sum(int((left[name] & right[name]).sum()) for name in common)
    united = sum(int((left[name] | right[name]).sum()) for name in common)
    return shared / united if united else 1.0


def uniform_densities(shapes: Mapping[str, torch.Size], density: float) -> dict[str, float]:
    """Give every tensor the same density."""
    return dict.fromkeys(shapes, density)


def erk_densities(shapes: Mapping[str, torch.Size], density: float) -> dict[str, float]:
    """Distribute a density by Erdős–Rényi-Kernel: sum over product of a tensor's sizes, at most 1.

    Tensors whose share would exceed 1 become dense and the rest is distributed again over the
    others (Evci et al., 2020), so that the total stays `density` of all entries.
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    raw = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    dense: set[str] = set()
    while len(dense) < len(shapes):
        budget = density * sum(sizes.values()) - sum(sizes[name] for name in dense)
        scale = budget / sum(raw[name] * sizes[name] for name in shapes if name not in dense)
        over = {name for name in shapes if name not in dense and scale * raw[name] > 1}
        if not over:
            return {name: 1.0 if name in dense else scale * raw[name] for name in shapes}
        dense |= over
    return dict.fromkeys(shapes, 1.0)


def counts(shapes: Mapping[str, torch.Size], densities: Mapping[str, float]) -> dict[str, int]:
    """Turn densities into entries kept per tensor, rounded down so that no budget is exceeded."""
    return {
        # The small term undoes the rounding of products such as 0.3 × 10.
        name: math.floor(math.prod(shapes[name]) * density + 1e-9)
        for name, density in densities.items()
    }


def masked_names(layers: Iterable[Layer], first_dense: bool, biases_dense: bool) -> list[str]:
    """List the tensors that a sparsity applies to; parameters of norms stay whole."""
    names: list[str] = []
    for depth, layer in enumerate(layer for layer in layers if layer.kind != "norm"):
        if layer.weight is not None and not (depth == 0 and first_dense):
            names.append(layer.weight)
        if layer.bias is not None and not biases_dense:
            names.append(layer.bias)
    return names


def budget(
    task: Task, sparsity: float, densities: str, first_dense: bool, biases_dense: bool
) -> dict[str, int]:
    """Return how many entries of every masked tensor a sparsity keeps.

    `densities` says how the tensors share it: "uniform" or "erk".
    """
    names = masked_names(task.layers, first_dense, biases_dense)
    shapes = {name: task.shapes[name] for name in names}
    share = {"uniform": uniform_densities, "erk": erk_densities}[densities]
    return counts(shapes, share(shapes, 1 - sparsity))
