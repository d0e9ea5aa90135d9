"""From a run directory to a client's model, and to what is known of it."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from masquerade.config import toml
from masquerade.config.code import refuse_program
from masquerade.config.resolve import resolve, trainings
from masquerade.core.part import Message
from masquerade.core.random import Label, fold
from masquerade.data import Federation
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Model
from masquerade.export.model_card import describe
from masquerade.models import MODELS
from masquerade.results import Summary
from masquerade.simulation.fitting import fit
from masquerade.storage import model_files
from masquerade.storage.results import is_comparison, read_results

SAMPLES = 32
"""Inputs on which an export is compared with its model."""


@dataclass(frozen=True)
class Found:
    """A client's model, its card, the names of its classes, and where its weights began."""

    model: Model
    card: Card
    labels: list[str]
    origin: sparse.Origin | None
    """None where they began in a file, or in code of a user's own."""


def find(path: Path, client: int | str, view: str | None = None) -> Found:
    """Read the model of one client, by its number or name, from the directory of a finished run."""
    summary = _summary(path, view)
    place = summary.place_of(client)
    assert summary.per_client is not None
    id = summary.per_client.ids[place]
    config = toml.load(path / "config.toml")
    (training,) = trainings(config)
    spec = resolve(config, training)
    federation, train = spec.federation, spec.train
    name = model_files.client_file(id, summary.view, federation.clients)
    # What clients' data decided is found again from them, to the same bits.
    task = spec.task.with_preprocess(fit(spec).preprocess)
    model = Model(spec.method, task, _parts(path / name), _inputs(federation, id))
    origin = None
    if not train.weights and train.model in MODELS:
        shape = tuple(federation.x.shape[1:])
        seed = fold(training.seed, Label.INITIAL)
        assert federation.classes is not None
        origin = sparse.Origin(train.model, shape, federation.classes, seed)
    labels = list(federation.class_names) or [str(each) for each in range(federation.classes or 0)]
    card = describe(summary, place, model, config.data, federation.class_names)
    return Found(model, card, labels, origin)


def _summary(path: Path, view: str | None) -> Summary:
    """Return the summary of a view; the first, unless another is named."""
    if (path / "config.toml").is_file():
        then = "`result.client(N).export(FOLDER, x)` exports"
        refuse_program(path, toml.read_file(path / "config.toml"), then)
    if is_comparison(path):
        runs = sorted(each.parent.name for each in path.glob("*/summary.json"))
        text = f"{path} is a comparison; name one of its runs: {', '.join(runs)}"
        raise MasqueradeError("E408", text)
    summaries = read_results(path)
    for summary in summaries:
        if view in (None, summary.view, summary.method):
            return summary
    known = ", ".join(summary.view for summary in summaries)
    raise MasqueradeError("E202", f"no view `{view}` was evaluated; there are {known}")


def _parts(path: Path) -> Message:
    if not path.is_file():
        raise MasqueradeError("E408", f"{path} is not there; resume the run to write it again")
    return model_files.read(path.read_bytes(), path.name)


def _inputs(federation: Federation, client: int) -> Tensor:
    """Return inputs that the client was trained on, or others where it has none."""
    own = federation.train[client][:SAMPLES]
    return federation.x[own] if len(own) else federation.x[:SAMPLES]
