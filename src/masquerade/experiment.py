"""From a method, a model and data to a result; from a configuration to run directories."""

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from masquerade import config as configuration
from masquerade.config import Compute, Config, Evaluate, Train
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.random import fold
from masquerade.core.task import Task
from masquerade.data import Federation, load, parse, partition
from masquerade.engine.auto import exact_numbers
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.methods import METHODS
from masquerade.models import build, suitable
from masquerade.progress import Progress, Record
from masquerade.rundir import RunDirectory
from masquerade.simulation import Simulation, carry_on

Watch = Callable[..., None]
"""Called with the training's name, rounds done, rounds in all, and a new evaluation or None."""

SEED_BYTES = 8
"""What the initial weights cost a client when they are drawn from a seed."""


def _quiet(name: str, done: int, rounds: int, record: Record | None) -> None:
    pass


@dataclass(frozen=True)
class Personal:
    """One client's model, ready for use."""

    method: Method
    task: Task
    parts: Message

    def predict(self, x: Tensor) -> Tensor:
        """Return the outputs for a batch of inputs (logits, for classification)."""
        with torch.no_grad():
            return self.method.predict(self.task, self.parts, x)


@dataclass(frozen=True)
class Result:
    """What a run ended with."""

    method: Method
    task: Task
    summaries: list[Record]
    """One per view, in the form of `summary.json`."""
    personal: dict[str, list[Message]]

    def table(self) -> None:
        """Print the table of results."""
        from rich.console import Console

        from masquerade.report import terminal

        Console().print(terminal(self.summaries))

    def client(self, id: int, view: str | None = None) -> Personal:
        """Return the model of one client; in the method's default view unless another is named."""
        chosen = view or next(iter(self.personal))
        if chosen not in self.personal:
            known = ", ".join(self.personal)
            raise MasqueradeError("E202", f"no view `{chosen}` was judged; there are {known}")
        models = self.personal[chosen]
        if not 0 <= id < len(models):
            raise MasqueradeError("E202", f"no client {id}; there are 0 to {len(models) - 1}")
        return Personal(self.method, self.task, models[id])


def run(
    method: Method,
    model: nn.Module | Task,
    federation: Federation,
    rounds: int = 60,
    *,
    batch: int = 10,
    participation: float = 1.0,
    rate_decay: float = 1.0,
    seed: int = 1,
    views: Sequence[str] | None = None,
    evaluate: Evaluate | None = None,
    compute: Compute | None = None,
    budgets: Sequence[float] | None = None,
    watch: Watch = _quiet,
) -> Result:
    """Train a method on a federation and judge it.

    `model` is any module, or a `Task` where classification by cross entropy is not the problem.
    `budgets` gives every client the share of the parameters that its device can hold.
    """
    task = model if isinstance(model, Task) else Task(model)
    train = Train("", rounds, batch, participation, rate_decay, (seed,))
    chosen = tuple(views or method.views)
    unknown = [view for view in chosen if view not in method.views]
    if unknown:
        raise MasqueradeError("E202", f"unknown views {unknown}; there are {method.views}")
    name = type(method).__name__
    with simulate(
        method=method,
        task=task,
        federation=federation,
        train=train,
        evaluate=evaluate or Evaluate(),
        compute=compute or Compute(),
        seed=seed,
        views=chosen,
        budgets=budgets,
    ) as simulation:
        progress = carry_on(
            simulation,
            simulation.begin(),
            watch=lambda done, record: watch(name, done, rounds, record),
        )
        summaries, personal = simulation.verdict(progress)
        for summary in summaries:
            initial = tree.size(task.initial) * task.dtype.itemsize
            summary |= _identity(method, summary["view"], federation.name, float(initial))
        return Result(method, simulation.task, summaries, personal)


@contextmanager
def simulate(**arguments: Any) -> Iterator[Simulation]:
    """Make a simulation; afterwards end its processes and put torch's settings back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), exact_numbers():
        simulation = Simulation(**arguments)
        try:
            yield simulation
        finally:
            simulation.close()
            torch.set_num_threads(threads)


def _identity(method: Method, view: str, data: str, initial: float) -> Record:
    """Name a summary: by the line of the table that its class and view make, or by its class."""
    names = [
        name for name, line in METHODS.items() if type(method) is line.method and view == line.view
    ]
    cls = type(method).__name__
    name = names[0] if names else f"{cls.lower()}:{view}"
    title = METHODS[name].title if names else f"{cls} ({view})"
    return {"method": name, "title": title, "data": data, "initial": initial}


@dataclass(frozen=True)
class Training:
    """One training of a configuration: a method, the names that are views of it, a seed."""

    method: Method
    names: tuple[str, ...]
    seed: int

    @property
    def folder(self) -> str:
        """Name the run directory."""
        return f"{self.names[0]}-seed{self.seed}"

    def config(self, config: Config) -> Config:
        """Return the configuration of this training alone."""
        train = dataclasses.replace(config.train, seeds=(self.seed,))
        settings = {self.names[0]: configuration.plain(self.method)}
        return dataclasses.replace(config, methods=self.names, train=train, method=settings)


def trainings(config: Config) -> list[Training]:
    """List what a configuration trains: once for all views of one method and its settings."""
    groups = configuration.trainings(config)
    return [
        Training(method, names, seed)
        for seed in config.train.seeds
        for method, names in groups.items()
    ]


def federation_of(config: Config) -> Federation:
    """Load the data of a configuration and spread it over clients."""
    data = config.data
    rule = parse(data.partition)
    return partition(load(data.name), data.clients or None, rule, data.seed, data.split)


def arrange(config: Config, training: Training) -> dict[str, Any]:
    """Return what a training's simulation is made of."""
    federation = federation_of(config)
    shape = tuple(federation.x.shape[1:])
    if federation.classes is None:
        raise MasqueradeError(
            "E202",
            "the command trains classifiers; for other targets call `mq.run` with a `mq.Task`",
        )
    name = suitable(shape) if config.train.model == "auto" else config.train.model
    train = dataclasses.replace(config.train, model=name)
    model = build(name, shape, federation.classes, fold(training.seed, "initial"))
    return {
        "method": training.method,
        "task": Task(model),
        "federation": federation,
        "train": train,
        "evaluate": config.evaluate,
        "compute": config.compute,
        "seed": training.seed,
        "views": tuple(METHODS[name].view for name in training.names),
    }


def start(config: Config, training: Training, path: Path, watch: Watch = _quiet) -> list[Record]:
    """Run one training in a new directory; return its summaries."""
    with simulate(**arrange(config, training)) as simulation:
        data = config.data
        if data.name.endswith(".npz"):
            # A run can be resumed from any directory.
            data = dataclasses.replace(data, name=str(Path(data.name).resolve()))
        resolved = dataclasses.replace(
            training.config(config),
            data=data,
            compute=simulation.compute,
            train=dataclasses.replace(simulation.train, seeds=(training.seed,)),
        )
        with RunDirectory.create(path, configuration.dump(resolved)) as directory:
            return _finish(simulation, training, resolved, simulation.begin(), directory, watch)


def resume(path: Path, watch: Watch = _quiet) -> list[Record]:
    """Continue the run in a directory, to the same bits as if it had never stopped."""
    with RunDirectory.open(path) as directory:
        config = configuration.parse(configuration.read_file(directory.path / "config.toml"))
        (training,) = trainings(config)
        with simulate(**arrange(config, training)) as simulation:
            commit = directory.latest()
            if commit is None:
                progress = simulation.begin()
            else:
                _same_world(commit.facts, simulation, config)
                progress = simulation.restore(commit.number, commit.tensors, commit.facts)
            return _finish(simulation, training, config, progress, directory, watch)


def _same_world(facts: Record, simulation: Simulation, config: Config) -> None:
    """Refuse other settings or data than the run began with; warn of another torch."""
    began, now = facts["config"], configuration.dump(config)
    if began != now:
        pairs = zip_longest(began.splitlines(), now.splitlines(), fillvalue="nothing")
        changes = ", ".join(f"{old} → {new}" for old, new in pairs if old != new)
        raise MasqueradeError(
            "E402", f"config.toml differs from the run: {changes}; put it back, or start a new run"
        )
    if facts["data"] != simulation.federation.fingerprint():
        raise MasqueradeError(
            "E402",
            "the data differ from those this run began with; restore them, or start a new run",
        )
    if facts["torch"] != torch.__version__:
        warnings.warn(
            f"W402 this run began under torch {facts['torch']}, this is {torch.__version__}: "
            "the last bits may differ",
            MasqueradeWarning,
            stacklevel=2,
        )


def _finish(
    simulation: Simulation,
    training: Training,
    config: Config,
    progress: Progress,
    directory: RunDirectory,
    watch: Watch,
) -> list[Record]:
    """Do the rounds that are left, judge, and write what a run directory holds at its end."""
    rounds = simulation.train.rounds
    world = {
        "config": configuration.dump(config),
        "data": simulation.federation.fingerprint(),
        "torch": torch.__version__,
    }
    carry_on(
        simulation,
        progress,
        directory,
        lambda done, record: watch(training.names[0], done, rounds, record),
        world,
    )
    summaries, personal = simulation.verdict(progress)
    for summary, name in zip(summaries, training.names, strict=True):
        summary |= {
            "method": name,
            "title": METHODS[name].title,
            "data": simulation.federation.name,
            "initial": float(SEED_BYTES),
        }
    view, models = next(iter(personal.items()))
    width = len(str(len(models) - 1))
    for id, model in enumerate(models):
        directory.write_tensors(f"clients/{id:0{width}d}-{view}.safetensors", tree.named(model))
    directory.write_text("summary.json", json.dumps(summaries, indent=1))
    return summaries


def collect(path: Path) -> list[Record]:
    """Read the summaries of a run directory, or the results of a comparison."""
    for name in ("results.json", "summary.json"):
        if (path / name).is_file():
            found: list[Record] = json.loads((path / name).read_text(encoding="utf-8"))
            return found
    raise MasqueradeError(
        "E408",
        f"no results in {path}: it has neither results.json nor summary.json. "
        f"If a run stopped there: masquerade resume {path}",
    )
