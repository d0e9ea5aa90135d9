"""What crossed between clients and the server, taken from the messages of a run as it had them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from masquerade.core.part import Message, Part
from masquerade.core.task import Task
from masquerade.core.tree import take
from masquerade.results import Sent
from masquerade.results.privacy import DOWN, HEADER, UP
from masquerade.simulation.state import RunState

if TYPE_CHECKING:
    from masquerade.simulation.server import Answers, Server, Turn

Kinds = Mapping[str, tuple[str, ...]]


def kinds_of(task: Task, part: Part) -> Kinds:
    """Sort the tensors of a part by what they tell: weights, statistics, bits, numbers, masks."""
    found: dict[str, list[str]] = {}
    for name, values in part.values.items():
        found.setdefault(_kind(task, name, values.is_floating_point()), []).append(name)
    if part.keep:
        found["mask"] = list(part.keep)
    return {kind: tuple(names) for kind, names in found.items()}


def _kind(task: Task, name: str, floating: bool) -> str:
    """Name a tensor by the tensor of the network whose name it has."""
    if name in task.initial and not task.trainable(name):
        return "statistics"
    if not floating:
        return "bits"
    return "weights" if name in task.initial else "numbers"


def note_sent(
    state: RunState, server: "Server", turn: "Turn", answers: "Answers", cost: Mapping[str, float]
) -> None:
    """Note what the messages of a turn had, their bytes, and how many uploads were aggregated."""
    taken = len(answers.ids) if turn.kind == "train" else 0
    for way in (UP, DOWN):
        parts = {name for name in cost if name.startswith(f"{way}/")}
        headers = cost[way] - sum(cost[name] for name in parts)
        known = {name: cost[name] for name in sorted(parts)} | {f"{way}/{HEADER}": headers}
        for name, size in known.items():
            part = name.removeprefix(f"{way}/")
            key = turn.phase, way, part
            if key not in state.sent:
                if not size:
                    continue
                kinds = _seen(state, server, turn, answers, way).get(part, {HEADER: ()})
                state.sent[key] = Sent(*key, kinds)
            old = state.sent[key]
            fewest = min(filter(None, (old.fewest, taken)), default=0)
            state.sent[key] = replace(old, bytes=old.bytes + size, fewest=fewest)


def _seen(
    state: RunState, server: "Server", turn: "Turn", answers: "Answers", way: str
) -> dict[str, Kinds]:
    """Return what the parts of a turn's messages have."""
    message: Message = answers.received.uploads
    if way == DOWN:
        row = take(state.rows.take(turn.asked[:1]), 0)
        message = server.method.download(server.task, state.server, row, turn.round)
    return {name: kinds_of(server.task, part) for name, part in message.items()}
