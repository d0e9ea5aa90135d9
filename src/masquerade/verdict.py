"""What a run's models are worth and cost: the figures of `metrics.jsonl` and `summary.json`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.cost import memory, storage
from masquerade.cost.compute import Flops
from masquerade.progress import WAYS, Progress, Record, timed
from masquerade.report.overlap import overlap
from masquerade.simulation import Simulation


def look(made: Simulation, progress: Progress) -> Record:
    """Measure every view that needs no training, on the clients' own data."""
    own = list(getattr(made.federation, made.evaluate.split))
    record: Record = {"round": progress.number, "views": {}}
    for view in made.views:
        if not made.trains(view):
            found = made.judge(progress, view, own)
            record["views"][view] = spread(made, _means(found.scores))
            record |= _notes(made, view, found.models)
    record |= _sent(made, progress)
    return record


def _notes(made: Simulation, view: str, models: list[Message]) -> Record:
    """Return what the method notes of its default view's models, averaged over clients."""
    if view != made.method.views[0]:
        return {}
    notes = tree.stack([made.method.notes(made.task, model) for model in models])
    means = {name: values.double().mean(0).tolist() for name, values in notes.items()}
    return {"notes": means} if means else {}


def _sent(made: Simulation, progress: Progress) -> Record:
    cost, clients = progress.costs["train"], len(made.known)
    names = {"down": "down", "up": "up", "masked": "flops"}
    return {new: cost[old] / clients for old, new in names.items()}


def spread(
    made: Simulation, values: Sequence[float | None], ids: Sequence[int] | None = None
) -> dict[str, float]:
    """Describe one figure per client: mean, std, mean over all samples, bottom decile."""
    judged = getattr(made.federation, made.evaluate.split)
    pairs = zip(values, [len(judged[id]) for id in ids or made.known], strict=True)
    present = [(value, count) for value, count in pairs if value is not None]
    figures = torch.tensor([value for value, _ in present], dtype=torch.float64)
    weights = torch.tensor([count for _, count in present], dtype=torch.float64)
    worst_first = figures.sort(descending=made.task.better == "lower").values
    return {
        "mean": float(figures.mean()),
        "std": float(figures.std(correction=0)),
        "weighted": float((figures * weights).sum() / weights.sum()),
        "bottom_decile": float(worst_first[len(figures) // 10]),
    }


def verdict(made: Simulation, progress: Progress) -> tuple[list[Record], dict[str, list[Message]]]:
    """Judge every view, shifted and not: one summary per view, and the personal models."""
    with timed(progress.seconds, "evaluation"):
        summaries, personal = _judged(made, progress)
    progress.memory = memory.most(progress.memory, memory.peak(made.device))
    for summary in summaries:
        summary["seconds"] = sum(progress.seconds.values())
        summary["time"] = dict(progress.seconds)
        summary["memory"] = dict(progress.memory)
    return summaries, personal


def _judged(made: Simulation, progress: Progress) -> tuple[list[Record], dict[str, list[Message]]]:
    asked = [
        torch.unique(torch.cat([chosen[id] for draws in made.sets.values() for chosen in draws]))
        for id in range(len(made.whos))
    ]
    views = list(made.views)
    if "global" in made.method.views and "global" not in views:
        views.append("global")
    judged, costs, personal = {}, {}, {}
    for view in views:
        found = made.judge(progress, view, asked)
        personal[view], costs[view] = found.models, found.flops
        judged[view] = _accuracy(made, asked, [score.cpu() for score in found.scores])
    summaries = []
    for view in made.views:
        accuracy = dict(judged[view])
        per_client = accuracy.pop("per_client")
        if "global" in judged:
            accuracy["global"] = {key: judged["global"][key] for key in ("own", "shift")}
        history = _history(made, progress, view, accuracy["own"])
        history[-1] |= _notes(made, view, personal[view])
        summaries.append(
            {
                "view": view,
                "seed": made.seed,
                "rounds": progress.number,
                "clients": len(made.known),
                "network": made.train.model or type(made.task.module).__name__,
                "metric": getattr(made.task.metric, "__name__", "metric"),
                "better": made.task.better,
                "accuracy": accuracy,
                **_cost(made, progress, costs[view] if made.trains(view) else None),
                "layers": _layers(made, progress),
                **_kept_parameters(made, personal[view]),
                "storage": _storage(made, progress, personal[view]),
                **overlap(personal[view]),
                "participations": _participations(made, progress),
                "diverged": progress.diverged,
                "refused": progress.refused,
                "per_client": {
                    "own": per_client,
                    "samples": made.samples[made.known].tolist(),
                    "ids": made.known,
                },
                "never_sampled": _never_sampled(made, progress),
                "rounds_to_80": _rounds_to_80(made, history),
                "history": history,
            }
            | _of_novel(made, progress, view, asked, accuracy)
        )
    return summaries, {view: personal[view] for view in made.views}


def _never_sampled(made: Simulation, progress: Progress) -> int:
    """Count the clients that could have taken part, and of whom no round was received."""
    taken: set[int] = set()
    for number in range(progress.number):
        ids = made.cohort(number)
        taken |= set(ids[made.participation.returning(number, ids)].tolist())
    return len(made.eligible) - len(taken)


def _of_novel(
    made: Simulation, progress: Progress, view: str, asked: list[Tensor], known: Record
) -> Record:
    """Judge the clients that were kept out of training, and say how far they fall behind."""
    if not made.novel:
        return {}
    found = made.judge(progress, view, asked, novel=True)
    accuracy = _accuracy(made, asked, [score.cpu() for score in found.scores], made.novel)
    gap = known["own"]["mean"] - accuracy["own"]["mean"]
    return {"novel": {"clients": len(made.novel), "accuracy": accuracy, "gap": gap}}


def _accuracy(
    made: Simulation, asked: list[Tensor], scores: list[Tensor], ids: Sequence[int] | None = None
) -> Record:
    """Read the figures of all shift degrees off the metric of each (client, sample)."""
    judged = dict(zip(ids or made.known, scores, strict=True))

    def figure(id: int, chosen: list[Tensor]) -> float | None:
        means = [
            float(judged[id][torch.searchsorted(asked[id], index)].double().mean())
            for index in chosen
            if len(index)
        ]
        return sum(means) / len(means) if means else None

    shift: Record = {}
    own: list[float | None] = []
    for degree, draws in made.sets.items():
        per_client = [figure(id, [chosen[id] for chosen in draws]) for id in judged]
        described = spread(made, per_client, ids)
        shift[str(degree)] = {"mean": described["mean"], "std": described["std"]}
        if degree == 0:
            own = per_client
    shift["averaged"] = sum(entry["mean"] for entry in shift.values()) / len(shift)
    return {"own": spread(made, own, ids), "shift": shift, "per_client": own}


def _cost(made: Simulation, progress: Progress, adapt: Flops | None) -> Record:
    """Return means per client over the training rounds; hello and adapt stand apart."""
    clients = len(made.known)
    found: Record = {}
    for kind, sums in progress.costs.items():
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


def _layers(made: Simulation, progress: Progress) -> Record:
    """Return FLOPs per client by phase and layer; what is in no layer is called "beside"."""
    clients = len(made.known)
    return {
        phase: {
            layer.removesuffix(".weight") or "beside": {
                way: count / clients for way, count in counts.items()
            }
            for layer, counts in layers.items()
        }
        for phase, layers in progress.layers.items()
    }


def _kept_parameters(made: Simulation, personal: list[Message]) -> Record:
    """Return how many parameters the personal models keep, and their share, as means."""
    names, all_of_them = made.task.parameter_names, made.task.parameters
    kept = sum(_kept(model, name) for model in personal for name in names) / len(personal)
    return {"parameters": all_of_them, "kept": kept, "density": kept / all_of_them}


def _storage(made: Simulation, progress: Progress, personal: list[Message]) -> Record:
    """Return the bytes on a client's device as means: its model, and what it keeps beside it."""
    model = sum(storage.model_bytes(model) for model in personal)
    state = 0
    for id, one in zip(made.known, personal, strict=True):
        client = tree.take(progress.clients.take(torch.tensor([id])), 0)
        state += storage.state_bytes(client, one)
    return {"model": model / len(personal), "state": state / len(personal)}


def _participations(made: Simulation, progress: Progress) -> float:
    """Return in how many rounds a client was sampled, on average."""
    sampled = sum(len(made.cohort(number)) for number in range(progress.number))
    return sampled / len(made.known)


def _history(made: Simulation, progress: Progress, view: str, own: Record) -> list[Record]:
    """Return the curve of a view; one that trains has its last point only."""
    notes = view == made.method.views[0]
    points = [
        {
            "round": record["round"],
            "own": record["views"][view]["mean"],
            "std": record["views"][view]["std"],
            **{name: record[name] for name in ("down", "up", "flops")},
            **({"notes": record["notes"]} if notes and "notes" in record else {}),
        }
        for record in progress.history
        if view in record["views"] and record["round"] < progress.number
    ]
    last = {"round": progress.number, "own": own["mean"], "std": own["std"]}
    return [*points, last | _sent(made, progress)]


def _rounds_to_80(made: Simulation, history: list[Record]) -> int:
    """Return the first round that was looked at and has 80 % of the final figure."""
    final, last = history[-1]["own"], int(history[-1]["round"])
    if made.task.better == "higher":
        reached = [int(point["round"]) for point in history if point["own"] >= 0.8 * final]
    else:
        reached = [int(point["round"]) for point in history if 0.8 * point["own"] <= final]
    return reached[0] if reached else last


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


def _means(scores: Sequence[Tensor]) -> list[float | None]:
    """Average each client's samples; a client without samples has no figure, not a zero."""
    return [float(score.double().mean()) if len(score) else None for score in scores]
