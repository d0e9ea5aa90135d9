"""The command `masquerade`: it trains, reports, reproduces, and takes models out to use them."""

import errno
import io
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import click
import typer

from masquerade.cli import STATUS_WHEN_STOPPED
from masquerade.cli.check import check
from masquerade.cli.data import data_app
from masquerade.cli.deploy import deploy_app
from masquerade.cli.export import bench_model, export, predict
from masquerade.cli.methods import methods, models
from masquerade.cli.report import report
from masquerade.cli.reproduce import reproduce
from masquerade.cli.sweep import sweep
from masquerade.cli.train import Stopped, compare, resume, run
from masquerade.cli.watch import watch
from masquerade.engine.started import number_started, started
from masquerade.errors import MasqueradeError, MasqueradeWarning, brief, printable

app = typer.Typer(
    help="Personal, sparse models for every client of a federation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, compare, sweep, resume, watch, report, reproduce, methods, models),
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


def main() -> None:
    """Run the command; turn every error into a message and an exit status."""
    debug, number = "--debug" in sys.argv, number_started()
    if number:
        # Process 0 prints for all.
        sys.stdout = sys.stderr = io.StringIO()
    warnings.showwarning = _shown_once()
    warnings.filterwarnings("always", category=MasqueradeWarning)
    try:
        for each in STATUS_WHEN_STOPPED:
            signal.signal(each, _stop)
        _refuse_alone()
        app(standalone_mode=True)
    except SystemExit as ended:
        if ended.code == USAGE:
            _hint(sys.argv[1:])
        raise
    except (Stopped, Exception) as error:
        _end_at_signals()
        if debug:
            raise
        message, status = _explain(error)
        if number and isinstance(error, Exception):
            # What all processes refuse is said once: by now they would have been ended.
            time.sleep(PATIENCE)
            print(f"Process {number}: {printable(message)}", file=sys.__stderr__)
        print(printable(message), file=sys.stderr)
        raise SystemExit(status) from None
    finally:
        _end_at_signals()


PATIENCE = 5.0
"""Seconds after which a process that torchrun started says what process 0 has not said."""
STOPPING = 5.0
"""Seconds in which a command that was asked to stop is not asked again."""
TOGETHER = ("run", "compare", "resume")
"""Commands that processes which torchrun started do together."""
USAGE = 2
"""The exit status of a command that cannot be read."""
RENAMED = {
    "again": "--rerun",
    "workers": "--processes",
    "markdown": "--format markdown",
    **dict.fromkeys(("delimiter", "separator", "delim"), "--sep"),
    **dict.fromkeys(("file", "csv", "dataset", "path"), "--data, --from or --input"),
    **dict.fromkeys(("target", "label_column", "outcome"), "--label"),
    **dict.fromkeys(("group", "groups", "site", "client_column"), "--client"),
    **dict.fromkeys(("na_values", "missing_values", "na"), "--missing"),
    **dict.fromkeys(("exclude", "ignore", "drop_columns"), "--drop"),
    **dict.fromkeys(("imputer", "fillna"), "--impute"),
    **dict.fromkeys(("output", "outdir", "out_dir"), "--out"),
}
"""Options of older versions, and of other programs, and what they are here."""


def _refuse_alone() -> None:
    """Refuse commands that several processes cannot do together, where torchrun started them."""
    if started() and _command() not in TOGETHER:
        text = f"torchrun starts {', '.join(TOGETHER)}, and not `{_command()}`; call it by itself"
        raise MasqueradeError("E202", text)


def _command() -> str:
    """Name the command that was typed."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


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
    known = {option for command in _commands() for each in command.params for option in each.opts}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in known:
            key = word[2:].partition("=")[0].replace("-", "_")
            said = f"; take {RENAMED[key]}" if key in RENAMED else _said_of(key)
            if said:
                setting = (
                    "" if key in RENAMED else "; settings are given as --set SECTION.KEY=VALUE"
                )
                print(
                    f"`{word.partition('=')[0]}` is no option here{said}{setting}", file=sys.stderr
                )


def _said_of(key: str) -> str:
    """Say which setting a word is, where settings can be looked up: methods need torch."""
    try:
        from masquerade.config.toml import said_of
    except ModuleNotFoundError:
        return ""
    return said_of("", key)


def _explain(error: BaseException) -> tuple[str, int]:
    if isinstance(error, MasqueradeError):
        return str(error), error.exit_status
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _explain(_needs(error.name.partition(".")[0]))
    # What torch raises where the CPU has no memory left has no type of its own.
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        return (
            "E504 Out of memory. Lower compute.clients_per_chunk or train.batch_size, then resume.",
            5,
        )
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"E203 A name is too long: {brief(error.filename, 60)}. Choose a shorter one.", 2
    notes = " ".join(getattr(error, "__notes__", []))
    if isinstance(error, Stopped):
        # torchrun stops all where one has ended.
        why = "at your request, or as another process ended" if started() else "at your request"
        return f"Stopped {why}. {notes or 'Nothing had been started.'}", error.status
    where = f" ({notes})" if notes else ""
    again = "Run the same command with --debug for the traceback."
    return f"E100 {type(error).__name__}: {error}{where}\n{again}", 1


def _needs(package: str) -> MasqueradeError:
    """Say that a command needs a package that is not here."""
    text = f"`{_command()}` needs {package}, which is not installed here: install masquerade with"
    text += " all that it depends on (pip install, without --no-deps)"
    text += "; without torch there are predict and bench-model" if package == "torch" else ""
    return MasqueradeError("E202", text)


_stopped_at = -math.inf
"""When the command was last asked to stop."""


def _stop(number: int, frame: object) -> None:
    global _stopped_at
    now = time.monotonic()
    # A second signal would only interrupt the stopping.
    if now - _stopped_at > STOPPING:
        _stopped_at = now
        raise Stopped(STATUS_WHEN_STOPPED[number])


def _end_at_signals() -> None:
    """Let signals end the process: what is left to do is no place for an exception."""
    for each in STATUS_WHEN_STOPPED:
        signal.signal(each, signal.SIG_DFL)


def _shown_once() -> Callable[..., None]:
    """Return what shows warnings: one that is the same for every seed is shown once."""
    shown: set[str] = set()

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        text = printable(str(message))
        if issubclass(category, MasqueradeWarning) and text not in shown:
            shown.add(text)
            print(text, file=sys.stderr)

    return show
