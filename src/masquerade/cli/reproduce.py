"""The command `masquerade reproduce`: the papers' tables by name."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from masquerade.cli.options import AsJson, Debug, Quiet
from masquerade.errors import MasqueradeError


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(help="A table, such as dmpfl/table1; without one, all are listed."),
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Only this row; give several for several.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Seed, those of the table by default; give several.")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Try settings on validation data, and run no row.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A small version that takes minutes, kept under out/quick."),
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing; print, and write the page anew.")
    ] = False,
    write_page: Annotated[
        bool, typer.Option("--page/--no-page", help="Write the table's page; it needs scipy.")
    ] = True,
    write_index: Annotated[
        bool, typer.Option("--index", help="Write docs/results/index.md and runs/QUEUE.md.")
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="Run what waits of all tables, as in runs/QUEUE.md.")
    ] = False,
    minutes: Annotated[
        float, typer.Option(help="Begin no training after so many minutes.", show_default=False)
    ] = math.inf,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run again what is done.")] = False,
    jobs: Annotated[int, typer.Option(help="Trainings at a time, each in a process.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="compute.key=value; repeatable.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the papers' tables, or run what is missing of one and print it beside the paper.

    Results are files under docs/results, one per row and seed; the table's page is made of them.
    Call it in a checkout of the repository. What was stopped goes on with the same command.

    Example: masquerade reproduce dmpfl/table1 --row fedavg
    """
    from masquerade.reproduce import command, index, page
    from masquerade.results.json_records import to_json

    order = command.Order(
        rows=row or (),
        seeds=seed or (),
        search=search,
        quick=quick,
        show=show,
        rerun=rerun,
        page=write_page,
        jobs=jobs,
        minutes=minutes,
        compute=[f"compute.device={device}", *(settings or [])],
        quiet=quiet or as_json,
    )
    try:
        if write_index:
            for path in index.write(Path()):
                typer.echo(f"Written: {path}")
        elif queue:
            if table is not None:
                raise MasqueradeError("E201", "`--queue` is of all tables; leave out the table")
            command.work_off(order, Path())
        elif not as_json:
            text = command.describe(table, order, Path())
            if not quiet:
                typer.echo(text)
        elif table is None:
            typer.echo(json.dumps(to_json(command.overview(Path())), indent=1))
        else:
            rows = page.values(command.reproduce(table, order, Path()))
            typer.echo(json.dumps(to_json(rows), indent=1))
    except BaseException as error:
        if not isinstance(error, Exception):
            error.add_note("The same command goes on from the last commit.")
        raise
