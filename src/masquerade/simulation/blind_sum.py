"""What `aggregate` makes of uploads: a sum that hides who sent what, or something that sees it.

It is run on uploads that differ in one client, with an average that is always the same. What
changes then was learned of that client by another way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.aggregation import Aggregation
from masquerade.core.part import Part
from masquerade.core.round import ClientInfo, Cohort
from masquerade.core.tree import State, Tree
from masquerade.engine.base import EngineContext
from masquerade.engine.exchange import Channel


@dataclass(frozen=True)
class _Recorded(Aggregation):
    """Learns nothing of clients, and notes what it is asked to average."""

    calls: list[tuple[Part, Mapping[str, Tensor]]] = field(default_factory=list)

    def reduce(
        self,
        part: Part,
        weights: Tensor,
        otherwise: Mapping[str, Tensor],
        absent: Literal["skip", "zero"] = "skip",
        least: int = 1,
    ) -> Tree:
        """Leave everything as it was."""
        self.calls.append((part, otherwise))
        return {name: otherwise[name] for name in part.values}


def obstacles(context: EngineContext, info: ClientInfo) -> list[str]:
    """Say why the server needs more of uploads than one mean of numbers; nothing if it does not.

    All sorts of rounds of the run are tried, without a batch of data.
    """
    method, task = context.method, context.task
    channel, server = Channel("", context, info), method.server_init(task)
    row = method.row_init(task, info)
    found: dict[str, None] = {}
    for kind, phase in context.phases():
        if kind == "adapt":
            continue
        round = context.round(kind, phase, 0)
        _, upload = channel.templates(round, 0)
        if not upload:
            continue
        rows = tree.stack([row, row])
        results, calls = [], []
        for first in (upload, {name: _another(part) for name, part in upload.items()}):
            record = _Recorded()
            cohort = Cohort(torch.tensor([0, 1]), torch.tensor([1, 1]), 2, 2, record)
            results.append(
                method.aggregate(task, server, rows, tree.stack([first, upload]), cohort, round)
            )
            calls.append(record.calls)
        found |= dict.fromkeys(_why(results, calls))
    return list(found)


def _why(
    results: list[tuple[State, State]], calls: list[list[tuple[Part, Mapping[str, Tensor]]]]
) -> list[str]:
    """Compare what came of uploads that differ in the first client."""
    before, after = (tree.named({"server": new, "rows": rows}) for new, rows in results)
    why = [f"`{path}` is made of uploads" for path in before if _differ(before[path], after[path])]
    if len(calls[0]) != 1 or len(calls[1]) != 1:
        return [*why, f"{len(calls[0])} averages in a round"]
    (one, otherwise), (other, instead) = calls[0][0], calls[1][0]
    if any(_differ(otherwise[name], instead[name]) for name in otherwise):
        why.append("an average falls back on what is made of uploads")
    own, same = (tree.named({"part": tree.take(part, 1)}) for part in (one, other))
    if any(_differ(own[path], same[path]) for path in own):
        why.append("what is averaged of one client depends on another")
    whole = [name for name, value in one.values.items() if not value.is_floating_point()]
    return [*why, *[f"`{name}` is no number" for name in whole[:1]]]


def _differ(one: Tensor, other: Tensor) -> bool:
    same = (one == other) | ((one != one) & (other != other))
    return one.shape != other.shape or not bool(same.all())


def _another(part: Part) -> Part:
    """Return other values and masks of the same form."""

    def changed(value: Tensor) -> Any:
        return ~value if value.dtype is torch.bool else value + 1

    return replace(part, values=tree.each(changed, part.values), keep=tree.each(changed, part.keep))
