"""The command `masquerade check`."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from masquerade.cli.options import AsJson, DataName, Debug, Model, Settings
from masquerade.cli.progress import echo
from masquerade.cli.train import tables_of
from masquerade.errors import MasqueradeError

if TYPE_CHECKING:
    from masquerade.laws.check import Report


def check(
    method: Annotated[
        str, typer.Argument(help="A name of `masquerade methods`, or path.py:Class.")
    ],
    model: Model = None,
    data: DataName = None,
    settings: Settings = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Hold a method to the laws that every method keeps; exit status 1 where one is broken.

    It is trained for a few rounds on a toy, or on a few clients and samples of a dataset.

    Example: masquerade check fedprox --set method.mu=0.5
    """
    from masquerade.results.json_records import to_json

    report = _report(method, model, data, settings)
    if as_json:
        typer.echo(json.dumps(to_json(report), indent=1))
    else:
        echo(report)
    if not report.holds:
        raise typer.Exit(1)


def _report(
    method: str, model: str | None, data: str | None, settings: list[str] | None
) -> "Report":
    from masquerade.config.normalize import preprocess_for
    from masquerade.config.resolve import federation_of, task_of
    from masquerade.config.toml import method_of, parse
    from masquerade.laws import toy
    from masquerade.laws.check import check
    from masquerade.methods import METHODS

    for text in settings or []:
        if not text.startswith(("method.", "data.")):
            told = "the laws have rounds, networks and engines of their own; set method.KEY"
            raise MasqueradeError("E201", f"`--set {text}`: {told} or data.KEY")
    tables = tables_of(
        None, [method], data, {}, None, None, model, None, None, None, None, settings
    )
    config = parse(tables, "command line")
    (name,) = config.methods
    made = method_of(name, config)
    if "data" not in tables and model is None:
        return check(made)
    federation = federation_of(config.data)[0] if "data" in tables else toy.federation()
    preprocess = preprocess_for(config.data, federation)
    _, task = task_of(config.train, METHODS[name], federation, 1, preprocess)
    return check(made, task, federation)
