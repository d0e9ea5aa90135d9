"""The command `masquerade watch`: how far a run is, in the terminal or in a browser."""

import json
import threading
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from masquerade.cli.options import AsJson, Debug
from masquerade.cli.train import Stopped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from masquerade.report.live import Training

EVERY = 1.0
"""Seconds between two looks at the files."""


def watch(
    path: Annotated[Path, typer.Argument(help="Directory of a run or a comparison.")],
    browser: Annotated[
        bool, typer.Option("--browser", help="Show it in a browser on this machine.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 is any that is free.")
    ] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show how far a run is until it ends; it is read, and never disturbed.

    In a pipe, and with --json, it says so once.

    Example: masquerade watch out/demo --browser
    """
    from rich.console import Console
    from rich.live import Live

    from masquerade.experiments.live_server import HOST, rows, server
    from masquerade.experiments.watching import finished
    from masquerade.experiments.watching import watch as look

    found = look(path)
    if as_json:
        typer.echo(json.dumps([_record(each) for each in rows(found)]))
        return
    console = Console()
    if browser:
        served = server(path, port)
        address = f"http://{HOST}:{served.server_port}/"
        typer.echo(f"The page is at {address} until you stop this (Ctrl-C).")
        webbrowser.open(address)
        threading.Thread(target=served.serve_forever, daemon=True).start()
    elif not console.is_terminal:
        console.print(_table(rows(found)))
        return
    # Who stops watching stops nothing else.
    with suppress(Stopped), Live(_table(rows(found)), console=console) as shown:
        while browser or not finished(path):
            time.sleep(EVERY)
            shown.update(_table(rows(look(path))))


def _table(trainings: "Sequence[Training]") -> "Table":
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    from masquerade.report.live import duration

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for heading in ("Training", "Seed", "Rounds", "", "Own data", "Left"):
        table.add_column(heading, justify="left" if heading in ("Training", "") else "right")
    for each in trainings:
        own = "" if each.own != each.own else f"{each.own:.1f}"
        bar = ProgressBar(max(1, each.rounds), each.done, width=24)
        count = f"{each.done}/{each.rounds}"
        table.add_row(each.title, str(each.seed), count, bar, own, duration(each.left))
    return table


def _record(each: "Training") -> dict[str, object]:
    known = {name: value for name, value in vars(each).items() if value == value}
    return {**dict.fromkeys(vars(each)), **known}
