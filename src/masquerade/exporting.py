"""From a run directory to a client's model, and to what is known of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from masquerade import __version__, comparison, experiment
from masquerade import config as configuration
from masquerade.core.part import Message, Part
from masquerade.core.random import fold
from masquerade.data import Federation, cache
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Model
from masquerade.plan import arrange, trainings
from masquerade.progress import Record
from masquerade.rundir import client_file, decode_parts, decode_tensors

SAMPLES = 32
"""Inputs on which an export is compared with its model."""


@dataclass(frozen=True)
class Found:
    """A client's model, its card, the names of its classes, and where its weights began."""

    model: Model
    card: Card
    labels: list[str]
    origin: sparse.Origin | None
    """None where they began in a file."""


def find(path: Path, client: int, view: str | None = None) -> Found:
    """Read one client's model from the directory of a finished run."""
    summary = _summary(path, view)
    ids = summary["per_client"]["ids"]
    if client not in ids:
        text = f"there is no model of client {client}; there are {ids[0]} to {ids[-1]}"
        raise MasqueradeError("E202", text)
    config = configuration.parse(configuration.read_file(path / "config.toml"))
    (training,) = trainings(config)
    made = arrange(config, training)
    federation, task, train = made["federation"], made["task"], made["train"]
    name = client_file(client, summary["view"], federation.clients)
    model = Model(made["method"], task, _parts(path / name), _inputs(federation, client))
    origin = None
    if not train.weights:
        shape = tuple(federation.x.shape[1:])
        seed = fold(training.seed, "initial")
        origin = sparse.Origin(train.model, shape, federation.classes, seed)
    held = cache.describe(config.data.name) if cache.holds(config.data.name) else None
    named = held.class_names if held is not None else []
    labels = list(named) or [str(each) for each in range(federation.classes)]
    return Found(model, _card(summary, client, ids.index(client), model), labels, origin)


def _summary(path: Path, view: str | None) -> Record:
    """Return the summary of a view; the first, unless another is named."""
    if comparison.is_comparison(path):
        runs = sorted(each.parent.name for each in path.glob("*/summary.json"))
        text = f"{path} is a comparison; name one of its runs: {', '.join(runs)}"
        raise MasqueradeError("E408", text)
    summaries = experiment.collect(path)
    if "python" in configuration.read_file(path / "config.toml"):
        text = f"{path} is a run of a Python program, which alone has its network"
        raise MasqueradeError("E202", f"{text}; use `result.client(N).export(FOLDER, x)` there")
    for summary in summaries:
        if view in (None, summary["view"], summary["method"]):
            return summary
    known = ", ".join(summary["view"] for summary in summaries)
    raise MasqueradeError("E202", f"no view `{view}` was judged; there are {known}")


def _parts(path: Path) -> Message:
    """Read a personal model: names are PART/FIELD/TENSOR; a part may have no tensors."""
    if not path.is_file():
        raise MasqueradeError("E408", f"{path} is not there; resume the run to write it again")
    data = path.read_bytes()
    tensors = decode_tensors(data, path.name)
    found: dict[str, dict[str, Any]] = {part: {"values": {}} for part in decode_parts(data)}
    for name, value in tensors.items():
        part, kind, tensor = name.split("/", 2)
        found.setdefault(part, {"values": {}}).setdefault(kind, {})[tensor] = value
    return {part: Part(**held) for part, held in found.items()}


def _inputs(federation: Federation, client: int) -> Tensor:
    """Return inputs that the client was trained on, or others where it has none."""
    own = federation.train[client][:SAMPLES]
    return federation.x[own] if len(own) else federation.x[:SAMPLES]


def _card(summary: Record, client: int, place: int, model: Model) -> Card:
    """Write a model's card from the summary of its run."""
    own, shift = summary["accuracy"]["own"], summary["accuracy"]["shift"]
    mine = summary["per_client"]["own"][place]
    metric, unit = summary["metric"], "mean over clients ± std"
    facts: dict[str, dict[str, Any]] = {
        "Model": {
            "method": f"{summary['title']} (`{summary['method']}`, view `{summary['view']}`)",
            "settings": f"`{model.method}`",
            "network": f"{summary['network']}, {summary['parameters']:,} parameters",
            "density, mean over clients": summary["density"],
            **_density(model),
        },
        "Run": {
            "data": summary["data"],
            "client": f"{client}, with {summary['per_client']['samples'][place]} training samples",
            "clients": summary["clients"],
            "rounds": summary["rounds"],
            "seed": summary["seed"],
            "masquerade": __version__,
        },
        f"{metric.capitalize()} on test data": {
            "this client": "no test data" if mine is None else float(mine),
            unit: f"{own['mean']:.4g} ± {own['std']:.4g}",
            "bottom decile": own["bottom_decile"],
        },
        f"{metric.capitalize()} under shift, {unit}": {
            f"{degree} % of other clients' data": f"{each['mean']:.4g} ± {each['std']:.4g}"
            for degree, each in shift.items()
            if degree != "averaged"
        },
        "Before you share it": {
            "privacy": "a personal model can give away what it was trained on; "
            "share it with those who may see its client's data"
        },
    }
    if summary["diverged"] is not None:
        facts["Model"]["diverged"] = f"training left the finite numbers in {summary['diverged']}"
    return Card(f"{summary['title']}, client {client}, on {summary['data']}", facts)


def _density(model: Model) -> dict[str, Any]:
    """Count the weights that this client's model really uses, where they are fixed."""
    try:
        trees = sparse.networks(model.method, model.task, model.parts, model.x)
    except MasqueradeError:
        return {"weights that are not zero": "they differ from sample to sample"}
    several = f", mean of its {len(trees)} networks" if len(trees) > 1 else ""
    return {f"weights that are not zero, this client{several}": sparse.density(trees, model.task)}
