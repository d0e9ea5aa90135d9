"""What `aggregate` makes of uploads: sums that hide who sent what, or something that sees it.

It is run on uploads that differ in one client, with an average that is always the same. What
changes then was learned of that client by another way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.aggregation import Aggregation
from masquerade.core.part import Message, Part
from masquerade.core.round import ClientInfo, Cohort, Round
from masquerade.core.tree import State, Tree
from masquerade.engine.base import EngineContext
from masquerade.engine.exchange import Channel

CHANGES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda value: ~value if value.dtype is torch.bool else value + 1,
    lambda value: ~value if value.dtype is torch.bool else -7 * value - 100,
)
"""How the upload of a client is made another."""


@dataclass(frozen=True)
class Reading:
    """How the server of a method reads uploads, over all sorts of rounds of a run."""

    closer: tuple[str, ...] = ()
    """What it learns of single clients."""
    averages: int = 0
    """How many means a round takes, at most."""
    masked: bool = False
    """Whether means are over those who hold a coordinate, or weighted by what clients sent."""
    bits: tuple[str, ...] = ()
    """Tensors that are averaged and are no numbers."""

    def __or__(self, other: "Reading") -> "Reading":
        return Reading(
            tuple(dict.fromkeys((*self.closer, *other.closer))),
            max(self.averages, other.averages),
            self.masked or other.masked,
            tuple(dict.fromkeys((*self.bits, *other.bits))),
        )

    @property
    def needs(self) -> list[str]:
        """Say what it needs beside one mean of numbers."""
        several = [f"{self.averages} averages in a round"] if self.averages > 1 else []
        return [*self.closer, *several, *(f"`{name}` is no number" for name in self.bits[:1])]

    @property
    def sums(self) -> str:
        """Say which sums over clients would do."""
        if self.closer:
            return "none"
        if not self.averages:
            return "nothing is sent"
        return "values, masks" if self.masked else "values"


@dataclass(frozen=True)
class _Average:
    """What an average was asked for."""

    part: Part
    weights: Tensor
    otherwise: Mapping[str, Tensor]


@dataclass(frozen=True)
class _Recorded(Aggregation):
    """Learns nothing of clients, and notes what it is asked for."""

    calls: list[_Average] = field(default_factory=list)

    def reduce(
        self,
        part: Part,
        weights: Tensor,
        otherwise: Mapping[str, Tensor],
        absent: Literal["skip", "zero"] = "skip",
        least: int = 1,
    ) -> Tree:
        """Leave everything as it was."""
        self.calls.append(_Average(part, weights, otherwise))
        return {name: otherwise[name] for name in part.values}


def reading(context: EngineContext, info: ClientInfo) -> Reading:
    """Find out how the server reads uploads; all sorts of rounds are tried, without data."""
    channel, found = Channel("", context, info), Reading()
    for kind, phase in context.phases():
        if kind != "adapt":
            round = context.round(kind, phase, 0)
            _, upload = channel.without_batch(round, 0)
            found |= _of_round(context, info, upload, round) if upload else Reading()
    return found


def _of_round(context: EngineContext, info: ClientInfo, upload: Message, round: Round) -> Reading:
    """Aggregate the uploads of two clients, the first of which sends one thing or another."""
    method, task = context.method, context.task
    server, row = method.server_init(task), method.row_init(task, info)
    ids, samples = torch.tensor([0, 1]), torch.tensor([1, 1])

    def aggregated(first: Message) -> tuple[State, list[_Average]]:
        record = _Recorded()
        cohort = Cohort(ids, samples, 2, 2, record)
        rows, uploads = tree.stack([row, row]), tree.stack([first, upload])
        new, known = method.aggregate(task, server, rows, uploads, cohort, round)
        return {"server": new, "rows": known}, record.calls

    before, found = aggregated(upload), Reading()
    for change in CHANGES:
        other = {name: _changed(part, change) for name, part in upload.items()}
        found |= _compared(before, aggregated(other))
    return found


def _compared(before: tuple[State, list[_Average]], after: tuple[State, list[_Average]]) -> Reading:
    """Compare what came of uploads that differ in the first client alone."""
    old, new = (tree.named(state) for state, _ in (before, after))
    closer = [f"`{path}` is made of uploads" for path in old if _differ(old[path], new[path])]
    masked, bits = False, dict[str, None]()
    if len(before[1]) != len(after[1]):
        closer.append("how many averages it takes depends on uploads")
    for one, other in zip(before[1], after[1], strict=False):
        if any(_differ(one.otherwise[name], other.otherwise[name]) for name in one.otherwise):
            closer.append("an average falls back on what is made of uploads")
        mine, same = (tree.named({"part": tree.take(each.part, 1)}) for each in (one, other))
        apart = any(_differ(mine[path], same[path]) for path in mine)
        if apart or _differ(one.weights[1], other.weights[1]):
            closer.append("what is averaged of one client depends on another")
        masked |= bool(one.part.keep) or _differ(one.weights, other.weights)
        values = one.part.values.items()
        bits |= dict.fromkeys(name for name, each in values if not each.is_floating_point())
    return Reading(tuple(closer), len(before[1]), masked, tuple(bits))


def _differ(one: Tensor, other: Tensor) -> bool:
    same = (one == other) | ((one != one) & (other != other))
    return one.shape != other.shape or not bool(same.all())


def _changed(part: Part, change: Callable[[Tensor], Tensor]) -> Part:
    keep = tree.each(torch.logical_not, part.keep)
    return replace(part, values=tree.each(change, part.values), keep=keep)
