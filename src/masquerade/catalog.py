"""What there is: methods with their settings, and how a federation's samples lie with clients."""

import ast
import dataclasses
import inspect
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from masquerade.core.method import Method
from masquerade.data import Federation, cache
from masquerade.data.cache import Manifest
from masquerade.data.named import NAMED
from masquerade.data.source import DATASETS
from masquerade.errors import MasqueradeError, nearest
from masquerade.methods import METHODS

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def table() -> list[dict[str, str]]:
    """Return one record per method."""
    return [
        {
            "name": name,
            "title": line.title,
            "paper": line.paper,
            "view": line.view,
            "personal": line.personal,
            "sent": line.sent,
        }
        for name, line in METHODS.items()
    ]


def settings(name: str) -> list[dict[str, Any]]:
    """Return one record per setting of a method: name, default, meaning."""
    if name not in METHODS:
        known = ", ".join(METHODS)
        raise MasqueradeError(
            "E201", f"unknown method `{name}`{nearest(name, METHODS)}; known are {known}"
        )
    cls = METHODS[name].method
    meanings = _meanings(Method) | _meanings(cls)
    return [
        {
            "name": each.name,
            "default": each.default,
            "meaning": meanings.get(each.name, ""),
        }
        for each in dataclasses.fields(cls)
    ]


def _meanings(cls: type[Method]) -> dict[str, str]:
    """Read the docstrings that stand under a class's fields."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(cls)).body
        if isinstance(node, ast.ClassDef)
    )
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = str(ast.literal_eval(text.value))
    return found


def overview() -> "Table":
    """Return the methods as a table for the terminal."""
    from rich.table import Table

    drawn = Table(title="Methods", caption="`masquerade methods NAME` shows a method's settings")
    for column in ("name", "method", "paper", "what is personal", "what is sent"):
        drawn.add_column(column)
    for line in table():
        drawn.add_row(line["name"], line["title"], line["paper"], line["personal"], line["sent"])
    return drawn


def sheet(name: str) -> "Group":
    """Return a method's text and settings for the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    found = settings(name)
    line = METHODS[name]
    module = inspect.getmodule(line.method)
    drawn = Table(title="Settings", caption="change one with --set method.NAME=VALUE")
    for column in ("name", "default", "meaning"):
        drawn.add_column(column)
    for each in found:
        drawn.add_row(each["name"], str(each["default"]), each["meaning"])
    text = f"{line.title} ({line.paper}), view `{line.view}`\n\n{inspect.getdoc(module)}\n"
    return Group(Text(text), drawn)


def census(federation: Federation) -> dict[str, Any]:
    """Count the samples of every client, by split and by class."""
    clients = []
    for id in range(federation.clients):
        splits = {
            split: getattr(federation, split)[id] for split in ("train", "validation", "test")
        }
        record: dict[str, Any] = {name: len(index) for name, index in splits.items()}
        if federation.classes is not None:
            held = federation.y[splits["train"]]
            record["classes"] = held.bincount(minlength=federation.classes).tolist()
        clients.append(record)
    return {"data": federation.name, "classes": federation.classes, "clients": clients}


def datasets() -> dict[str, dict[str, Any]]:
    """Return one record per dataset that can be named, here or to be had."""
    here = {name: dataclasses.asdict(cache.describe(name)) for name in cache.names()}
    known = {
        name: {"title": named.title, "license": named.license, "how": named.how(name)}
        for name, named in NAMED.items()
    }
    embedded = {name: {"title": f"{name}, embedded", "here": True} for name in DATASETS}
    return embedded | {
        name: known.get(name, {}) | here.get(name, {}) | {"here": name in here}
        for name in (*known, *(name for name in here if name not in known))
    }


def shelf() -> "Table":
    """Return the datasets as a table for the terminal."""
    from rich.table import Table

    drawn = Table(
        title="Datasets",
        caption="`masquerade data fetch NAME` or `masquerade data add NAME --from PATH` gets one; "
        "runs also take the path of an .npz file",
    )
    for column in ("name", "here", "samples", "classes", "clients", "what"):
        drawn.add_column(column, justify="right" if column in COUNTS else "left")
    for name, record in datasets().items():
        counts = [_count(record.get(each)) for each in COUNTS]
        title = record.get("title") or record.get("origin", "")
        drawn.add_row(name, "yes" if record["here"] else "", *counts, title)
    return drawn


def card(manifest: Manifest) -> "Table":
    """Return what is known of a dataset for the terminal."""
    from rich.table import Table

    drawn = Table(title=manifest.name, show_header=False)
    lines = {each: _count(getattr(manifest, each)) for each in COUNTS}
    lines["sample"] = f"{manifest.type} {manifest.shape}"
    lines["for training"] = _count(manifest.trained)
    lines["class names"] = ", ".join(manifest.class_names)
    lines["blocks"] = ", ".join(manifest.blocks)
    for each in ("origin", "license", "citation", "read_as"):
        lines[each.replace("_", " ")] = getattr(manifest, each)
    lines["lies in"] = str(cache.root() / manifest.name)
    for key, value in lines.items():
        if value:
            drawn.add_row(key, value)
    return drawn


COUNTS = ("samples", "classes", "clients")


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


SHOWN = 50
"""Clients that a picture shows."""


def picture(federation: Federation) -> "Table":
    """Return the classes of clients' training samples as shaded cells."""
    from rich.table import Table

    counted = census(federation)
    more = federation.clients - SHOWN
    left_out = f"; {more} more clients are not shown" if more > 0 else ""
    drawn = Table(
        title=f"{federation.name}: training samples by client and class",
        caption=f"shades are shares of a client's samples{left_out}",
    )
    for column in ("client", "train", "validation", "test"):
        drawn.add_column(column, justify="right")
    for name in range(federation.classes or 0):
        drawn.add_column(str(name), justify="center")
    for id, record in enumerate(counted["clients"][:SHOWN]):
        classes = record.get("classes", [])
        cells = [_shade(count / max(1, sum(classes))) for count in classes]
        sizes = [str(record[split]) for split in ("train", "validation", "test")]
        drawn.add_row(str(id), *sizes, *cells)
    return drawn


def _shade(share: float) -> str:
    return " " if share == 0 else "░▒▓█"[min(3, int(share * 8))]
