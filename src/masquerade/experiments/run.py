"""One training from beginning to end: `mq.run`, and a configured run in its directory."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from torch import nn

from masquerade.config import toml
from masquerade.config.availability import check as check_available
from masquerade.config.budgets import Budgets, budgets_of, warn_of_budgets
from masquerade.config.resolve import (
    Training,
    TrainingSpec,
    check_novel,
    resolve,
    resolved,
    trainings,
)
from masquerade.config.settings import Compute, Config, Evaluate, Train
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message, Part
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError
from masquerade.evaluation.evaluate import Evaluator
from masquerade.experiments.checkpoints import checkpointed, origin, restore
from masquerade.experiments.result import Result
from masquerade.methods import METHODS
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.server import Server, train
from masquerade.simulation.state import Record, RunState
from masquerade.storage import model_files
from masquerade.storage.results import read_results
from masquerade.storage.run_directory import RunDirectory
from masquerade.wire import digest

Watch = Callable[..., None]
"""Called with the training's name, rounds done, rounds in all, and a new evaluation or None; by a
comparison also with the share of all work that is done."""

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
    **unknown: Never,
) -> Result:
    """Train a method on a federation and evaluate it.

    `model` is any module, or a `Task` where classification by cross entropy is not the problem.
    Its weights are where training begins; `seed` decides cohorts, batches and shift partners.
    `budgets` are shares of the parameters that devices can hold, which clients take in turn, or
    "random:LOW:HIGH". In a round a share `participation` of the clients is sampled, or
    `clients_per_round` of them, among those that are `available`; the update of each is lost with
    probability `drop`. `novel` clients are kept out of training and evaluated apart. Numbers in
    messages are of `message_dtype`. With `out` the run has a directory; the same call goes on from
    its last commit after any interruption.
    """
    for key in unknown:
        raise MasqueradeError("E201", f"`mq.run` takes no `{key}`{toml.said_of('train', key)}")
    chosen = tuple(views or method.views)
    wrong = [view for view in chosen if view not in method.views]
    if wrong:
        raise MasqueradeError("E202", f"unknown views {wrong}; there are {method.views}")
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
    evaluate, compute = evaluate or Evaluate(), compute or Compute()
    toml.check(method=method, train=train, evaluate=evaluate, compute=compute)
    check_available(available)
    shares = budgets_of(budgets, federation.clients, seed)
    warn_of_budgets([(type(method).__name__, method)], shares)
    check_novel(novel, federation.clients)
    spec = TrainingSpec(
        method=method,
        task=model if isinstance(model, Task) else Task(model),
        federation=federation,
        train=train,
        evaluate=evaluate,
        compute=compute,
        seed=seed,
        views=chosen,
        names=tuple(_name(method, view) for view in chosen),
        budgets=tuple(shares),
        novel=tuple(novel),
    )
    opened = None if out is None else _opener(Path(out))
    with running(spec, _program, opened) as made:
        return complete(made, watch)


def start(
    config: Config,
    training: Training,
    path: Path,
    watch: Watch = _quiet,
    models: bool = True,
    begun: bool = False,
) -> list[Record]:
    """Run one training in a directory; return its summaries, and keep its models if asked.

    The directory is a new one, unless the training may be `begun` or done there already.
    """
    if begun and (path / "summary.json").is_file():
        return read_results(path)
    if begun and (path / "config.toml").is_file():
        return resume(path, watch, models)

    def opened(text: str) -> RunDirectory:
        return RunDirectory.create(path, text)

    spec = resolve(config, training)
    with running(spec, _configuration(config, training), opened) as made:
        return complete(made, watch, models).summaries


def resume(path: Path, watch: Watch = _quiet, models: bool = True) -> list[Record]:
    """Continue the run in a directory, to the same bits as if it had never stopped."""
    with RunDirectory.open(path) as directory:
        if "python" in toml.read_file(directory.path / "config.toml"):
            text = f"{path} is a run of a Python program, which alone has its method and network"
            raise MasqueradeError("E202", f"{text}; call the program again, and it goes on")
        config = toml.load(directory.path / "config.toml")
        (training,) = trainings(config)
        spec = resolve(config, training)
        with running(spec, _configuration(config, training), lambda text: directory) as made:
            if made.state.number == spec.train.rounds and (path / "summary.json").is_file():
                return read_results(path)
            return complete(made, watch, models).summaries


@dataclass(frozen=True, eq=False)
class Running:
    """A run that can go on: its simulation, its state, and where both are kept."""

    simulation: Simulation
    evaluator: Evaluator
    state: RunState
    directory: RunDirectory | None
    origin: Record
    """Facts that have to be the same when it is resumed."""


@contextmanager
def running(
    spec: TrainingSpec,
    describe: Callable[[Simulation], str],
    opened: Callable[[str], RunDirectory] | None,
) -> Iterator[Running]:
    """Build a run, at its beginning or at its last commit.

    `describe` gives the text of its `config.toml`, and `opened` its directory from that text.
    """
    with simulating(spec) as simulation, ExitStack() as stack:
        state = simulation.begin()
        with state.clock.measure("start-up"):
            evaluator = Evaluator.of(simulation)
        if opened is None:
            yield Running(simulation, evaluator, state, None, {})
            return
        text = describe(simulation)
        directory = stack.enter_context(opened(text))
        began = origin(simulation, text)
        restore(state, directory, began)
        yield Running(simulation, evaluator, state, directory, began)


def complete(made: Running, watch: Watch = _quiet, models: bool = True) -> Result:
    """Do the rounds that are left, evaluate, and write what a run directory holds at its end."""
    spec, server, state = made.simulation.spec, made.simulation.server, made.state
    # What a program trains is called by its class.
    name = type(spec.method).__name__ if spec.data is None else spec.names[0][0]
    with checkpointed(made.directory, spec.compute.commit_every, made.origin, state) as commit:

        def after_round(state: RunState, record: Record) -> None:
            commit(state, record, state.number == server.rounds)
            evaluated = state.history[-1] if "views" in record else None
            watch(name, state.number, server.rounds, evaluated)

        train(server, made.simulation.engine, state, made.evaluator.between_rounds, after_round)
    summaries, personal = made.evaluator.final(state)
    for summary, (name, title) in zip(summaries, spec.names, strict=True):
        summary |= {"method": name, "title": title, "data": spec.federation.name}
        summary["initial"] = _initial_bytes(spec)
    if made.directory is not None:
        _write(made.directory, server, summaries, personal if models else {})
    return Result(spec.method, server.task, summaries, personal)


def _write(
    directory: RunDirectory,
    server: Server,
    summaries: list[Record],
    personal: dict[str, list[Message]],
) -> None:
    """Write what a run directory holds at its end: models by client and view, and the summary."""
    for view, own in personal.items():
        for id, model in zip(server.known, own, strict=True):
            name = model_files.client_file(id, view, len(server.clients))
            model_files.write(directory, name, model)
    directory.write_text("summary.json", json.dumps(summaries, indent=1))


def _initial_bytes(spec: TrainingSpec) -> float:
    """Return what the initial weights cost a client: a seed, or a download."""
    # A program's weights are its own affair; those of a named network are drawn from a seed.
    seeded = spec.data is not None and not spec.train.weights
    whole = tree.size(spec.task.initial) * spec.task.dtype.itemsize
    return float(SEED_BYTES if seeded else whole)


def _name(method: Method, view: str) -> tuple[str, str]:
    """Name a view: by the entry of METHODS that its class and view make, or by its class."""
    cls = type(method)
    fitting = {n: entry for n, entry in METHODS.of_class(cls).items() if entry.view == view}
    # Of the entries whose settings fit, the one that states most of them.
    names = sorted(
        (n for n, entry in fitting.items() if vars(method).items() >= set(entry.settings)),
        key=lambda name: -len(fitting[name].settings),
    )
    if names:
        return names[0], fitting[names[0]].title
    return f"{cls.__name__.lower()}:{view}", f"{cls.__name__} ({view})"


def _opener(path: Path) -> Callable[[str], RunDirectory]:
    """Open the directory of the same run, or make it."""

    def opened(text: str) -> RunDirectory:
        begun = (path / "config.toml").exists()
        return RunDirectory.open(path) if begun else RunDirectory.create(path, text)

    return opened


def _program(simulation: Simulation) -> str:
    """Describe a run that no configuration file could: its method and model are objects."""
    # Simulating without a run directory needs torch and numpy alone.
    import tomli_w

    spec = simulation.spec
    records = {"train": spec.train, "evaluate": spec.evaluate, "compute": spec.compute}
    tables = {name: toml.plain(record) for name, record in records.items()}
    initial = digest(Part(spec.task.initial))
    facts = {"method": repr(spec.method), "initial": int(initial), "views": spec.views}
    return tomli_w.dumps({"python": facts, **tables})


def _configuration(config: Config, training: Training) -> Callable[[Simulation], str]:
    """Return what writes a configuration as it was resolved for one training."""

    def describe(simulation: Simulation) -> str:
        return toml.dump(resolved(config, training, simulation.spec))

    return describe
