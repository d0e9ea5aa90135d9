"""The commands `masquerade data`: fetch, add, list, show; and `masquerade models`."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from masquerade.cli.options import (
    AsJson,
    Categorical,
    ClientColumn,
    Clients,
    Debug,
    Drop,
    Encoding,
    Impute,
    Label,
    Missing,
    Partition,
    Quiet,
    Sep,
    TaskName,
    column_options,
)
from masquerade.cli.progress import echo
from masquerade.errors import MasqueradeError

if TYPE_CHECKING:
    from masquerade.data.cache import Manifest
    from masquerade.data.fetch import Watch
    from masquerade.report.labels import LabelCounts

Force = Annotated[bool, typer.Option("--force", help="Replace the dataset of this name.")]

data_app = typer.Typer(help="Get datasets, and see how clients hold them.", no_args_is_help=True)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[
        str, typer.Argument(help="A dataset of the papers; see `masquerade data list`.")
    ],
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Download a dataset from where it was published, and check it.

    A download that broke off goes on from where it was.

    Example: masquerade data fetch cifar10
    """
    from masquerade.data.fetch import fetch

    with _downloads(quiet or as_json) as watch:
        manifest = fetch(name, force, watch)
    _told(manifest, quiet, as_json)


@data_app.command("add")
def data_add(
    name: Annotated[str, typer.Argument(help="A dataset of the papers, or a name of your own.")],
    source: Annotated[
        Path, typer.Option("--from", help="Its files: a folder, an archive, or one file.")
    ],
    format: Annotated[
        str | None,
        typer.Option(
            help="idx, cifar, cifar10c, har, huggingface, leaf, gutenberg, npz, csv, parquet or "
            "images; recognized if not given."
        ),
    ] = None,
    label: Label = None,
    client: ClientColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = None,
    sep: Sep = None,
    encoding: Encoding = None,
    missing: Missing = None,
    task: TaskName = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read files that you have, and keep them for all runs to come.

    Example: masquerade data add hosp --from hosp.csv --label outcome --client site --drop id
    """
    from masquerade.data.fetch import add
    from masquerade.data.readers.options import TableOptions
    from masquerade.data.source import DATASETS

    if name in DATASETS:
        text = f"`{name}` is a dataset that the package brings along; choose another name"
        raise MasqueradeError("E201", text)
    columns = column_options(label, client, drop, categorical, impute, sep, encoding, missing, task)
    _told(add(name, source, format, force, TableOptions(**columns)), quiet, as_json)


@data_app.command("list")
def data_list(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the datasets that can be named, and which of them are here.

    Example: masquerade data list
    """
    from masquerade.cli import listings

    if as_json:
        typer.echo(json.dumps(listings.dataset_records()))
    else:
        echo(listings.datasets_table())


@data_app.command("show")
def data_show(
    name: Annotated[
        str, typer.Argument(help="A dataset: a name, or the path of a file or folder.")
    ],
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
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write the picture to this .svg or .png file as well.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a dataset, and how many samples of each class each client holds.

    Example: masquerade data show digits --clients 10 --partition pathological --out pairs.svg
    """
    from masquerade.cli import listings
    from masquerade.config.resolve import federation_of
    from masquerade.config.settings import TABLE_OPTIONS, Data
    from masquerade.data.source import about

    columns = column_options(label, client, drop, categorical, impute, sep, encoding, missing, task)
    given = {TABLE_OPTIONS[option]: value for option, value in columns.items()}
    data = Data(name, clients or 0, partition or "auto", seed=seed, **given)
    federation, _ = federation_of(data)
    known = about(name)
    if out is not None:
        _draw(listings.sample_counts(federation), out)
    if as_json:
        told = {} if known is None else {"about": dataclasses.asdict(known)}
        typer.echo(json.dumps(listings.count_record(federation) | told))
        return
    if known is not None:
        echo(listings.dataset_table(known))
    if federation.features:
        echo(listings.column_table(federation))
    echo(listings.label_table(federation))


def _draw(counts: "LabelCounts", path: Path) -> None:
    from masquerade.report.labels import over_classes
    from masquerade.report.render import file_of
    from masquerade.storage import atomic

    if path.suffix not in (".svg", ".png"):
        raise MasqueradeError("E201", f"`--out {path}`: pictures are written as .svg or .png")
    if counts.classes is None:
        raise MasqueradeError("E202", f"`{counts.data}` has no classes to be drawn")
    try:
        atomic.write_file(path, file_of(over_classes(counts), path.suffix[1:]))
    except OSError as fault:
        raise MasqueradeError("E502", f"cannot write {path}: {fault.strerror}") from None


def _told(manifest: "Manifest", quiet: bool, as_json: bool) -> None:
    from masquerade.cli import listings

    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(manifest)))
    elif not quiet:
        echo(listings.dataset_table(manifest))


@contextmanager
def _downloads(quiet: bool) -> "Iterator[Watch]":
    """Show a bar for every file that is being fetched."""
    if quiet:
        yield lambda name, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True))
    bars = {}

    def watch(name: str, done: int, total: int | None) -> None:
        # Started with the first byte: a refusal before it is one line.
        progress.start()
        if name not in bars:
            bars[name] = progress.add_task(name, total=total)
        progress.update(bars[name], completed=done, total=total)

    try:
        yield watch
    finally:
        if bars:
            progress.stop()
