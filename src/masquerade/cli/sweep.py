"""The command `masquerade sweep`: hyperparameters chosen on validation data."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    Partition,
    Quiet,
    Rounds,
    Sep,
    Settings,
    TaskName,
    column_options,
)
from masquerade.cli.progress import echo
from masquerade.cli.train import fresh, named, resumable, source_of, tables_of
from masquerade.errors import MasqueradeError

if TYPE_CHECKING:
    from masquerade.config.settings import Config
    from masquerade.sweeps.choice import Row
    from masquerade.sweeps.sweep import Order


def sweep(
    over: Annotated[
        list[str],
        typer.Option(
            help="KEY=V1,V2,…: values to try; for --optuna also KEY=uniform:LOW:HIGH and"
            " KEY=log:LOW:HIGH. Repeatable: all combinations are tried."
        ),
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="The same as --config.")
    ] = None,
    config: ConfigFile = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Seeds of every trial, 1 to N; the file's by default."),
    ] = None,
    optuna: Annotated[
        int, typer.Option(min=0, help="Trials that Optuna suggests, instead of the full grid.")
    ] = 0,
    metric: Annotated[
        str,
        typer.Option(
            help="What is best: own, own_by_samples, own_bottom_decile, shift, pooled_shift, or a"
            " metric such as macro_f1."
        ),
    ] = "own",
    methods: Annotated[
        list[str] | None,
        typer.Option("--methods", "--method", help="Methods, separated by commas."),
    ] = None,
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
    engine: EngineName = None,
    settings: Settings = None,
    out: Out = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time, each in a process.")] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Try hyperparameters on validation data, and write the best configuration.

    Every method gets the same trials. Each training is a run directory inside the
    sweep's, and best.toml there is the configuration with the best settings of every method. What
    was stopped goes on with `masquerade resume DIR`, or with the same command and --out.

    Example: masquerade sweep --method ditto --data digits --over method.lam=0.1,1 --seeds 3
    """
    from masquerade.config.toml import parse
    from masquerade.sweeps import space
    from masquerade.sweeps.sweep import Order, run

    if file is not None and config is not None:
        text = f"`{file}` and `--config {config}` are two configurations"
        raise MasqueradeError("E201", f"{text}; give one")
    config = config or file
    columns = column_options(label, client, drop, categorical, impute, sep, encoding, missing, task)
    names = named(methods)
    if names is None and config is None:
        raise MasqueradeError("E201", "which method is swept? Give --method NAME, or a TOML file")
    flags = (names, data, columns, clients, partition, model, rounds, None, engine, None, settings)
    parsed = parse(tables_of(config, *flags), source_of(config, flags))
    space.parse(over)
    chosen = parsed.train.seeds if seeds is None else tuple(range(1, seeds + 1))
    order = Order(tuple(over), chosen, metric, optuna)
    out = out or fresh("sweep")
    if not quiet and not as_json:
        typer.echo(_announced(parsed, order, config is not None), err=True)
    with resumable(out):
        rows = run(out, parsed, order, jobs, quiet or as_json)
    show_sweep(out, rows, metric, quiet, as_json)


def _announced(config: "Config", order: "Order", of_file: bool) -> str:
    """Say in one line what is about to be tried, and on what."""
    from masquerade.config.toml import title_of

    names = ", ".join(title_of(name, config) for name in config.methods)
    how = f"{order.optuna} trials of Optuna" if order.optuna else "the full grid"
    seeds = ", ".join(map(str, order.seeds))
    many = "seeds" if len(order.seeds) > 1 else "seed"
    text = f"Sweeping {names} on {config.data.name}: {how}, {many} {seeds}, on validation data."
    if of_file and config.evaluate.split == "test":
        text += ' The file\'s evaluate.split = "test" is kept for best.toml alone.'
    return text


def show_sweep(path: Path, rows: "Sequence[Row]", metric: str, quiet: bool, as_json: bool) -> None:
    """Print the table of a sweep, and where its best configuration lies."""
    if as_json:
        from masquerade.results.json_records import to_json

        typer.echo(json.dumps([to_json(row) for row in rows]))
    elif not quiet:
        from masquerade.sweeps.table import terminal

        echo(terminal(rows, metric))
        if (path / "best.toml").is_file():
            typer.echo(f"Best configuration: {path / 'best.toml'}")
