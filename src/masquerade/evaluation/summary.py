"""What a run's models are worth and cost: the figures of `metrics.jsonl` and `summary.json`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.cost import memory, storage
from masquerade.cost.flops import Flops
from masquerade.data.corrupted_sets import Corrupted
from masquerade.data.registry import note_of
from masquerade.engine.base import Evaluation
from masquerade.evaluation.overlap import overlap
from masquerade.simulation.server import Simulation
from masquerade.simulation.state import WAYS, Progress, Record, timed

Group = tuple[str, bool]
"""A view, at the clients of the training or at novel ones."""
Figures = dict[str, list[float | None]]
"""One figure per client, by the step of something: a degree, a severity."""
AVERAGED = "averaged"


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
    """Judge every view, shifted, corrupted and not: one summary per view, and personal models."""
    with timed(progress.seconds, "evaluation"):
        summaries, personal = _judged(made, progress)
    progress.memory = memory.most(progress.memory, memory.peak(made.device))
    for summary in summaries:
        summary["seconds"] = sum(progress.seconds.values())
        summary["time"] = dict(progress.seconds)
        summary["memory"] = dict(progress.memory)
    return summaries, personal


def _judged(made: Simulation, progress: Progress) -> tuple[list[Record], dict[str, list[Message]]]:
    asked = _asked(made)
    views = list(made.views)
    if "global" in made.method.views and "global" not in views:
        views.append("global")
    groups = [(view, False) for view in views]
    groups += [(view, True) for view in made.views if made.novel]
    found = {(view, novel): made.judge(progress, view, asked, novel) for view, novel in groups}
    judged = {
        group: _accuracy(made, asked, [score.cpu() for score in each.scores], _ids(made, group))
        for group, each in found.items()
    }
    if made.corrupted is not None:
        models = {group: each.models for group, each in found.items()}
        for group, figures in under_corruption(made, made.corrupted, models).items():
            judged[group]["corruption"] = figures
    summaries = [_summary(made, progress, view, found, judged) for view in made.views]
    return summaries, {view: found[view, False].models for view in made.views}


def _asked(made: Simulation) -> list[Tensor]:
    """Return by client every sample that it is judged on at any degree of shift."""
    draws = [draw for sets in made.sets.values() for draws in sets.values() for draw in draws]
    return [
        torch.unique(torch.cat([chosen[id] for chosen in draws])) for id in range(len(made.infos))
    ]


def _summary(
    made: Simulation,
    progress: Progress,
    view: str,
    found: dict[Group, Evaluation],
    judged: dict[Group, Record],
) -> Record:
    """Return everything that is known of a view at the end."""
    accuracy, models = dict(judged[view, False]), found[view, False].models
    per_client = accuracy.pop("per_client")
    shared = judged.get(("global", False))
    if shared is not None:
        accuracy["global"] = {key: shared[key] for key in shared if key != "per_client"}
    history = _history(made, progress, view, accuracy["own"])
    history[-1] |= _notes(made, view, models)
    summary = {
        "view": view,
        "seed": made.seed,
        "rounds": progress.number,
        "clients": len(made.known),
        "network": made.train.model or type(made.task.module).__name__,
        "metric": getattr(made.task.metric, "__name__", "metric"),
        "better": made.task.better,
        "accuracy": accuracy,
        **_cost(made, progress, found[view, False].flops if made.trains(view) else None),
        "layers": _layers(made, progress),
        **_kept_parameters(made, models),
        "storage": _storage(made, progress, models),
        **overlap(models),
        "participations": _participations(made, progress),
        "diverged": progress.diverged,
        "refused": progress.refused,
        "per_client": {
            "own": per_client,
            "samples": made.samples[made.known].tolist(),
            "ids": made.known,
            **_names(made, made.known),
        },
        **_never(made, progress),
        "rounds_to_80": _rounds_to_80(made, history),
        "history": history,
    }
    if note := note_of(made.federation.name):
        summary["data_note"] = note
    if made.corrupted is not None:
        summary["corrupted_images"] = made.corrupted.source
    if made.novel:
        theirs = judged[view, True]
        summary["novel"] = {
            "clients": len(made.novel),
            "ids": made.novel,
            **_names(made, made.novel),
            "accuracy": theirs,
            "gap": accuracy["own"]["mean"] - theirs["own"]["mean"],
            "refused": {str(id): code for id, code in sorted(progress.turned_away.items())},
        }
    return summary


def _names(made: Simulation, ids: Sequence[int]) -> Record:
    """Return what the data call some clients, where they have names."""
    names = made.federation.names
    return {"names": [names[id] for id in ids]} if names else {}


def _never(made: Simulation, progress: Progress) -> Record:
    """Count the clients that could have taken part and never were asked, or never answered."""
    sampled: set[int] = set()
    heard: set[int] = set()
    for number in range(progress.number):
        ids = made.cohort(number)
        sampled |= set(ids.tolist())
        heard |= set(ids[made.participation.returning(number, ids)].tolist())
    there = len(made.eligible)
    return {"never_sampled": there - len(sampled), "never_heard": there - len(heard)}


def _ids(made: Simulation, group: Group) -> list[int]:
    """Return the clients of a group, in the order in which they are judged."""
    return made.novel if group[1] else made.known


def _accuracy(
    made: Simulation, asked: list[Tensor], scores: list[Tensor], ids: Sequence[int]
) -> Record:
    """Read the figures of all shift degrees off the metric of each (client, sample)."""
    judged = dict(zip(ids, scores, strict=True))

    def figure(id: int, chosen: list[Tensor]) -> float | None:
        places = [torch.searchsorted(asked[id], index) for index in chosen]
        return _mean([found for place in places for found in _means([judged[id][place]])])

    found: Record = {}
    own: list[float | None] = []
    for name, sets in made.sets.items():
        figures = {
            str(degree): [figure(id, [chosen[id] for chosen in draws]) for id in judged]
            for degree, draws in sets.items()
        }
        own = figures["0"]
        found[name] = _steps(made, figures, ids)
    return {"own": spread(made, own, ids), **found, "per_client": own}


def _steps(made: Simulation, figures: Figures, ids: Sequence[int]) -> Record:
    """Describe figures per client at every step of something, and their average over the steps."""
    averages = [_mean(values) for values in zip(*figures.values(), strict=True)]
    described = {
        step: spread(made, values, ids) for step, values in (figures | {AVERAGED: averages}).items()
    }
    return {step: {key: one[key] for key in ("mean", "std")} for step, one in described.items()}


def under_corruption(
    made: Simulation, corrupted: Corrupted, models: dict[Group, list[Message]]
) -> dict[Group, Record]:
    """Judge models on their clients' own samples, corrupted, by group of clients.

    Figures are kind → severity → mean and std over clients. Either may be "averaged", which is the
    mean over all of them at each client.
    """
    steps = [str(severity) for severity in made.evaluate.severities]
    figures: dict[Group, dict[str, Figures]] = {group: {} for group in models}
    for kind in made.kinds:
        for step in steps:
            for group, found in _corrupted(made, corrupted, models, kind, int(step)).items():
                figures[group].setdefault(kind, {})[step] = found
    described = {}
    for group, kinds in figures.items():
        every = {step: [kinds[kind][step] for kind in made.kinds] for step in steps}
        kinds[AVERAGED] = {
            step: [_mean(values) for values in zip(*found, strict=True)]
            for step, found in every.items()
        }
        ids = _ids(made, group)
        described[group] = {kind: _steps(made, found, ids) for kind, found in kinds.items()}
    return described


def _corrupted(
    made: Simulation,
    corrupted: Corrupted,
    models: dict[Group, list[Message]],
    kind: str,
    severity: int,
) -> dict[Group, list[float | None]]:
    """Judge all groups on one corrupted copy of the samples, which is then given up."""
    x, y = corrupted.x(kind, severity), corrupted.y
    own = {group: [corrupted.own[id] for id in _ids(made, group)] for group in models}
    return {
        group: _means(made.engine.score(judged, own[group], x, y))
        for group, judged in models.items()
    }


def _cost(made: Simulation, progress: Progress, adapt: Flops | None) -> Record:
    """Return means per client over the training rounds; setup and adapt stand apart."""
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
    """Return the bytes on a client's device as means: model, state, and for the wire's session."""
    model = state = session = 0
    for id, one in zip(made.known, personal, strict=True):
        ids = torch.tensor([id])
        row, client = (tree.take(s.take(ids), 0) for s in (progress.rows, progress.clients))
        download = made.method.download(made.task, progress.server, row, made.now(progress))
        download = made.context.as_received(download, id, None)
        known = {name: words[id].to(made.device) for name, words in progress.session.items()}
        model += storage.model_bytes(one)
        state += storage.state_bytes(client, one)
        session += storage.session_bytes(known, download, client, one)
    figures = {"model": model, "state": state, "session": session}
    return {name: total / len(personal) for name, total in figures.items()}


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


def _mean(values: Sequence[float | None]) -> float | None:
    """Average what is there."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
