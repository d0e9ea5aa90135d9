"""The command `masquerade`: it trains, reports, reproduces, and takes models out to use them."""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import click
import typer

from masquerade.cli.check import check
from masquerade.cli.data import data_app
from masquerade.cli.export import bench_model, export, predict
from masquerade.cli.methods import methods, models
from masquerade.cli.report import report
from masquerade.cli.reproduce import reproduce
from masquerade.cli.sweep import sweep
from masquerade.cli.train import Stopped, compare, resume, run
from masquerade.errors import MasqueradeError, MasqueradeWarning

app = typer.Typer(
    help="Personal, sparse models for every client of a federation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, compare, sweep, resume, report, reproduce, methods, models),
    *(check, export, predict, bench_model),
)
for each in _COMMANDS:
    app.command(each.__name__.replace("_", "-"))(each)


def _version(wanted: bool) -> None:
    if wanted:
        from masquerade import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train a personal, sparse model for every client of a federation."""


STATUS_WHEN_STOPPED: dict[int, int] = {signal.SIGTERM: 75, signal.SIGINT: 130}


def main() -> None:
    """Run the command; turn every error into a message and an exit status."""
    debug = "--debug" in sys.argv
    for number in STATUS_WHEN_STOPPED:
        signal.signal(number, _stop)
    warnings.showwarning = _show_warning
    warnings.filterwarnings("always", category=MasqueradeWarning)
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        if ended.code == USAGE:
            _hint(sys.argv[1:])
        raise
    except (Stopped, Exception) as error:
        if debug:
            raise
        message, status = _explain(error)
        print(message, file=sys.stderr)
        raise SystemExit(status) from None


USAGE = 2
"""The exit status of a command that cannot be read."""
RENAMED = {"again": "--rerun"}
"""Options of older versions."""


def _commands() -> Iterator[click.Command]:
    """Yield every command, those of groups too."""
    whole = typer.main.get_command(app)
    waiting: list[click.Command] = [whole]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += getattr(each, "commands", {}).values()


def _hint(words: list[str]) -> None:
    """Say what options that there are not are called here; many of them are settings."""
    from masquerade.config.toml import said_of

    known = {option for command in _commands() for each in command.params for option in each.opts}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in known:
            key = word[2:].partition("=")[0].replace("-", "_")
            said = f"; take {RENAMED[key]}" if key in RENAMED else said_of("", key)
            if said:
                setting = (
                    "" if key in RENAMED else "; settings are given as --set SECTION.KEY=VALUE"
                )
                print(
                    f"`{word.partition('=')[0]}` is no option here{said}{setting}", file=sys.stderr
                )


def _explain(error: BaseException) -> tuple[str, int]:
    if isinstance(error, MasqueradeError):
        return str(error), error.exit_status
    if isinstance(error, MemoryError):
        return (
            "E504 Out of memory. Lower compute.clients_per_chunk or train.batch_size, then resume.",
            5,
        )
    notes = " ".join(getattr(error, "__notes__", []))
    if isinstance(error, Stopped):
        return f"Stopped at your request. {notes or 'Nothing had been started.'}", error.status
    where = f" ({notes})" if notes else ""
    again = "Run the same command with --debug for the traceback."
    return f"E100 {type(error).__name__}: {error}{where}\n{again}", 1


def _stop(number: int, frame: object) -> None:
    raise Stopped(STATUS_WHEN_STOPPED[number])


def _show_warning(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
    if issubclass(category, MasqueradeWarning):
        print(message, file=sys.stderr)
