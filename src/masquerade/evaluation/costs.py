"""What a run cost, as means per client: bytes, FLOPs, and what lies on a device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.core.round import Round
from masquerade.core.task import Task
from masquerade.cost import storage
from masquerade.cost.before_use import needed
from masquerade.cost.flops import Flops as CountedFlops
from masquerade.cost.traffic import Traffic, measure_exchange
from masquerade.results import Bytes, Costs, Flops, ModelSize, PaperCosts, Spent, Storage
from masquerade.results.costs import Parts
from masquerade.simulation.server import Server
from masquerade.simulation.state import WAYS, RunState


def so_far(state: RunState, clients: int) -> dict[str, float]:
    """Return the bytes and FLOPs of training until now."""
    cost, names = state.costs["train"], {"down": "down", "up": "up", "masked": "flops"}
    return {new: cost[old] / clients for old, new in names.items()}


def total(
    server: Server, state: RunState, adapt: Spent | None, held: Storage, initial: float
) -> Costs:
    """Return the costs of a run; those of setup and before use stand apart."""
    clients = len(server.known)
    spent = {kind: _spent(sums, clients) for kind, sums in state.costs.items()}
    return Costs(
        train=spent["train"],
        setup=spent.get("setup"),
        adapt=adapt,
        layers=by_layer(state, clients),
        storage=held,
        initial=initial,
    )


def _spent(sums: Mapping[str, float], clients: int) -> Spent:
    mean = {name: value / clients for name, value in sums.items()}
    return Spent(
        bytes=Bytes(mean["down"], mean["up"]),
        parts=Parts(_parts(mean, "down"), _parts(mean, "up")),
        flops=Flops(*(mean[way] for way in WAYS)),
        paper=PaperCosts((mean["values_down"] + mean["values_up"]) / 2, mean["paper"]),
    )


def before_use(
    server: Server,
    state: RunState,
    view: str,
    adapting: CountedFlops,
    as_received: Callable[[Message, int], Message],
) -> Spent | None:
    """Return what a view costs before use: the download that it needs, and `adapting` it.

    None where it needs neither, as a model that lies with its client.
    """
    round = server.round("adapt", state.number, (view, False))
    traffic = _downloads(server, state, round, as_received)
    clients, counted = len(server.known), adapting.summed()
    down = sum(float(each.down) for each in traffic) / clients
    values = sum(float(each.values_down) for each in traffic) / clients
    if not down and not server.method.adapt(server.task, round):
        return None
    return Spent(
        bytes=Bytes(down, 0.0),
        flops=Flops(*(float(getattr(counted, way).mean()) for way in WAYS)),
        # Papers average the two directions.
        paper=PaperCosts(values / 2, float(counted.paper.mean())),
    )


def _downloads(
    server: Server,
    state: RunState,
    round: Round,
    as_received: Callable[[Message, int], Message],
) -> list[Traffic]:
    """Return what clients are sent before use: the parts that their models depend on."""
    found = []
    message, seen = None, dict[Any, Any]()
    for id in server.known:
        row, client, held = (each.one(id) for each in (state.rows, state.clients, state.session))
        # Where the server knows nothing of single clients, all are sent the same.
        if message is None or tree.leaves(row):
            sent = server.method.download(server.task, state.server, row, round)
            message, seen = as_received(sent, id), {}
        parts = needed(server.method, server.task, message, client, round)
        found.append(measure_exchange(parts, {}, held, 0, seen)[0])
    return found


def _parts(costs: Mapping[str, float], way: str) -> dict[str, float]:
    """Return the bytes of one direction by part."""
    prefix = f"{way}/"
    return {n.removeprefix(prefix): size for n, size in costs.items() if n.startswith(prefix)}


def by_layer(state: RunState, clients: int) -> dict[str, dict[str, Flops]]:
    """Return FLOPs by phase and layer; what is in no layer is called "beside"."""
    return {
        phase: {
            layer.removesuffix(".weight") or "beside": Flops(
                *(counts[way] / clients for way in WAYS)
            )
            for layer, counts in layers.items()
        }
        for phase, layers in state.layers.items()
    }


def model_size(task: Task, models: Sequence[Message]) -> ModelSize:
    """Return how many parameters the personal models keep, and their share."""
    counts = {name: sum(_kept(model, name) for model in models) for name in task.parameter_names}
    whole = {name: task.initial[name].numel() * len(models) for name in counts}
    layers = {name: counts[name] / whole[name] for name in counts if whole[name]}
    parameters, kept = task.parameters, sum(counts.values()) / len(models)
    return ModelSize(parameters, kept, kept / parameters, layers if counts != whole else {})


def _kept(model: Message, name: str) -> int:
    """Count the entries of a parameter that a model uses.

    Where bits alone speak of it, they choose from the initial weights (FedMask); beside numbers
    they say something else (DM-PFL+: which weights two models share).
    """
    parts = [part for part in model.values() if name in part.values]
    numbers = [part for part in parts if part.values[name].dtype is not torch.bool]
    count = 0
    for part in numbers or parts:
        value, held = part.values[name], part.held(name)
        used = torch.ones_like(value, dtype=torch.bool) if numbers else value
        count += int((used if held is None else used & held).sum())
    return count


def on_device(
    server: Server,
    state: RunState,
    models: Sequence[Message],
    as_received: Callable[[Message, int], Message],
) -> Storage:
    """Return the bytes on a client's device: its model, its state, and what messages refer to.

    `as_received` rounds a download as it comes out at a client.
    """
    totals = dict.fromkeys(("model", "state", "session"), 0)
    last = server.round("train", max(0, state.number - 1))
    for id, model in zip(server.known, models, strict=True):
        row, client, held = (each.one(id) for each in (state.rows, state.clients, state.session))
        download = server.method.download(server.task, state.server, row, last)
        totals["model"] += storage.model_bytes(model)
        totals["state"] += storage.state_bytes(client, model)
        totals["session"] += storage.session_bytes(held, as_received(download, id), client, model)
    return Storage(**{name: total / len(models) for name, total in totals.items()})
