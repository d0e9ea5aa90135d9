"""Slices: a network that a structured mask makes narrower really runs narrower.

A sliced network computes what the masked one does as long as what lies between its layers turns
zeros into zeros (ReLU, pooling) and its norms group a fixed number of channels.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from masquerade.core.part import Axis
from masquerade.core.round import Round, Stage
from masquerade.core.round import steps as plain_steps
from masquerade.core.task import KINDS, Task
from masquerade.core.tree import State, Tree
from masquerade.errors import MasqueradeError

Cut = dict[str, dict[int, Tensor]]
"""Per tensor and axis the kept indices: int64, ascending. What is absent is kept whole."""


@dataclass(frozen=True)
class Hidden:
    """What lies between two weighted layers: outputs that are kept or left in units of `step`."""

    weight: str
    """The tensor whose rows make the outputs."""
    tensors: tuple[str, ...]
    """All tensors with a row for every output: weight, bias, those of norms."""
    reader: str
    """The tensor whose columns read the outputs, `features` columns for each."""
    step: int
    features: int


def hidden(task: Task) -> tuple[Hidden, ...]:
    """List what lies between the layers of a network that can be sliced.

    The network is a chain of linear and convolutional layers, and of norms that say how many
    channels they group (`per_group`), in the order it registers them; between a convolution and a
    linear layer it may flatten. Norms keep whole groups.
    """
    chain, initial = _chain(task), task.initial
    weighted = [place for place, (_, per_group) in enumerate(chain) if not per_group]
    found = []
    for place, following in pairwise(weighted):
        weight, reader = (f"{chain[each][0]}weight" for each in (place, following))
        tensors = []
        for layer, _ in chain[place:following]:
            _fit(layer, len(initial[f"{layer}weight"]) == len(initial[weight]))
            names = (f"{layer}weight", f"{layer}bias")
            tensors += [name for name in names if name in initial]
        step = math.lcm(*(per_group for _, per_group in chain[place + 1 : following]))
        features = _features(chain[following][0], initial[weight], initial[reader])
        found.append(Hidden(weight, tuple(tensors), reader, step, features))
    return tuple(found)


def widths(task: Task, share: float) -> Cut:
    """Keep the leading share, rounded up, of the outputs of every hidden layer.

    Inputs and outputs of the network stay whole. The cuts of all shares name the same tensors and
    axes.
    """
    if not 0 < share <= 1:
        raise MasqueradeError("E201", f"`share` is {share}; give a number above 0 and at most 1")
    cut: Cut = {}
    for each in hidden(task):
        weight = task.initial[each.weight]
        kept = torch.arange(_count(len(weight), share, each.step), device=weight.device)
        for name in each.tensors:
            cut.setdefault(name, {})[0] = kept
        inputs = torch.arange(len(kept) * each.features, device=weight.device)
        cut.setdefault(each.reader, {})[1] = inputs
    return cut


def units(task: Task, tree: Mapping[str, Tensor]) -> Tree:
    """Return the weights of hidden layers, or their masks, as [units, entries].

    A unit is an output, or as many as the norm behind them groups: what `expand` keeps or drops.
    """
    return {
        each.weight: tree[each.weight].reshape(-1, each.step * tree[each.weight][0].numel())
        for each in hidden(task)
    }


def expand(task: Task, kept: Mapping[str, Tensor]) -> Tree:
    """Return the mask that keeps these units [units] of hidden layers, by the names of `units`.

    A unit that is dropped takes its rows with it, and the columns of the layer that reads them.
    """
    keep: Tree = {}
    for each in hidden(task):
        line = kept[each.weight]
        rows = line[:, None].expand(-1, each.step).flatten()
        for name in each.tensors:
            mine = Axis(0).expand(rows, task.initial[name])
            keep[name] = keep[name] & mine if name in keep else mine
        columns = rows[:, None].expand(-1, each.features).flatten()
        keep[each.reader] = Axis(1).expand(columns, task.initial[each.reader])
    return keep


def cut_of(keep: Mapping[str, Tensor]) -> Cut:
    """Return the rows and columns outside of which a mask keeps nothing."""
    cut: Cut = {}
    for name, mask in keep.items():
        for axis in range(min(mask.ndim, 2)):
            rest = [other for other in range(mask.ndim) if other != axis]
            line = mask.any(rest) if rest else mask
            if not line.all():
                cut.setdefault(name, {})[axis] = line.nonzero().flatten()
    return cut


def steps(stage: Stage, work: State, batches: Iterable[Any], round: Round) -> State:
    """Take the steps of a stage; where its mask is made of rows and columns, on the slice."""
    if not stage.sliceable or stage.masks is None:
        return plain_steps(stage, work, batches, round)
    forward, _ = stage.masks(work)
    cut = cut_of(forward)
    shapes = {name: forward[name].shape for name in cut}
    small = plain_steps(stage, _narrowed(work, cut, shapes), batches, round)
    return _widened(small, cut, work, shapes)


def _narrowed(state: State, cut: Cut, shapes: Mapping[str, torch.Size]) -> State:
    """Shrink every tree of a state, momentum and masks too."""
    nested = {
        key: _narrowed(value, cut, shapes)
        for key, value in state.items()
        if isinstance(value, dict)
    }
    return {**state, **nested, **shrink(_cuttable(state, shapes), cut)}


def _widened(small: State, cut: Cut, into: State, shapes: Mapping[str, torch.Size]) -> State:
    """Put every tree of a small state back into the full one."""
    nested = {
        key: _widened(value, cut, into[key], shapes)
        for key, value in small.items()
        if isinstance(value, dict)
    }
    full = _cuttable(into, shapes)
    grown = grow({name: small[name] for name in full}, cut, full)
    return {**small, **nested, **grown}


def _cuttable(state: State, shapes: Mapping[str, torch.Size]) -> Tree:
    return {
        name: state[name]
        for name, shape in shapes.items()
        if isinstance(state.get(name), Tensor) and state[name].shape == shape
    }


def keep(cut: Cut, tree: Tree) -> Tree:
    """Return one bool per entry, true where the cut keeps it, for the tensors that are cut."""
    return {name: _inside(value, cut[name]) for name, value in tree.items() if name in cut}


def count(cut: Cut, tree: Mapping[str, Tensor]) -> int:
    """Count the entries that a cut leaves of a tree."""
    total = 0
    for name, value in tree.items():
        sizes = {axis: len(kept) for axis, kept in cut.get(name, {}).items()}
        total += math.prod(sizes.get(axis, size) for axis, size in enumerate(value.shape))
    return total


def shrink(tree: Tree, cut: Cut) -> Tree:
    """Return the smaller tensors that the cut leaves."""
    small = dict(tree)
    for name in tree.keys() & cut.keys():
        for axis, kept in cut[name].items():
            small[name] = small[name].index_select(axis, kept)
    return small


def grow(small: Tree, cut: Cut, into: Tree) -> Tree:
    """Put small tensors back into full ones, which keep their bits everywhere else."""
    inside = keep(cut, into)
    back = {
        # Both sides run through the kept entries in the same order, because indices ascend.
        name: into[name].masked_scatter(inside[name], value) if name in inside else value
        for name, value in small.items()
    }
    return {**into, **back}


def _inside(value: Tensor, axes: dict[int, Tensor]) -> Tensor:
    lines = []
    for axis, kept in axes.items():
        line = torch.zeros(value.shape[axis], dtype=torch.bool, device=value.device)
        lines.append(Axis(axis).expand(line.index_fill(0, kept, True), value))
    return torch.stack(lines).all(0)


def _chain(task: Task) -> list[tuple[str, int]]:
    """List the layers: (prefix of its tensors' names, channels per group, or 0 for no norm)."""
    chain = []
    for path, module in task.module.named_modules():
        prefix = f"{path}." if path else ""
        per_group = getattr(module, "per_group", 0)
        plain = isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if per_group or (plain and getattr(module, "groups", 1) == 1):
            chain.append((prefix, per_group))
        else:
            owned = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            _fit(prefix, not owned and not isinstance(module, tuple(KINDS)))
    return chain


def _count(width: int, share: float, step: int) -> int:
    """Return how many outputs stay: whole groups, at least one."""
    # The small term undoes the rounding of products such as 0.07 × 100.
    wanted = max(1, math.ceil(share * width - 1e-9))
    return math.ceil(wanted / step) * step


def _features(reader: str, before: Tensor, after: Tensor) -> int:
    """Return how many inputs of a layer come from one output of the layer before it."""
    features, rest = divmod(after.shape[1], len(before))
    flattened = before.ndim > 2 and after.ndim == 2
    _fit(reader, not rest and (features == 1 or flattened))
    return features


def _fit(layer: str, fits: bool) -> None:
    """Refuse a network whose slice would compute something else than its masked version."""
    if not fits:
        raise MasqueradeError(
            "E202",
            f"layer `{layer.removesuffix('.') or 'the network itself'}` cannot be sliced; "
            "a network of several widths is a chain of Linear, Conv (of one group) and "
            "ChannelGroupNorm layers, registered in order",
        )
