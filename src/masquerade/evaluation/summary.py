"""The summary of a view: everything that is known of it at the end, as `summary.json` has it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from masquerade.data.registry import note_of
from masquerade.engine.base import Evaluation
from masquerade.evaluation import costs
from masquerade.evaluation.overlap import overlap
from masquerade.simulation.server import Server
from masquerade.simulation.state import Record, RunState

if TYPE_CHECKING:
    from masquerade.evaluation.evaluate import Evaluator, Group


def summarize(
    evaluator: "Evaluator",
    state: RunState,
    view: str,
    found: "Mapping[Group, Evaluation]",
    figures: "Mapping[Group, Record]",
) -> Record:
    """Return everything that is known of a view at the end."""
    server, simulation = evaluator.server, evaluator.simulation
    clients, models = len(server.known), found[view, False].models
    accuracy = dict(figures[view, False])
    per_client = accuracy.pop("per_client")
    shared = figures.get(("global", False))
    if shared is not None:
        accuracy["global"] = {key: shared[key] for key in shared if key != "per_client"}
    history = _history(evaluator, state, view, accuracy["own"])
    history[-1] |= evaluator.notes(view, models)
    summary = {
        "view": view,
        "seed": simulation.spec.seed,
        "rounds": state.number,
        "clients": clients,
        "network": simulation.spec.train.model or type(server.task.module).__name__,
        "metric": getattr(server.task.metric, "__name__", "metric"),
        "better": server.task.better,
        "accuracy": accuracy,
        **costs.bytes_and_flops(
            state, clients, found[view, False].flops if evaluator.trains(view) else None
        ),
        "layers": costs.by_layer(state, clients),
        **costs.parameters(server.task, models),
        "storage": costs.on_device(
            server, state, models, lambda it, id: simulation.context.as_received(it, id, None)
        ),
        **overlap(models),
        **_participation(server, state),
        "diverged": state.diverged,
        "refused": state.refused,
        "per_client": {
            "own": per_client,
            "samples": server.samples[list(server.known)].tolist(),
            "ids": list(server.known),
            **_names(simulation.federation.names, server.known),
        },
        "rounds_to_80": _rounds_to_80(server.task.better, history),
        "history": history,
    }
    if note := note_of(simulation.federation.name):
        summary["data_note"] = note
    if evaluator.corrupted is not None:
        summary["corrupted_images"] = evaluator.corrupted.source
    if server.novel:
        theirs = figures[view, True]
        refused = {str(id): code for id, code in sorted(state.refused_novel.items())}
        summary["novel"] = {
            "clients": len(server.novel),
            "ids": list(server.novel),
            **_names(simulation.federation.names, server.novel),
            "accuracy": theirs,
            "gap": accuracy["own"]["mean"] - theirs["own"]["mean"],
            "refused": refused,
        }
    return summary


def _names(names: Sequence[str], ids: Sequence[int]) -> Record:
    """Return what the data call some clients, where they have names."""
    return {"names": [names[id] for id in ids]} if names else {}


def _participation(server: Server, state: RunState) -> Record:
    """Say how often a client was asked on average, and how many never were, or never answered."""
    eligible = server.participation.eligible
    return {
        "participations": int(state.sampled.sum()) / len(server.known),
        "never_sampled": int((state.sampled[eligible] == 0).sum()),
        "never_heard": int((state.answered[eligible] == 0).sum()),
    }


def _history(evaluator: "Evaluator", state: RunState, view: str, own: Record) -> list[Record]:
    """Return the curve of a view; one that trains has its last point only."""
    notes = view == evaluator.server.method.views[0]
    points = [
        {
            "round": record["round"],
            "own": record["views"][view]["mean"],
            "std": record["views"][view]["std"],
            **{name: record[name] for name in ("down", "up", "flops")},
            **({"notes": record["notes"]} if notes and "notes" in record else {}),
        }
        for record in state.history
        if view in record["views"] and record["round"] < state.number
    ]
    last = {"round": state.number, "own": own["mean"], "std": own["std"]}
    return [*points, last | costs.so_far(state, len(evaluator.server.known))]


def _rounds_to_80(better: str, history: list[Record]) -> int:
    """Return the first round that was evaluated and has 80 % of the final figure."""
    final, last = history[-1]["own"], int(history[-1]["round"])
    if better == "higher":
        reached = [int(point["round"]) for point in history if point["own"] >= 0.8 * final]
    else:
        reached = [int(point["round"]) for point in history if 0.8 * point["own"] <= final]
    return reached[0] if reached else last
