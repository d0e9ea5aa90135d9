"""From a run directory to a client's model, and to what is known of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from masquerade.config import toml
from masquerade.config.code import refuse_program
from masquerade.config.resolve import Training, TrainingSpec, outputs_for, resolve, trainings
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.preprocess import shape_after
from masquerade.core.random import Label, fold
from masquerade.core.table import imputes
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Model
from masquerade.export.fits import check_fits
from masquerade.export.model_card import describe, made_by
from masquerade.models import MODELS
from masquerade.results import Summary
from masquerade.results.alarms import warn_of_client
from masquerade.results.json_records import parsed
from masquerade.simulation.fitting import Fitting, fit
from masquerade.storage import model_files
from masquerade.storage.results import is_comparison, read_results, read_sheets
from masquerade.storage.saved_folder import Folder, damaged

SAMPLES = 32
"""Inputs on which an export is compared with its model."""


@dataclass(frozen=True)
class Found:
    """A client's model, its card, the names of its classes, and where its weights began."""

    model: Model
    card: Card
    labels: list[str] | None
    """None where outputs are numbers."""
    origin: sparse.Origin | None
    """None where they began in a file, or in code of a user's own."""


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """The training of a run directory, made anew of its settings."""

    training: Training
    spec: TrainingSpec
    fitting: Fitting
    """Its preprocessing, fitted."""

    @property
    def task(self) -> Task:
        """Return the task of training."""
        return self.spec.task.with_preprocess(self.fitting.preprocess)

    def task_of(self, client: int) -> Task:
        """Return the task by which a client answers raw samples."""
        own = self.spec.task.with_preprocess(self.fitting.of(client))
        return own.with_example(self.spec.federation.x)

    @property
    def origin(self) -> sparse.Origin | None:
        """Return where the weights began, if that was a seed."""
        federation, train = self.spec.federation, self.spec.train
        if train.weights or train.model not in MODELS:
            return None
        seed = fold(self.training.seed, Label.INITIAL)
        shape = shape_after(self.fitting.of(0), federation.x.shape[1:])
        return sparse.Origin(train.model, shape, outputs_for(federation), seed)


def rebuild(path: Path) -> Rebuilt:
    """Make the training of a run directory anew; its data are loaded and partitioned."""
    config = toml.load(path / "config.toml")
    (training,) = trainings(config)
    spec = resolve(config, training)
    _check_data(path, spec.federation)
    # What clients' data decided is found again from them, to the same bits.
    return Rebuilt(training, spec, fit(spec))


def _check_data(path: Path, federation: Federation) -> None:
    """Refuse data that changed since the run: preprocessing and ranges would be others."""
    folder, name = Folder.open(path), "data.json"
    try:
        known = parsed(folder.read(name)) if name in folder.files else {}
    except ValueError as fault:
        raise damaged(path / name, path, str(fault)) from None
    before = known.get("fingerprint") if isinstance(known, dict) else "nothing"
    if before and before != federation.fingerprint():
        text = f"`{federation.name}` is not the data that {path} was trained on"
        raise MasqueradeError("E402", f"{text}; restore them, or train again")


def clients_of(path: Path) -> str:
    """Write what the clients of a finished run are called."""
    return _summary(path, None).called


def find(path: Path, client: int | str, view: str | None = None) -> Found:
    """Read the model of one client, by its number or name, from the directory of a finished run."""
    summary = _summary(path, view)
    place = summary.place_of(client)
    assert summary.per_client is not None
    warn_of_client(summary, place)
    id = summary.per_client.ids[place]
    rebuilt = rebuild(path)
    spec, federation = rebuilt.spec, rebuilt.spec.federation
    task = rebuilt.task_of(id)
    stored = StoredModels(Folder.open(path), spec.method, task, federation.clients)
    parts = stored.read(id, summary.view)
    schema = federation.schema(id, imputes(task.preprocess))
    model = Model(spec.method, task, parts, own_inputs(federation, id), schema)
    labels = labels_of(federation.class_names, federation.classes)
    assert spec.data is not None
    sheet = next(iter(read_sheets(path)), None)
    made = made_by(spec.data)
    card = describe(summary, place, model, made, federation.class_names, sheet)
    return Found(model, card, labels, rebuilt.origin)


def _summary(path: Path, view: str | None) -> Summary:
    """Return the summary of a view; the first, unless another is named."""
    if is_comparison(path):
        runs = sorted(each.parent.name for each in path.glob("*/summary.json"))
        text = f"{path} is a comparison; name one of its runs: {', '.join(runs)}"
        raise MasqueradeError("E408", text)
    summaries, then = read_results(path), "`result.client(N).export(FOLDER)` exports"
    refuse_program(path, toml.read_file(path / "config.toml"), then)
    for summary in summaries:
        if view in (None, summary.view, summary.method):
            return summary
    known = ", ".join(summary.view for summary in summaries)
    raise MasqueradeError("E202", f"no view `{view}` was evaluated; there are {known}")


@dataclass(frozen=True, eq=False)
class StoredModels:
    """The models in a folder of results, each of which is read when it is asked for."""

    folder: Folder
    method: Method
    task: Task
    clients: int
    """How many there are, novel ones among them."""

    def read(self, id: int, view: str) -> Message:
        """Read the model of a client."""
        name = model_files.client_file(id, view, self.clients)
        if name not in self.folder.files:
            text = f"{self.folder.path / name} is not there: models of this run were not kept"
            raise MasqueradeError("E408", f"{text}; train again into another directory")
        parts = model_files.decode(self.folder.read(name), name)
        check_fits(parts, name, self.method, self.task, view)
        return parts


def labels_of(class_names: Sequence[str], classes: int | None) -> list[str] | None:
    """Return what classes are called: by the data, or by their numbers."""
    if classes is None:
        return None
    return list(class_names) or [str(each) for each in range(classes)]


def own_inputs(federation: Federation, client: int) -> Tensor:
    """Return inputs that the client was trained on, or others where it has none."""
    own = federation.train[client][:SAMPLES]
    # Without samples of its own, others' will do to compare answers on.
    return federation.x[own] if len(own) else federation.x[:SAMPLES]
