"""What a run cost, as means per client: bytes, FLOPs, and what lies on a device."""

from collections.abc import Callable, Sequence

import torch

from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.core.task import Task
from masquerade.cost import storage
from masquerade.cost.flops import Flops
from masquerade.simulation.server import Server
from masquerade.simulation.state import WAYS, Record, RunState


def so_far(state: RunState, clients: int) -> Record:
    """Return the bytes and FLOPs of training until now."""
    cost, names = state.costs["train"], {"down": "down", "up": "up", "masked": "flops"}
    return {new: cost[old] / clients for old, new in names.items()}


def bytes_and_flops(state: RunState, clients: int, adapt: Flops | None) -> Record:
    """Return the costs of all training rounds; those of setup and of adapting stand apart."""
    found: Record = {}
    for kind, sums in state.costs.items():
        mean = {name: value / clients for name, value in sums.items()}
        costs = {
            "bytes": {"down": mean["down"], "up": mean["up"]},
            "parts": {way: _parts(mean, way) for way in ("down", "up")},
            "flops": {way: mean[way] for way in WAYS},
            "paper": {
                "bytes": (mean["values_down"] + mean["values_up"]) / 2,
                "flops": mean["paper"],
            },
        }
        found |= costs if kind == "train" else {kind: costs}
    if adapt is not None:
        found["adapt"] = {
            "bytes": {"down": 0.0, "up": 0.0},
            "flops": {way: float(getattr(adapt.summed(), way).mean()) for way in WAYS},
            "paper": {"bytes": 0.0, "flops": float(adapt.summed().paper.mean())},
        }
    return found


def _parts(costs: Record, way: str) -> Record:
    """Return the bytes of one direction by part."""
    prefix = f"{way}/"
    return {n.removeprefix(prefix): size for n, size in costs.items() if n.startswith(prefix)}


def by_layer(state: RunState, clients: int) -> Record:
    """Return FLOPs by phase and layer; what is in no layer is called "beside"."""
    return {
        phase: {
            layer.removesuffix(".weight") or "beside": {
                way: count / clients for way, count in counts.items()
            }
            for layer, counts in layers.items()
        }
        for phase, layers in state.layers.items()
    }


def parameters(task: Task, models: Sequence[Message]) -> Record:
    """Return how many parameters the personal models keep, and their share."""
    names, all_of_them = task.parameter_names, task.parameters
    kept = sum(_kept(model, name) for model in models for name in names) / len(models)
    return {"parameters": all_of_them, "kept": kept, "density": kept / all_of_them}


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
) -> Record:
    """Return the bytes on a client's device: its model, its state, and what messages refer to.

    `as_received` rounds a download as it comes out at a client.
    """
    totals = dict.fromkeys(("model", "state", "session"), 0)
    last = server.round("train", max(0, state.number - 1))
    for id, model in zip(server.known, models, strict=True):
        ids = torch.tensor([id])
        row, client = (tree.take(s.take(ids), 0) for s in (state.rows, state.clients))
        download = server.method.download(server.task, state.server, row, last)
        held = {name: words[id].to(server.device) for name, words in state.session.items()}
        totals["model"] += storage.model_bytes(model)
        totals["state"] += storage.state_bytes(client, model)
        totals["session"] += storage.session_bytes(held, as_received(download, id), client, model)
    return {name: total / len(models) for name, total in totals.items()}
