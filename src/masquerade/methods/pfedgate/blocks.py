"""Tensors cut into blocks, and what each block costs; `knapsack` fills a budget with them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from masquerade.core.part import Axis, Blocks, Part
from masquerade.core.task import Task
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError
from masquerade.methods.pfedgate import knapsack

# Differs: the release rounds to a tenth, and the order of blocks decides among many ties.
FINEST = 2**-16
"""Scores that differ by less are equal, so that rounding decides nothing: the first block wins."""


@dataclass(frozen=True)
class Layout:
    """The blocks of all tensors, one after another."""

    grain: dict[str, Blocks | Axis]
    lengths: dict[str, tuple[int, ...]]
    """Of every tensor how many bits of its grain each block covers."""
    sizes: Tensor
    """Parameters [blocks]."""
    costs: Tensor
    """What a block costs [blocks]."""
    always: Tensor
    """Which blocks are always on [blocks]: the first of every tensor."""
    units: tuple[int, ...]
    """What a block costs in steps of the exact choice, rounded up; 0 where it is always on."""
    step: float
    """The length of such a step."""
    least: float
    """The share of every tensor that its first block takes at most."""

    def tensors(self, flags: Tensor) -> list[tuple[str, Tensor]]:
        """Return the flags [..., blocks] tensor by tensor."""
        pieces = torch.split(flags, [len(each) for each in self.lengths.values()], -1)
        return list(zip(self.lengths, pieces, strict=True))

    def keep(self, flags: Tensor) -> Tree:
        """Return the flags [blocks] as the masks of a part."""
        return {
            name: Blocks(self.lengths[name]).expand(own, own.new_empty(sum(self.lengths[name])))
            if isinstance(self.grain[name], Axis)
            else own
            for name, own in self.tensors(flags)
        }

    def expand(self, flags: Tensor, tree: Mapping[str, Tensor]) -> Tree:
        """Return one flag, or one number, for every entry of the tensors that have blocks."""
        return {
            name: self.grain[name].expand(bits, tree[name])
            for name, bits in self.keep(flags).items()
        }

    def shares(self, flags: Tensor) -> Tree:
        """Return the share of every tensor that flags [..., blocks] keep, with a last axis of 1."""
        counts = self.tensors(self.sizes)
        return {
            name: (own * size).sum(-1, keepdim=True) / size.sum()
            for (name, own), (_, size) in zip(self.tensors(flags), counts, strict=True)
        }

    def part(self, values: Tree, flags: Tensor) -> Part:
        """Return the part that holds some blocks."""
        return Part(values, self.keep(flags), self.grain)

    def room(self, share: float) -> Tensor:
        """Return what a client that may spend a share has left after the blocks it must have."""
        if share < self.least:
            raise MasqueradeError(
                "E202",
                f"a client may hold {share:g} of the model, and the blocks that are always on take "
                f"{self.least:g}; raise the budget (`density`, `data.budgets`) or lower `least`",
            )
        # The small term undoes the rounding of products such as 0.3 × 10.
        total = self.costs.sum() * share * (1 + 1e-12)
        return total - self.costs[self.always].sum()

    def most(self, room: Tensor) -> dict[str, int]:
        """Return the most entries of every tensor that a client can have."""
        found = {}
        pieces = (self.tensors(each) for each in (self.sizes, self.costs, self.always))
        for (name, sizes), (_, costs), (_, always) in zip(*pieces, strict=True):
            price = float(costs.sum()) / int(sizes.sum())
            first = int(sizes[always].sum())
            found[name] = min(int(sizes.sum()), first + math.floor(float(room) / price))
        return found

    def choose(self, scores: Tensor, room: Tensor, exact: bool = False) -> Tensor:
        """Choose blocks by scores [blocks] so that those not always on cost at most `room`."""
        values = (scores.detach() / FINEST).round()
        greedy = knapsack.greedy(values, self.costs, self.always, room)
        if not exact:
            return greedy
        best = knapsack.exact(values, self.units, self.always, room, self.step)
        # Where costs are rounded, many small blocks may lose to the greedy choice.
        gain = (best.to(values.dtype) - greedy.to(values.dtype)) * values
        return torch.where(gain.sum() >= 0, best, greedy)


@lru_cache(maxsize=8)
def layout(
    task: Task,
    factor: int,
    least: float,
    split: str = "flat",
    cost: str = "parameters",
    table: tuple[float, ...] = (),
) -> Layout:
    """Cut every trainable tensor of a task into a first block and `factor` − 1 equal ones.

    The first block has the first ⌊`least` · d⌋ of d entries; where that is 0, there is none.
    `split` says what is cut: the flattened tensor ("flat"), its outputs ("filter") or its inputs
    ("channel"). `cost` is "parameters", "flops" (how often an entry is used on one sample), or
    "table": what each whole tensor costs, in the order of the network.
    """
    names = [name for name in task.initial if task.trainable(name)]
    prices = _prices(task, names, cost, table)
    grain: dict[str, Blocks | Axis] = {}
    lengths, sizes, costs, always = {}, [], [], []
    for name in names:
        shape = task.initial[name].shape
        axis = min({"filter": 0, "channel": 1}.get(split, 0), len(shape) - 1)
        whole = split == "flat" or not shape
        count = shape.numel() if whole else shape[axis]
        lengths[name], first = _cut(count, factor, least)
        each = shape.numel() // count
        grain[name] = Blocks(lengths[name]) if whole else Axis(axis)
        sizes += [length * each for length in lengths[name]]
        costs += [length * each * prices[name] for length in lengths[name]]
        always += [first and place == 0 for place in range(len(lengths[name]))]
    device = task.initial[names[0]].device
    numbers = torch.tensor(costs, dtype=torch.float64, device=device)
    flags = torch.tensor(always, device=device)
    entries = torch.tensor(sizes, device=device)
    return Layout(grain, lengths, entries, numbers, flags, *knapsack.steps(costs, always), least)


def _cut(count: int, factor: int, least: float) -> tuple[tuple[int, ...], bool]:
    """Return the lengths of the blocks of `count` entries, and whether the first is always on."""
    # Differs: where nothing fits into a first block, none is always on; one would break the budget.
    first = math.floor(count * least + 1e-9)
    rest = count - first
    # Differs: rounded up, the last one smaller; rounded down, entries would be left over.
    each = max(1, math.ceil(rest / (factor - 1)))
    equal = [min(each, rest - start) for start in range(0, rest, each)]
    return (*([first] if first else []), *equal), first > 0


def _prices(task: Task, names: list[str], cost: str, table: tuple[float, ...]) -> dict[str, float]:
    """Return what one entry of every tensor costs."""
    if cost == "parameters":
        return dict.fromkeys(names, 1.0)
    if cost == "flops":
        return {name: float(count) for name, count in task.positions().items()}
    if len(table) != len(names):
        listed = ", ".join(names)
        raise MasqueradeError(
            "E202", f"`table` has {len(table)} costs for {len(names)} tensors; one each: {listed}"
        )
    return {
        name: whole / task.initial[name].numel() for name, whole in zip(names, table, strict=True)
    }
