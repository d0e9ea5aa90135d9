"""From a run directory to a client's model, and to what is known of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from masquerade import comparison, experiment
from masquerade import config as configuration
from masquerade.card import describe
from masquerade.core.part import Message, Part
from masquerade.core.random import fold
from masquerade.data import Federation, cache
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Model
from masquerade.plan import arrange, trainings
from masquerade.progress import Record
from masquerade.result import place_of
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
    place_of(client, summary)
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
    return Found(model, describe(summary, client, model), labels, origin)


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
