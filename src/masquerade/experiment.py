"""From a method, a model and data to a result; from a configuration to run directories."""

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from masquerade import config as configuration
from masquerade.config import Compute, Config, Data, Evaluate, Train
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message, Part
from masquerade.core.random import fold
from masquerade.core.round import Who
from masquerade.core.task import Task
from masquerade.cost.forecast import forecast
from masquerade.data import Dataset, Federation, load, parse, partition, share
from masquerade.engine.auto import exact_numbers
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.methods import METHODS, Named
from masquerade.models import MODELS, build, load_weights, suitable
from masquerade.participation import check as check_available
from masquerade.participation import novel as novel_clients
from masquerade.progress import Progress, Record
from masquerade.rundir import RunDirectory
from masquerade.simulation import Simulation, carry_on
from masquerade.wire import digest

Watch = Callable[..., None]
"""Called with the training's name, rounds done, rounds in all, and a new evaluation or None."""

SEEN = 64
"""Samples that a forecast sees."""
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
        device = tree.leaves(self.parts)[0].device
        with torch.no_grad():
            return self.method.predict(self.task, self.parts, x.to(device))


@dataclass(frozen=True)
class Result:
    """What a run ended with."""

    method: Method
    task: Task
    summaries: list[Record]
    """One per view, in the form of `summary.json`."""
    personal: dict[str, list[Message]]

    def __repr__(self) -> str:
        own = ", ".join(f"{s['title']} {s['accuracy']['own']['mean']:.4g}" for s in self.summaries)
        return f"<Result of {self.summaries[0]['rounds']} rounds, on own data: {own}>"

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
    cohort: int = 0,
    available: str = "always",
    drop: float = 0.0,
    novel: Sequence[int] = (),
    out: str | Path | None = None,
    watch: Watch = _quiet,
) -> Result:
    """Train a method on a federation and judge it.

    `model` is any module, or a `Task` where classification by cross entropy is not the problem.
    Its weights are where training begins; `seed` decides cohorts, batches and shift partners.
    `budgets` gives every client the share of the parameters that its device can hold. Of all
    clients `participation` are sampled in a round, or `cohort` of those that are `available`, and a
    share `drop` of them is lost; `novel` clients are kept out of training and judged apart. With
    `out` the run has a directory; the same call goes on from its last commit after any
    interruption.
    """
    task = model if isinstance(model, Task) else Task(model)
    train = Train("", rounds, batch, participation, rate_decay, (seed,), cohort, available, drop)
    chosen = tuple(views or method.views)
    unknown = [view for view in chosen if view not in method.views]
    if unknown:
        raise MasqueradeError("E202", f"unknown views {unknown}; there are {method.views}")
    name = type(method).__name__
    judged, computed = evaluate or Evaluate(), compute or Compute()
    configuration.check(method=method, train=train, evaluate=judged, compute=computed)
    check_available(available)
    budgets = _budgets(budgets, federation.clients)
    _check_novel(novel, federation.clients)
    with simulate(
        method=method,
        task=task,
        federation=federation,
        train=train,
        evaluate=judged,
        compute=computed,
        seed=seed,
        views=chosen,
        budgets=budgets,
        novel=novel,
    ) as simulation:
        told = partial(_tell, watch, name, rounds)
        if out is None:
            progress = carry_on(simulation, simulation.begin(), watch=told)
            summaries, personal = simulation.verdict(progress)
        else:
            text = _description(simulation)
            with _directory(Path(out), text) as directory:
                progress = _progress(simulation, directory, text)
                carry_on(simulation, progress, directory, told, _world(simulation, text))
                summaries, personal = simulation.verdict(progress)
        initial = float(tree.size(task.initial) * task.dtype.itemsize)
        for summary in summaries:
            summary |= _identity(method, summary["view"], federation.name, initial)
        if out is not None:
            (Path(out) / "summary.json").write_text(json.dumps(summaries, indent=1))
        return Result(method, simulation.task, summaries, personal)


def _budgets(given: Sequence[float] | None, clients: int) -> list[float]:
    """Return every client's budget; fewer than there are clients are taken in turn."""
    shares = [float(share) for share in given] if given is not None else [1.0]
    if not shares or len(shares) > clients or not all(0 < share <= 1 for share in shares):
        text = f"give 1 to {clients} shares above 0 and at most 1, which clients take in turn"
        raise MasqueradeError("E201", f"`budgets` is {shares}; {text}")
    return list(islice(cycle(shares), clients))


def _check_novel(novel: Sequence[int], clients: int) -> None:
    """Refuse what are not different clients."""
    fit = isinstance(novel, Sequence)
    if not fit or len(set(novel)) < len(novel) or not set(novel) <= set(range(clients)):
        text = f"list different clients from 0 to {clients - 1}"
        raise MasqueradeError("E201", f"`novel` is {novel!r}; {text}")


def _tell(watch: Watch, name: str, rounds: int, done: int, record: Record | None) -> None:
    watch(name, done, rounds, record)


def _directory(path: Path, config: str) -> RunDirectory:
    """Open the directory of the same run, or make it."""
    if not (path / "config.toml").exists():
        return RunDirectory.create(path, config)
    return RunDirectory.open(path)


def _description(simulation: Simulation) -> str:
    """Describe a run that no configuration file could: its method and model are objects."""
    import tomli_w

    records = {name: getattr(simulation, name) for name in ("train", "evaluate", "compute")}
    tables = {name: configuration.plain(record) for name, record in records.items()}
    initial = digest(Part(simulation.task.initial))
    facts = {"method": repr(simulation.method), "initial": int(initial), "views": simulation.views}
    return tomli_w.dumps({"python": facts, **tables})


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
        alone = dataclasses.replace(config, methods=self.names, train=train)
        return dataclasses.replace(alone, method=configuration.complete(alone)["method"])


def trainings(config: Config) -> list[Training]:
    """List what a configuration trains: once for all views of one method and its settings."""
    groups = configuration.trainings(config)
    return [
        Training(method, names, seed)
        for seed in config.train.seeds
        for method, names in groups.items()
    ]


CLIENTS = 20
"""How many clients share data that names none."""


def resolve(data: Data, dataset: Dataset) -> Data:
    """Say what "auto" and 0 clients mean for a dataset."""
    named = dataset.client is not None
    rule = data.partition
    if rule == "auto":
        rule = "client" if named and not data.clients else "dirichlet:0.3"
    clients = data.clients
    if rule == "client" and named and not clients:
        clients = len(torch.unique(dataset.client))
    elif named and rule != "client":
        warnings.warn(
            f"W302 `{dataset.name}` names its clients, and they are mixed by {rule}; "
            "keep them with --partition client",
            MasqueradeWarning,
            stacklevel=2,
        )
    name = data.name
    if name.endswith(".npz"):
        # A run can be resumed from any directory.
        name = str(Path(name).resolve())
    return dataclasses.replace(data, name=name, partition=rule, clients=clients or CLIENTS)


def federation_of(data: Data) -> tuple[Federation, Data]:
    """Load data and spread them over clients; return also what was resolved."""
    dataset = share(load(data.name), data.fraction, data.seed)
    data = resolve(data, dataset)
    rule = parse(data.partition)
    return partition(dataset, data.clients, rule, data.seed, data.split, data.merge), data


def arrange(config: Config, training: Training) -> dict[str, Any]:
    """Return what a training's simulation is made of."""
    federation, _ = federation_of(config.data)
    if config.data.novel and not round(config.data.novel * federation.clients):
        text = f"`data.novel` is {config.data.novel}, which of {federation.clients} clients is none"
        raise MasqueradeError("E201", f"{text}; give more, or 0")
    shape = tuple(federation.x.shape[1:])
    if federation.classes is None:
        raise MasqueradeError(
            "E202",
            "the command trains classifiers; for other targets call `mq.run` with a `mq.Task`",
        )
    name = suitable(shape) if config.train.model == "auto" else config.train.model
    name = _network(name, METHODS[training.names[0]])
    train = dataclasses.replace(config.train, model=name)
    model = build(name, shape, federation.classes, fold(training.seed, "initial"))
    if train.weights:
        load_weights(model, train.weights)
        # A run can be resumed from any directory.
        train = dataclasses.replace(train, weights=str(Path(train.weights).resolve()))
    return {
        "method": training.method,
        "task": Task(model).fed(federation.x),
        "federation": federation,
        "train": train,
        "evaluate": config.evaluate,
        "compute": config.compute,
        "seed": training.seed,
        "views": tuple(METHODS[name].view for name in training.names),
        "budgets": _budgets(config.data.budgets[: federation.clients], federation.clients),
        "novel": novel_clients(federation.clients, config.data.novel, config.data.seed).tolist(),
    }


def settle(config: Config) -> Config:
    """Give every method that is to cost as much as another its budget, by forecast.

    It is written into the configuration, so that a resumed run has the same one.
    """
    budgets = [name for name in config.methods if METHODS[name].like]
    if not budgets:
        return config
    tables = configuration.complete(config)["method"]
    for name in budgets:
        tables[name]["spend"] = 1.0
        once = dataclasses.replace(config, method=tables)
        wanted = _flops(config, configuration.like_of(name, config))
        tables[name]["spend"] = wanted / _flops(once, name)
    return dataclasses.replace(config, method=tables)


def _flops(config: Config, name: str) -> float:
    """Forecast the FLOPs of a method's training, as masks allow, over all seeds."""
    method, total = configuration.method_of(name, config), 0.0
    for seed in config.train.seeds:
        made = arrange(config, Training(method, (name,), seed))
        data, train = made["federation"], made["train"]
        trained = [id for id, count in enumerate(data.samples.tolist()) if count]
        some = torch.cat([data.train[id][:2] for id in trained])[:SEEN]
        cost = forecast(
            method,
            made["task"],
            data.x[some],
            data.y[some],
            [len(data.train[id]) for id in trained],
            train.rounds,
            train.participation,
            seed,
            [len(data.validation[id]) for id in trained],
        )
        total += cost.masked + cost.hello
    return total


def _network(name: str, line: Named) -> str:
    """Name the kind of a network that a method needs."""
    if not line.variant or name.endswith(f"_{line.variant}"):
        return name
    wanted = f"{name}_{line.variant}"
    if wanted in MODELS:
        return wanted
    if line.variant == "bn" and name.startswith("resnet18"):
        return name
    there = ", ".join(each for each in MODELS if each.endswith(f"_{line.variant}"))
    raise MasqueradeError(
        "E202", f"{line.title} needs another kind of network than {name}; there are {there}"
    )


def rehearse(config: Config) -> None:
    """Try whether every training can begin, so that none fails when others are done."""
    for training in trainings(config):
        made = arrange(config, training)
        method, task = made["method"], made["task"]
        method.server_init(task)
        for budget in sorted(set(made["budgets"])):
            who = Who(0, 1, 0, budget)
            method.row_init(task, who)
            method.client_init(task, who)


def start(config: Config, training: Training, path: Path, watch: Watch = _quiet) -> list[Record]:
    """Run one training in a new directory; return its summaries."""
    with simulate(**arrange(config, training)) as simulation:
        resolved = dataclasses.replace(
            training.config(config),
            data=federation_of(config.data)[1],
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
            progress = _progress(simulation, directory, configuration.dump(config))
            return _finish(simulation, training, config, progress, directory, watch)


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
) -> list[Record]:
    """Do the rounds that are left, judge, and write what a run directory holds at its end."""
    carry_on(
        simulation,
        progress,
        directory,
        partial(_tell, watch, training.names[0], simulation.train.rounds),
        _world(simulation, configuration.dump(config)),
    )
    summaries, personal = simulation.verdict(progress)
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
    for view, models in personal.items():
        width = len(str(len(models) - 1))
        for id, model in enumerate(models):
            directory.write_tensors(f"clients/{id:0{width}d}-{view}.safetensors", tree.named(model))
    directory.write_text("summary.json", json.dumps(summaries, indent=1))
    return summaries


def collect(path: Path) -> list[Record]:
    """Read the summaries of a run directory, or the results of a comparison."""
    for name in ("results.json", "summary.json"):
        if (path / name).is_file():
            try:
                found: list[Record] = json.loads((path / name).read_text(encoding="utf-8"))
            except ValueError as error:
                text = (
                    f"{path / name} is damaged ({error}); remove it, then: masquerade resume {path}"
                )
                raise MasqueradeError("E401", text) from None
            return found
    raise MasqueradeError(
        "E408",
        f"no results in {path}: it has neither results.json nor summary.json. "
        f"If a run stopped there: masquerade resume {path}",
    )
