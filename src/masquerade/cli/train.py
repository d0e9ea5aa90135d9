"""The commands that train: `run`, `compare` and `resume`."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from masquerade.cli.options import (
    AsJson,
    Categorical,
    ClientColumn,
    Clients,
    ConfigFile,
    DataName,
    Debug,
    Drop,
    Encoding,
    EngineName,
    Impute,
    Label,
    Missing,
    Model,
    Out,
    OwnMethods,
    OwnModel,
    Partition,
    Processes,
    Quiet,
    Rounds,
    Seeds,
    Sep,
    Settings,
    TaskName,
    Track,
    column_options,
)
from masquerade.cli.progress import live
from masquerade.cli.report import show
from masquerade.errors import MasqueradeError, counted

if TYPE_CHECKING:
    from masquerade.config.settings import Config
    from masquerade.config.toml import Tables
    from masquerade.experiments.callbacks import Callback


class Stopped(BaseException):
    """The process was asked to end; no handler of errors may take this for one."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def run(
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--methods",
            help="Method: a name of `masquerade methods`, or path.py:Class.",
        ),
    ] = None,
    config: ConfigFile = None,
    data: DataName = None,
    label: Label = None,
    client: ClientColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = None,
    sep: Sep = None,
    encoding: Encoding = None,
    missing: Missing = None,
    task: TaskName = None,
    clients: Clients = None,
    partition: Partition = None,
    model: Model = None,
    rounds: Rounds = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of training; samples are partitioned by data.seed.")
    ] = None,
    settings: Settings = None,
    out: Out = None,
    engine: EngineName = None,
    processes: Processes = None,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train one method and evaluate every view of it.

    Example: masquerade run --method dmpfl --rounds 20 --set method.sparsity=0.8
    """
    from masquerade.config.resolve import trainings
    from masquerade.config.toml import like_of, method_of, parse
    from masquerade.experiments.run import start
    from masquerade.methods import METHODS

    seeds = None if seed is None else [seed]
    columns = column_options(label, client, drop, categorical, impute, sep, encoding, missing, task)
    names = named(method)
    flags = (
        names,
        data,
        columns,
        clients,
        partition,
        model,
        rounds,
        seeds,
        engine,
        processes,
        settings,
    )
    tables = tables_of(config, *flags)
    parsed = parse(tables, source_of(config, flags))
    if len({training.method for training in trainings(parsed)}) > 1:
        text = f"`run` trains one method, and here are {', '.join(parsed.methods)}"
        raise MasqueradeError("E201", f"{text}; name one with --method, or use `compare`")
    first = parsed.methods[0]
    if len(parsed.train.seeds) > 1:
        raise MasqueradeError("E201", "`run` takes one seed; `compare` takes several")
    asked = method_of(first, parsed)
    same = [
        name
        for name in METHODS.of_class(type(asked))
        if method_of(name, parsed) == asked and like_of(name, parsed) == like_of(first, parsed)
    ]
    if parsed.privacy.unit != "sample":
        # Others may be trained before use, which would be another guarantee.
        parsed = dataclasses.replace(parsed, methods=tuple(same))
    out = out or fresh(first)
    with follow_training(parsed, out, track, quiet, as_json, "methods" in tables) as told:
        results = start(parsed, out, told, page=True)
    show(out, results, quiet, as_json)


DEMO = ("local", "fedavg", "fedavg_ft", "fedprox", "dmpfl", "dmpfl_plus")
"""What is compared unless methods are named."""


def compare(
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods", "--method", help="Methods, separated by commas; also path.py:Class."
        ),
    ] = None,
    config: ConfigFile = None,
    data: DataName = None,
    label: Label = None,
    client: ClientColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = None,
    sep: Sep = None,
    encoding: Encoding = None,
    missing: Missing = None,
    task: TaskName = None,
    clients: Clients = None,
    partition: Partition = None,
    model: Model = None,
    rounds: Rounds = None,
    seed: Seeds = None,
    settings: Settings = None,
    out: Out = None,
    engine: EngineName = None,
    processes: Processes = None,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train several methods on the same clients and put them side by side.

    Views of one training (FedAvg and FedAvg+FT, DM-PFL and DM-PFL+) are trained once.

    Example: masquerade compare --methods local,fedavg,fedavg_ft,dmpfl --rounds 20 --seed 1 --seed 2
    """
    names = named(methods)
    if names is None and config is None:
        names = list(DEMO)
    from masquerade.config.toml import parse
    from masquerade.experiments import run as experiment

    columns = column_options(label, client, drop, categorical, impute, sep, encoding, missing, task)
    flags = (
        names,
        data,
        columns,
        clients,
        partition,
        model,
        rounds,
        seed,
        engine,
        processes,
        settings,
    )
    parsed = parse(tables_of(config, *flags), source_of(config, flags))
    out = out or fresh("compare")
    with follow_training(parsed, out, track, quiet, as_json) as told:
        results = experiment.compare(out, parsed, told)
    show(out, results, quiet, as_json)


def resume(
    path: Annotated[Path, typer.Argument(help="Directory of a run, a comparison or a sweep.")],
    method: OwnMethods = None,
    model: OwnModel = None,
    rounds: Annotated[
        int | None, typer.Option(help="Go on to so many rounds, also of a run that is done.")
    ] = None,
    processes: Processes = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-change",
            metavar="KEY=VALUE",
            help="Go on with another value of evaluate.bandwidth, compute.commit_every, "
            "compute.store, compute.processes or train.rounds, and of no other; repeatable.",
        ),
    ] = None,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Continue what was stopped, to the same bits as if it had not been.

    What is damaged of results is written again. A run can be given more rounds where its method
    would have done the same so far.

    Example: masquerade resume out/fedavg-1 --rounds 80
    """
    from masquerade.experiments import run as experiment
    from masquerade.results import Summary
    from masquerade.storage.results import is_comparison, is_sweep

    import_code(method, model)
    changes = changes_of(rounds, processes, settings)
    if is_sweep(path):
        if changes:
            options = "--rounds, --processes and --allow-change"
            raise MasqueradeError("E202", f"a sweep goes on as it was begun; leave out {options}")
        _resume_sweep(path, track, quiet, as_json)
        return
    results: Sequence[Summary]
    with resumable(path), told_of(track, quiet or as_json) as told:
        if is_comparison(path):
            results = experiment.compare(path, None, told, changes)
        else:
            results = experiment.resume(path, told, page=True, changes=changes)
    show(path, results, quiet, as_json)


def changes_of(
    rounds: int | None, processes: int | None, settings: list[str] | None
) -> "dict[str, Any]":
    """Return the settings that a run is to go on with, section.key → value."""
    from masquerade.config.toml import apply

    changed = apply({}, settings or [])
    found = {f"{name}.{key}": each for name, one in changed.items() for key, each in one.items()}
    named = {"train.rounds": rounds, "compute.processes": processes}
    return found | {key: value for key, value in named.items() if value is not None}


def _resume_sweep(path: Path, track: list[str] | None, quiet: bool, as_json: bool) -> None:
    from masquerade.cli.sweep import show_sweep
    from masquerade.sweeps import sweep

    if track:
        raise MasqueradeError("E202", "the trainings of a sweep are not tracked; leave out --track")
    with resumable(path):
        rows = sweep.resume(path, quiet=quiet or as_json)
    show_sweep(path, rows, sweep.read_order(path).metric, quiet, as_json)


def tables_of(
    config: Path | None,
    methods: list[str] | None,
    data: str | None,
    columns: Mapping[str, Any],
    clients: int | None,
    partition: str | None,
    model: str | None,
    rounds: int | None,
    seeds: list[int] | None,
    engine: str | None,
    processes: int | None,
    settings: list[str] | None,
) -> "Tables":
    """Put flags over the file, and settings over both; `columns` are the options of a table."""
    from masquerade.config import code
    from masquerade.config.settings import TABLE_OPTIONS
    from masquerade.config.toml import apply, read_file

    tables = read_file(config) if config is not None else {}
    methods, model = import_code(methods, model)
    flags = {
        ("data", "name"): data,
        ("data", "clients"): clients,
        ("data", "partition"): partition,
        ("train", "model"): model,
        ("train", "rounds"): rounds,
        ("train", "seeds"): seeds,
        ("compute", "engine"): engine,
        ("compute", "processes"): processes,
        **{("data", TABLE_OPTIONS[option]): value for option, value in columns.items()},
    }
    for (section, key), value in flags.items():
        if value is not None:
            tables.setdefault(section, {})[key] = value
    if methods is not None:
        tables["methods"] = methods
    if own := code.hashes((*(methods or []), model or "")):
        tables["code"] = own
    return apply(tables, settings or [])


def named(methods: list[str] | None) -> list[str] | None:
    """Return the methods that a command names, separated by commas or options; None for none."""
    listed = [name.strip() for each in methods or [] for name in each.split(",")]
    return [name for name in listed if name] or None


def source_of(config: Path | None, flags: tuple[object, ...]) -> str:
    """Say whence the settings of a command come."""
    sources = [str(config)] * (config is not None)
    sources += ["command line"] * any(flag not in (None, {}) for flag in flags)
    return " and ".join(sources) or "configuration"


def fresh(name: str) -> Path:
    """Return a directory under out/ that does not exist yet."""
    # Code from a file is called FILE.py:NAME.
    name, number = name.rpartition(":")[2], 1
    while (path := Path("out") / f"{name}-{number}").exists():
        number += 1
    return path


@contextmanager
def follow_training(
    config: "Config",
    out: Path,
    track: list[str] | None,
    quiet: bool,
    as_json: bool,
    named: bool = True,
) -> "Iterator[Sequence[Callback]]":
    """Say what is trained, show progress, and say how to go on when it is stopped."""
    from masquerade.data.source import check_known

    check_known(config.data.name)
    if not quiet and not as_json:
        default = "" if named else " No method was named; --method takes another."
        # Like progress, it is no part of the results that are printed.
        typer.echo(_announced(config) + default, err=True)
    with resumable(out), told_of(track, quiet or as_json) as told:
        yield told


@contextmanager
def told_of(track: list[str] | None, quiet: bool) -> "Iterator[Sequence[Callback]]":
    """Yield the callbacks of a command: live progress, and the trackers that it names."""
    from masquerade.trackers.parse import parse

    trackers = parse(track or ())
    with live(quiet) as progress:
        yield (*progress, *trackers)


def import_code(
    methods: list[str] | None, model: str | None
) -> tuple[list[str] | None, str | None]:
    """Import what the command names as path.py:NAME; return what it is called from now on."""
    from masquerade.config import code

    if methods is not None:
        methods = [code.load_method(each) if code.is_code(each) else each for each in methods]
    if model is not None and code.is_code(model):
        model = code.load_network(model)
    return methods, model


def _announced(config: "Config") -> str:
    """Say in one line what is about to be trained."""
    from masquerade.config.toml import title_of

    names = ", ".join(title_of(name, config) for name in config.methods)
    seeds = ", ".join(map(str, config.train.seeds))
    many = "seeds" if len(config.train.seeds) > 1 else "seed"
    rounds = counted(config.train.rounds, "round")
    return f"Training {names} on {config.data.name}: {rounds}, {many} {seeds}."


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Say how to go on when the work is stopped."""
    try:
        yield
    except Stopped as error:
        config = path / "config.toml"
        if config.exists():
            own = "[code]" in config.read_text(encoding="utf-8")
            also = " with this command's --method and --model" if own else ""
            error.add_note(f"Resume with: masquerade resume {path}{also}")
        raise
