"""What there is: methods with their settings, and how a federation's samples lie with clients."""

import ast
import dataclasses
import inspect
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from masquerade.core.method import Method
from masquerade.data import Federation
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


def picture(federation: Federation) -> "Table":
    """Return the classes of every client's training samples as shaded cells."""
    from rich.table import Table

    counted = census(federation)
    drawn = Table(
        title=f"{federation.name}: training samples by client and class",
        caption="shades are shares of a client's samples",
    )
    for column in ("client", "train", "validation", "test"):
        drawn.add_column(column, justify="right")
    for name in range(federation.classes or 0):
        drawn.add_column(str(name), justify="center")
    for id, record in enumerate(counted["clients"]):
        classes = record.get("classes", [])
        cells = [_shade(count / max(1, sum(classes))) for count in classes]
        sizes = [str(record[split]) for split in ("train", "validation", "test")]
        drawn.add_row(str(id), *sizes, *cells)
    return drawn


def _shade(share: float) -> str:
    return " " if share == 0 else "░▒▓█"[min(3, int(share * 8))]
