"""The commands `masquerade methods` and `masquerade models`."""

import json
import math
from typing import Annotated

import typer

from masquerade.cli.options import AsJson, Debug
from masquerade.cli.progress import echo


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, for its page.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the methods and what they cost, or show the page and the settings of one.

    Example: masquerade methods dmpfl
    """
    from masquerade.cli import listings

    if as_json:
        listed = listings.method_records() if name is None else listings.setting_records(name)
        # JSON has no infinity; it is written as TOML writes it.
        finite = [{k: "inf" if v == math.inf else v for k, v in line.items()} for line in listed]
        typer.echo(json.dumps(finite, indent=1))
    else:
        echo(listings.methods_table() if name is None else listings.method_page(name))


def models(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the networks that can be named, their sizes, and whose they are.

    Example: masquerade models
    """
    from masquerade.cli import listings

    if as_json:
        typer.echo(json.dumps(listings.model_records(), indent=1))
    else:
        echo(listings.models_table())
