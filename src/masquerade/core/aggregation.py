"""How clients' values become one: the mean, or a rule that a few false updates cannot move far.

Robust rules count clients equally, because whoever weighs more could move them further. They look
at the clients that hold a coordinate, and at nothing else.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from masquerade.core.average import average, like, votes
from masquerade.core.part import Part
from masquerade.core.tree import Tree, onto, select

RULES = ("mean", "median", "trimmed_mean")
FAR = 1000.0
"""An update so many times longer than its bound is left out. Scaled down, nothing but one of its
numbers would remain, and the rest would be a vote for what was there."""
COLUMNS = 1 << 16
"""How many coordinates of all clients are looked at together."""


@dataclass(frozen=True)
class Aggregation:
    """A rule, and what is done before it; the defaults are the mean by samples."""

    rule: str = "mean"
    """"mean" by weights; the "median", or the "trimmed_mean", of clients that count equally."""
    trim: float = 0.2
    """Share of a coordinate's contributors that the trimmed mean leaves out at either end."""
    clip_updates: float = 0.0
    """The most that an update may differ from what the server had, as a multiple of the median over
    the clients: root mean square of what a client holds of a part. A longer one is scaled down, one
    that is a thousand times longer left out, and 0 scales none."""
    min_contributors: int = 1
    """A coordinate that fewer clients hold keeps its value, bit for bit."""

    @property
    def plain(self) -> bool:
        """Tell whether it is the mean, and nothing else."""
        return self.rule == "mean" and not self.clip_updates and self.min_contributors <= 1

    @property
    def quorum(self) -> int:
        """Return how many answers a round needs to change anything."""
        return 1

    def reduce(
        self,
        part: Part,
        weights: Tensor,
        otherwise: Mapping[str, Tensor],
        absent: Literal["skip", "zero"] = "skip",
        least: int = 1,
    ) -> Tree:
        """Reduce a stacked part [clients, …] to one tree, as `average` does for the mean."""
        least = max(least, self.min_contributors)
        if self.clip_updates:
            part, weights = clipped(part, weights, otherwise, self.clip_updates)
        if self.rule == "mean":
            return average(part, weights, otherwise, absent, least)
        part = _of_some(part, weights > 0)
        return {
            name: self._ranked(part, name, otherwise[name], absent == "zero", least)
            for name in part.values
        }

    def _ranked(self, part: Part, name: str, old: Tensor, zero: bool, least: int) -> Tensor:
        """Reduce one tensor by the ranks of its values, some coordinates at a time."""
        values, held = part.values[name], part.held(name)
        clients, found = len(values), [old.reshape(-1)[:0]]
        if clients < max(1, least):
            return old
        for some, holds, before in _columns(values, held, old):
            enough = votes(holds) >= max(1, least) if holds is not None else None
            if holds is None:
                count = torch.full_like(before, clients, dtype=torch.int64)
            elif zero:
                some, count = select(holds, some), torch.full_like(before, clients).long()
            else:
                count = votes(holds).long()
                # What is not held stands behind everything that is.
                some = torch.where(holds, some.double(), math.inf)
            ordered = some.double().sort(0).values
            if self.rule == "median":
                middle, settled = _median(ordered, count, bits=values.dtype is torch.bool)
            else:
                middle, settled = _trimmed(ordered, count, self.trim), None
            new = like(middle, before)
            for condition in (enough, settled):
                new = new if condition is None else torch.where(condition, new, before)
            found.append(new)
        return torch.cat(found).reshape(old.shape)


PLAIN = Aggregation()


def _of_some(part: Part, some: Tensor) -> Part:
    """Leave out all other clients."""
    if bool(some.all()):
        return part
    places = torch.nonzero(some).flatten()

    def taken(tree: Tree) -> Tree:
        return {name: value[onto(places, value.device)] for name, value in tree.items()}

    return Part(taken(part.values), taken(part.keep), part.grain, part.dtype, part.scale)


def _columns(
    values: Tensor, held: Tensor | None, old: Tensor
) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
    """Go through the coordinates of a tensor: (values, who holds them, what the server had)."""
    flat, before = values.reshape(len(values), -1), old.reshape(-1)
    holds = None if held is None else held.reshape(len(values), -1)
    for begin in range(0, len(before), COLUMNS):
        some = slice(begin, begin + COLUMNS)
        yield flat[:, some], None if holds is None else holds[:, some], before[some]


def _median(ordered: Tensor, count: Tensor, bits: bool) -> tuple[Tensor, Tensor | None]:
    """Return the middle of the first `count` of every column; of bits also where it is no tie."""
    places = ((place // 2).clamp(min=0) for place in (count - 1, count))
    lower, upper = (ordered.gather(0, place[None])[0] for place in places)
    # Of zeros there is one: which of two stands in the middle depends on the order of clients.
    return (lower + upper) / 2 + 0, lower == upper if bits else None


def _trimmed(ordered: Tensor, count: Tensor, trim: float) -> Tensor:
    """Return the mean of the first `count` of every column without so many at either end."""
    # The small term undoes the rounding of products such as 0.3 × 10.
    out = (count.double() * trim + 1e-9).floor()
    total = torch.zeros_like(ordered[0])
    for rank, values in enumerate(ordered):
        total += torch.where((rank >= out) & (rank < count - out), values, 0)
    mean: Tensor = total / (count - 2 * out).clamp(min=1)
    return mean


def clipped(
    part: Part, weights: Tensor, otherwise: Mapping[str, Tensor], multiple: float
) -> tuple[Part, Tensor]:
    """Scale updates down that differ by more than a multiple of the median from what was there.

    Those that are too long by far are left out: it returns what is left, and its weights. A
    client's distance is the root mean square over the floating-point entries that it holds, of all
    tensors together. Of an even number the lower middle is the median: then half of the clients
    cannot raise it. Bits and whole numbers are left alone.
    """
    names = [name for name, value in part.values.items() if value.is_floating_point()]
    if not names or len(part.values[names[0]]) < 2:
        return part, weights
    distances = rms(part, names, otherwise)
    if bool(distances.isnan().all()):
        return part, weights
    # Of nothing held there is no distance, and no reason to leave it out.
    some = ~(distances > FAR * multiple * _median_of(distances))
    part, weights, distances = (
        _of_some(part, some),
        weights[onto(some, weights.device)],
        distances[some],
    )
    bound = multiple * _median_of(distances)
    over = [(place, each) for place, each in enumerate(distances.tolist()) if each > bound]
    if not over:
        return part, weights
    values = {
        name: value.clone() if name in names else value for name, value in part.values.items()
    }
    for name in names:
        held, old = part.held(name), otherwise[name].double()
        for place, distance in over:
            mine = values[name][place]
            near = old + bound / distance * (mine.double() - old)
            new = near.to(mine.dtype)
            values[name][place] = new if held is None else torch.where(held[place], new, mine)
    return Part(values, part.keep, part.grain, part.dtype, part.scale), weights


def _median_of(distances: Tensor) -> float:
    """Return the lower middle of those that are known."""
    return float(distances[~distances.isnan()].median())


def rms(part: Part, names: list[str], otherwise: Mapping[str, Tensor]) -> Tensor:
    """Return for every client how far what it holds is from what was there; NaN of nothing held."""
    square, count = torch.zeros(2, len(part.values[names[0]]), dtype=torch.float64)
    for name in names:
        for some, holds, before in _columns(part.values[name], part.held(name), otherwise[name]):
            old = before.double()
            meant = some.double() if holds is None else torch.where(holds, some.double(), old)
            # By rows, of which there are several: their sums depend on no number of threads.
            square += (meant - old).square().sum(1).cpu()
            count += len(before) if holds is None else holds.sum(1).cpu()
    root: Tensor = (square / count).sqrt()
    return root
