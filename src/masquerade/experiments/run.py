"""From a method, a model and data to a result; from a configuration to run directories."""

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from masquerade.config import toml as configuration
from masquerade.config.availability import check as check_available
from masquerade.config.budgets import Budgets, budgets_of, warn_of_budgets
from masquerade.config.resolve import Training, arrange, check_novel, federation_of, trainings
from masquerade.config.settings import Compute, Config, Evaluate, Train
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Part
from masquerade.core.task import Task
from masquerade.cost import memory
from masquerade.data import Federation
from masquerade.engine.precision import numbers
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.evaluation.summary import look, verdict
from masquerade.experiments.result import Result
from masquerade.methods import METHODS
from masquerade.simulation.server import Simulation
from masquerade.simulation.state import Progress, Record, set_apart, timed
from masquerade.storage import model_files as parts
from masquerade.storage.results import read_results
from masquerade.storage.run_directory import Committer, RunDirectory
from masquerade.wire import digest

Watch = Callable[..., None]
"""Called with the training's name, rounds done, rounds in all, and a new evaluation or None."""

SEED_BYTES = 8
"""What the initial weights cost a client when they are drawn from a seed."""


def _quiet(name: str, done: int, rounds: int, record: Record | None) -> None:
    pass


def run(
    method: Method,
    model: nn.Module | Task,
    federation: Federation,
    rounds: int = 60,
    *,
    batch_size: int = 10,
    participation: float = 1.0,
    lr_decay: float = 1.0,
    seed: int = 1,
    views: Sequence[str] | None = None,
    evaluate: Evaluate | None = None,
    compute: Compute | None = None,
    budgets: Budgets = (1.0,),
    clients_per_round: int = 0,
    available: str = "always",
    drop: float = 0.0,
    message_dtype: str = "same",
    novel: Sequence[int] = (),
    out: str | Path | None = None,
    watch: Watch = _quiet,
) -> Result:
    """Train a method on a federation and judge it.

    `model` is any module, or a `Task` where classification by cross entropy is not the problem.
    Its weights are where training begins; `seed` decides cohorts, batches and shift partners.
    `budgets` are shares of the parameters that devices can hold, which clients take in turn, or
    "random:LOW:HIGH". Of all clients `participation` are sampled in a round, or `clients_per_round`
    of those that are `available`, and a share `drop` of them is lost; `novel` clients are kept out
    of training and evaluated apart. Numbers in messages are of `message_dtype`. With `out` the run
    has a directory; the same call goes on from its last commit after any interruption.
    """
    task = model if isinstance(model, Task) else Task(model)
    train = Train(
        model="",
        rounds=rounds,
        batch_size=batch_size,
        participation=participation,
        lr_decay=lr_decay,
        seeds=(seed,),
        clients_per_round=clients_per_round,
        available=available,
        drop=drop,
        message_dtype=message_dtype,
    )
    chosen = tuple(views or method.views)
    unknown = [view for view in chosen if view not in method.views]
    if unknown:
        raise MasqueradeError("E202", f"unknown views {unknown}; there are {method.views}")
    name = type(method).__name__
    judged, computed = evaluate or Evaluate(), compute or Compute()
    configuration.check(method=method, train=train, evaluate=judged, compute=computed)
    check_available(available)
    shares = budgets_of(budgets, federation.clients, seed)
    warn_of_budgets([(name, method)], shares)
    check_novel(novel, federation.clients)
    with simulate(
        method=method,
        task=task,
        federation=federation,
        train=train,
        evaluate=judged,
        compute=computed,
        seed=seed,
        views=chosen,
        budgets=shares,
        novel=novel,
    ) as simulation:
        told = partial(_tell, watch, name, rounds)
        if out is None:
            progress = carry_on(simulation, simulation.begin(), watch=told)
            summaries, personal = verdict(simulation, progress)
        else:
            text = _description(simulation)
            with _directory(Path(out), text) as directory:
                progress = _progress(simulation, directory, text)
                carry_on(simulation, progress, directory, told, _world(simulation, text))
                summaries, personal = verdict(simulation, progress)
        initial = float(tree.size(task.initial) * task.dtype.itemsize)
        for summary in summaries:
            summary |= _identity(method, summary["view"], federation.name, initial)
        if out is not None:
            (Path(out) / "summary.json").write_text(json.dumps(summaries, indent=1))
        return Result(method, simulation.task, summaries, personal)


def _tell(watch: Watch, name: str, rounds: int, done: int, record: Record | None) -> None:
    watch(name, done, rounds, record)


def _directory(path: Path, config: str) -> RunDirectory:
    """Open the directory of the same run, or make it."""
    begun = (path / "config.toml").exists()
    return RunDirectory.open(path) if begun else RunDirectory.create(path, config)


def _description(simulation: Simulation) -> str:
    """Describe a run that no configuration file could: its method and model are objects."""
    import tomli_w

    records = {name: getattr(simulation, name) for name in ("train", "evaluate", "compute")}
    tables = {name: configuration.plain(record) for name, record in records.items()}
    initial = digest(Part(simulation.task.initial))
    facts = {"method": repr(simulation.method), "initial": int(initial), "views": simulation.views}
    return tomli_w.dumps({"python": facts, **tables})


def carry_on(
    simulation: Simulation,
    progress: Progress,
    directory: RunDirectory | None = None,
    watch: Watch = lambda done, record: None,
    world: Record | None = None,
) -> Progress:
    """Move a simulation on to its last round, committing beside the computation.

    `world` is written with every commit: facts that a later resume compares.
    """
    clock, committer = progress.seconds, None
    if directory is not None:
        committer = Committer(directory, simulation.compute.commit_every)
    clock["start-up"] += simulation.seconds
    lines: list[Record] = []
    laps: list[float] = []
    try:
        while progress.number < simulation.train.rounds:
            before = clock["training"]
            with timed(clock, "training"):
                line = simulation.advance(progress)
            laps.append(clock["training"] - before)
            if len(laps) == 2:
                set_apart(clock, laps)
            every, last = simulation.evaluate.every, progress.number == simulation.train.rounds
            record = None
            if every and (progress.number % every == 0) and not last:
                with timed(clock, "evaluation"):
                    record = look(simulation, progress)
                progress.history.append(record)
                line["views"] = record["views"]
            lines.append(line)
            if committer is not None and (last or committer.due()):
                progress.memory = memory.most(progress.memory, memory.peak(simulation.device))
                with timed(clock, "commits"):
                    facts = progress.facts() | (world or {})
                    committer.submit(progress.number, progress.snapshot(), facts, lines)
                lines = []
            watch(progress.number, record)
    finally:
        if committer is not None:
            with timed(clock, "commits"):
                committer.close()
    return progress


@contextmanager
def simulate(**arguments: Any) -> Iterator[Simulation]:
    """Make a simulation; afterwards end its processes and put torch's settings back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), numbers(arguments["compute"].precision):
        simulation = Simulation(**arguments)
        memory.watch(simulation.device)
        try:
            yield simulation
        finally:
            simulation.close()
            torch.set_num_threads(threads)


def _identity(method: Method, view: str, data: str, initial: float) -> Record:
    """Name a summary: by the line of the table that its class and view make, or by its class."""
    cls = type(method)
    lines = {n: line for n, line in METHODS.items() if (line.method, line.view) == (cls, view)}
    # Of the lines whose settings fit, the one that states most of them.
    names = sorted(
        (n for n, line in lines.items() if vars(method).items() >= set(line.settings)),
        key=lambda name: -len(METHODS[name].settings),
    )
    name = names[0] if names else f"{cls.__name__.lower()}:{view}"
    title = METHODS[name].title if names else f"{cls.__name__} ({view})"
    return {"method": name, "title": title, "data": data, "initial": initial}


def start(
    config: Config, training: Training, path: Path, watch: Watch = _quiet, models: bool = True
) -> list[Record]:
    """Run one training in a new directory; return its summaries, and keep its models if asked."""
    with simulate(**arrange(config, training)) as simulation:
        resolved = dataclasses.replace(
            training.config(config),
            data=federation_of(config.data)[1],
            compute=simulation.compute,
            train=dataclasses.replace(simulation.train, seeds=(training.seed,)),
        )
        with RunDirectory.create(path, configuration.dump(resolved)) as directory:
            progress = simulation.begin()
            return _finish(simulation, training, resolved, progress, directory, watch, models)


def obtain(
    config: Config, training: Training, path: Path, watch: Watch, models: bool = True
) -> list[Record]:
    """Return a training's summaries: read if it is done, else resumed or begun."""
    if (path / "summary.json").is_file():
        return read_results(path)
    if (path / "config.toml").is_file():
        return resume(path, watch, models)
    return start(config, training, path, watch, models)


def resume(path: Path, watch: Watch = _quiet, models: bool = True) -> list[Record]:
    """Continue the run in a directory, to the same bits as if it had never stopped."""
    with RunDirectory.open(path) as directory:
        config = configuration.load(directory.path / "config.toml")
        (training,) = trainings(config)
        with simulate(**arrange(config, training)) as simulation:
            progress = _progress(simulation, directory, configuration.dump(config))
            if progress.number == config.train.rounds and (path / "summary.json").is_file():
                return read_results(path)
            return _finish(simulation, training, config, progress, directory, watch, models)


def _progress(simulation: Simulation, directory: RunDirectory, config: str) -> Progress:
    """Return the state that a run goes on from."""
    commit = directory.latest()
    if commit is None:
        return simulation.begin()
    _same_world(commit.facts, _world(simulation, config))
    return simulation.restore(commit.number, commit.tensors, commit.facts)


def _world(simulation: Simulation, config: str) -> Record:
    """Return the facts that have to be the same when a run is resumed."""
    data = simulation.federation.fingerprint()
    initial = int(digest(Part(simulation.task.initial)))
    return {"config": config, "data": data, "initial": initial, "torch": torch.__version__}


def _same_world(began: Record, now: Record) -> None:
    """Refuse other settings or data than the run began with; warn of another torch."""
    if began["config"] != now["config"]:
        lines = (text["config"].splitlines() for text in (began, now))
        pairs = zip_longest(*lines, fillvalue="nothing")
        changes = ", ".join(f"{old} → {new}" for old, new in pairs if old != new)
        raise MasqueradeError(
            "E402", f"settings differ from the run's: {changes}; put them back, or start a new run"
        )
    if began["data"] != now["data"]:
        text = "the data differ from those this run began with; restore them, or start a new run"
        raise MasqueradeError("E402", text)
    if began.get("initial", now["initial"]) != now["initial"]:
        text = "the initial weights differ from those this run began with; restore their file"
        raise MasqueradeError("E402", text)
    if began["torch"] != now["torch"]:
        warnings.warn(
            f"W402 this run began under torch {began['torch']}, this is {now['torch']}: "
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
    models: bool,
) -> list[Record]:
    """Do the rounds that are left, judge, and write what a run directory holds at its end."""
    carry_on(
        simulation,
        progress,
        directory,
        partial(_tell, watch, training.names[0], simulation.train.rounds),
        _world(simulation, configuration.dump(config)),
    )
    summaries, personal = verdict(simulation, progress)
    # Weights from a seed cost its bytes, weights from a file a download.
    held = tree.size(simulation.task.initial) * simulation.task.dtype.itemsize
    initial = held if config.train.weights else SEED_BYTES
    for summary, name in zip(summaries, training.names, strict=True):
        summary |= {
            "method": name,
            "title": configuration.title_of(name, config),
            "data": simulation.federation.name,
            "initial": float(initial),
        }
    for view, own in personal.items() if models else ():
        for id, model in zip(simulation.known, own, strict=True):
            name = parts.client_file(id, view, len(simulation.infos))
            parts.write(directory, name, model)
    directory.write_text("summary.json", json.dumps(summaries, indent=1))
    return summaries
