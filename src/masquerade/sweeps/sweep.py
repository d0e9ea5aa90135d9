"""A sweep in its directory: trials are run directories, and what is done is not done again."""

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from masquerade.config import toml
from masquerade.config.resolve import (
    LoadedConfig,
    alone,
    rehearse,
    settle,
    trainings,
    with_partition,
)
from masquerade.config.settings import Config
from masquerade.errors import MasqueradeError
from masquerade.experiments.checkpoints import check_text
from masquerade.experiments.processes import perform_all
from masquerade.experiments.run import complete, configured, directory_at
from masquerade.methods import METHODS
from masquerade.results.alarms import warn_of
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.storage.results import SWEEP, read_results
from masquerade.storage.saved_folder import Folder, damaged, is_done
from masquerade.sweeps import space
from masquerade.sweeps.choice import BEST, LOST, Row, Tried, score, stand
from masquerade.sweeps.objective import Objective
from masquerade.sweeps.space import Trial

ROWS = "sweep.json"
BEST_CONFIG = "best.toml"
TRIALS = "trials"


@dataclass(frozen=True)
class Order:
    """What the command asks for; the table [sweep] of the directory's `config.toml` holds it."""

    over: tuple[str, ...]
    """As `--over` writes them."""
    seeds: tuple[int, ...] = (1,)
    metric: str = "own"
    optuna: int = 0
    """Trials that Optuna suggests for each method; 0 is the full grid."""


@dataclass(frozen=True)
class Job:
    """One training of a trial."""

    name: str
    config: Config
    folder: Path
    objective: Objective
    quiet: bool


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep that is under way in a directory."""

    path: Path
    config: Config
    """As it was given: `best.toml` is this with other hyperparameters."""
    order: Order
    loaded: LoadedConfig
    jobs: int
    """Trainings at a time."""
    quiet: bool

    @property
    def objective(self) -> Objective:
        """Return what trials are compared by."""
        return Objective(self.order.metric)

    def planned(self, trial: Trial, names: Sequence[str]) -> dict[str, list[Job]]:
        """Return the trainings of a trial by method, one per seed; views of one share theirs.

        A directory is named after all of its settings, so that what is in it is what is wanted.
        """
        config = replace(_tried(self.config, self.order, trial), methods=tuple(names))
        if any(METHODS[name].like for name in names):
            config = settle(self.loaded.alone(config)).config
        found: dict[str, list[Job]] = {name: [] for name in names}
        for training in trainings(config):
            only = alone(config, training)
            digest = hashlib.sha256(toml.dump(only).encode()).hexdigest()[:8]
            folder = self.path / TRIALS / f"{training.folder}-{digest}"
            said = space.written(space.own(trial, training.names[0]))
            name = f"{', '.join(training.names)}, seed {training.seed}: {said}"
            for each in training.names:
                found[each].append(Job(name, only, folder, self.objective, self.quiet))
        return found

    def train(self, jobs: Iterable[Job], of: str = "") -> None:
        """Do the trainings `of` something that are not done, each once."""
        missing = {job.folder: job for job in jobs if not is_done(job.folder)}
        numbered = [
            replace(job, name=f"{of}{_numbered(place, len(missing))}{job.name}")
            for place, job in enumerate(missing.values(), 1)
        ]
        perform_all(perform, numbered, self.jobs)

    def tried(self, method: str, trial: Trial, jobs: Sequence[Job]) -> Tried:
        """Read what a trial of a method reached."""
        results = [each for job in jobs for each in read_results(job.folder)]
        seeds = [each for each in results if each.method == method]
        runs = tuple(job.folder.relative_to(self.path).as_posix() for job in jobs)
        return Tried(method, space.own(trial, method), runs, seeds)


def _tried(config: Config, order: Order, trial: Trial) -> Config:
    """Return the configuration of a trial: its settings, the sweep's seeds, validation data."""
    metrics = dict.fromkeys((*config.evaluate.metrics, *Objective(order.metric).metrics))
    fixed = {
        "evaluate.split": "validation",
        "evaluate.metrics": list(metrics),
        "train.seeds": list(order.seeds),
    }
    return toml.parse(toml.put(toml.complete(config), {**trial, **fixed}), "sweep")


def _numbered(place: int, of: int) -> str:
    return f"{place} of {of}, " if of > 1 else ""


def perform(job: Job) -> None:
    """Train, from where it was interrupted if it was; clients' models are not kept."""
    loaded = LoadedConfig.of(job.config)
    (training,) = trainings(job.config)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    with configured(loaded, training, job.folder, begun=True) as made:
        result = complete(made, models=False)
    if not job.quiet:
        figures = [job.objective.figure([each]) for each in result.summaries]
        reached = ", ".join(each.lost or f"{each.mean:.2f}" for each in figures)
        print(f"{job.name}: {job.objective.name} {reached}", file=sys.stderr, flush=True)


def run(path: Path, config: Config, order: Order, jobs: int = 1, quiet: bool = False) -> list[Row]:
    """Do a sweep in a directory, or what is left of the same sweep there; return its rows."""
    swept = space.parse(order.over)
    _check(config, order, swept, jobs)
    trials = space.corners(swept) if order.optuna else space.grid(swept)
    # What cannot begin leaves no directory behind.
    configs = [_tried(config, order, trial) for trial in trials]
    loaded = LoadedConfig.of(configs[0])
    for each in configs:
        rehearse(loaded.alone(each))
    text = _text(config, order)
    with directory_at(path, begun=True, mark=SWEEP)(text) as directory:
        check_text(directory, text)
        sweep = Sweep(directory.path, config, order, loaded, jobs, quiet)
        tried = _optuna(sweep, swept) if order.optuna else _grid(sweep, trials)
        rows = _rows(tried, sweep.objective)
        held = json.dumps([to_json(row) for row in rows], indent=1)
        files = [(SWEEP, b""), (ROWS, held.encode())]
        directory.write_results(files)
        best = best_config(with_partition(loaded, config), order, rows, path.name)
        directory.write_results([*files, (BEST_CONFIG, best.encode())])
    chosen = [row.runs for row in rows if row.standing == BEST]
    # Trials are there to fail; what is alarming about the best of them matters.
    warn_of([seed for each in tried if each.runs in chosen for seed in each.seeds])
    return rows


def resume(path: Path, jobs: int = 1, quiet: bool = False) -> list[Row]:
    """Do what is left of the sweep in a directory."""
    tables = toml.read_file(path / "config.toml")
    tables.pop("sweep", None)
    config = toml.parse(tables, str(path / "config.toml"))
    return run(path, config, read_order(path), jobs, quiet)


def read_order(path: Path) -> Order:
    """Read what was asked for when a sweep began."""
    where = path / "config.toml"
    try:
        return from_json(Order, toml.read_file(where).get("sweep"))
    except ValueError as error:
        raise MasqueradeError("E401", f"{where} is damaged ({error}); start a new sweep") from None


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a sweep that is done."""
    folder = Folder.open(path)
    folder.check()
    try:
        return [from_json(Row, each) for each in parsed(folder.read(ROWS))]
    except (ValueError, TypeError) as error:
        raise damaged(path / ROWS, path, str(error)) from None


def _check(config: Config, order: Order, swept: space.Space, jobs: int) -> None:
    """Refuse what cannot be swept together."""
    if jobs < 1 or order.optuna < 0:
        text = f"`--jobs` is {jobs} and `--optuna` is {order.optuna}; give 1 or more"
        raise MasqueradeError("E201", text)
    if jobs > 1 and config.code:
        text = "code of your own is not imported in other processes; leave out --jobs"
        raise MasqueradeError("E202", text)
    shared = [key for key in swept if not key.startswith("method.")]
    if shared and len(config.methods) > 1:
        text = f"`{shared[0]}` is one setting for all of {', '.join(config.methods)}, and each"
        raise MasqueradeError("E202", f"{text} is chosen for itself; name one with --method")


def _text(config: Config, order: Order) -> str:
    import tomli_w

    return tomli_w.dumps({**toml.complete(config), "sweep": toml.plain(order)})


def _grid(sweep: Sweep, trials: Sequence[Trial]) -> list[Tried]:
    """Train all trials of a grid."""
    names = sweep.config.methods
    planned: dict[tuple[str, str], tuple[Trial, list[Job]]] = {}
    for trial in trials:
        for name, jobs in sweep.planned(trial, names).items():
            # Trials that differ in settings of other methods alone are one.
            planned.setdefault((name, repr(space.own(trial, name))), (trial, jobs))
    sweep.train(job for _, jobs in planned.values() for job in jobs)
    found = [sweep.tried(name, trial, jobs) for (name, _), (trial, jobs) in planned.items()]
    return sorted(found, key=lambda each: names.index(each.method))


def _optuna(sweep: Sweep, swept: space.Space) -> list[Tried]:
    """Train what Optuna suggests, as many trials for each method."""
    from masquerade.sweeps.study import search

    found: list[Tried] = []
    for name in sweep.config.methods:
        own = {key: each for key, each in swept.items() if space.concerns(key, name)}
        objective = _objective(sweep, name, found)
        search(own, sweep.order.optuna, sweep.order.seeds[0], objective)
    return found


def _objective(sweep: Sweep, name: str, found: list[Tried]) -> Callable[[Trial], float]:
    """Return what trains a trial of a method, notes it, and says how good it is."""

    numbers = itertools.count(1)

    def objective(trial: Trial) -> float:
        jobs = sweep.planned(trial, [name])[name]
        sweep.train(jobs, f"trial {next(numbers)} of {sweep.order.optuna}, ")
        tried = sweep.tried(name, trial, jobs)
        if all(tried.runs != other.runs for other in found):
            found.append(tried)
        return score(tried, sweep.objective)

    return objective


def _rows(tried: Sequence[Tried], objective: Objective) -> list[Row]:
    rows = []
    for _, own in itertools.groupby(tried, key=lambda each: each.method):
        rows += stand(list(own), objective)
    return rows


def best_config(config: Config, order: Order, rows: Sequence[Row], name: str) -> str:
    """Write the configuration with the best settings of every method, and why they are its."""
    best = {row.method: row for row in rows if row.standing == BEST}
    lost = [method for method in config.methods if method not in best]
    if lost:
        text = f"all trials of {', '.join(lost)} diverged, so that none is the best"
        raise MasqueradeError("E208", f"{text}; sweep lower learning rates, or set method.clip")
    chosen = {
        method: toml.parse(toml.put(toml.complete(config), dict(row.settings)))
        for method, row in best.items()
    }
    first = chosen[config.methods[0]]
    # What they were chosen by leads where they are trained, too.
    metrics = dict.fromkeys((*Objective(order.metric).metrics, *config.evaluate.metrics))
    first = replace(first, evaluate=replace(first.evaluate, metrics=tuple(metrics)))
    methods = {name: toml.complete(each)["method"][name] for name, each in chosen.items()}
    return "\n".join([*_head(order, rows, name), toml.dump(replace(first, method=methods))])


def _head(order: Order, rows: Sequence[Row], name: str) -> list[str]:
    seeds = ", ".join(map(str, order.seeds))
    over = f"mean over seeds {seeds}" if len(order.seeds) > 1 else f"seed {seeds}"
    how = f"{order.optuna} trials of Optuna" if order.optuna else "the full grid"
    lines = [
        f"# Chosen by the sweep {name}: the best `{order.metric}` on validation data, {over},",
        f"# of {how}: {' '.join(f'--over {each}' for each in order.over)}",
    ]
    for row in rows:
        figure = LOST if row.standing == LOST else f"{row.mean:.2f} {row.standing}"
        lines.append(f"#   {row.method}: {space.written(row.settings)}: {figure}")
    return lines
