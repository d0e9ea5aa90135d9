"""From a run directory to a client's model, and to what is known of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from masquerade import __version__, comparison, experiment, parts
from masquerade import config as configuration
from masquerade.core.part import Message
from masquerade.core.random import fold
from masquerade.data import Federation, cache
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Model
from masquerade.plan import arrange, trainings
from masquerade.progress import Record
from masquerade.result import place_of
from masquerade.settings import Data

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


def find(path: Path, client: int | str, view: str | None = None) -> Found:
    """Read the model of one client, by its number or name, from the directory of a finished run."""
    summary = _summary(path, view)
    place = place_of(summary, client)
    id = summary["per_client"]["ids"][place]
    config = configuration.load(path / "config.toml")
    (training,) = trainings(config)
    made = arrange(config, training)
    federation, task, train = made["federation"], made["task"], made["train"]
    name = parts.client_file(id, summary["view"], federation.clients)
    model = Model(made["method"], task, _parts(path / name), _inputs(federation, id))
    origin = None
    if not train.weights:
        shape = tuple(federation.x.shape[1:])
        seed = fold(training.seed, "initial")
        origin = sparse.Origin(train.model, shape, federation.classes, seed)
    held = cache.describe(config.data.name) if cache.holds(config.data.name) else None
    named = held.class_names if held is not None else []
    labels = list(named) or [str(each) for each in range(federation.classes)]
    return Found(model, _card(summary, place, model, config.data), labels, origin)


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
    if not path.is_file():
        raise MasqueradeError("E408", f"{path} is not there; resume the run to write it again")
    return parts.read(path.read_bytes(), path.name)


def _inputs(federation: Federation, client: int) -> Tensor:
    """Return inputs that the client was trained on, or others where it has none."""
    own = federation.train[client][:SAMPLES]
    return federation.x[own] if len(own) else federation.x[:SAMPLES]


def _card(summary: Record, place: int, model: Model, data: Data) -> Card:
    """Write a model's card from the summary of its run; `place` is the client's in its lists."""
    listed = summary["per_client"]
    client = str(listed["ids"][place])
    if "names" in listed:
        client += f" ({listed['names'][place]})"
    own, shift = summary["accuracy"]["own"], summary["accuracy"]["shift"]
    mine = listed["own"][place]
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
            "partition": f"`{data.partition}` over {data.clients} clients",
            "split": "training, validation, test: " + ", ".join(f"{one:g}" for one in data.split),
            "data seed": data.seed,
            "client": f"{client}, with {listed['samples'][place]} training samples",
            "clients in training": summary["clients"],
            "rounds": summary["rounds"],
            "training seed": summary["seed"],
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
