"""Lists for the terminal and as records: methods, networks, datasets, samples by client."""

import ast
import dataclasses
import inspect
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from masquerade.core.features import Feature
from masquerade.core.method import Method
from masquerade.data import Federation, cache
from masquerade.data.cache import Manifest
from masquerade.data.registry import EMBEDDED, NAMED
from masquerade.errors import MasqueradeError, listed, nearest
from masquerade.methods import METHODS, MethodEntry
from masquerade.report.labels import ClientCounts, LabelCounts
from masquerade.results.json_records import Json, to_json

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def method_records() -> list[dict[str, Any]]:
    """Return one record per method; costs are shares of FedAvg's."""
    costs = relative_costs()
    return [
        {
            "name": name,
            "title": entry.title,
            "paper": entry.paper,
            "view": entry.view,
            "personal": entry.personal,
            "sent": entry.sent,
            "bytes": costs[name][0],
            "flops": costs[name][1],
            "foreseen": entry.method.foreseen,
        }
        for name, entry in METHODS.items()
    ]


def relative_costs() -> dict[str, tuple[float, float]]:
    """Forecast bytes and FLOPs of every training with its default settings, as shares of FedAvg's.

    The setting is that of the demo: 20 clients with as many digits each, half of them in each of 60
    rounds. Masks are those of a first round; what crosses once at a setup stands apart.
    """
    import torch

    from masquerade.core import Task
    from masquerade.core.random import uniform
    from masquerade.cost.forecast import forecast
    from masquerade.models import build

    sample = uniform(1, (10, 1, 8, 8)), torch.arange(10)
    found = {}
    # On networks this small, threads cost more than they give.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, entry in METHODS.items():
        network = "_".join(filter(None, ("digits_cnn", entry.variant)))
        task = Task(build(network, (1, 8, 8), 10, seed=1))
        method = entry.method(**dict(entry.settings))
        cost = forecast(method, task, *sample, [54] * 20, 60, 0.5, validation=[18] * 20)
        found[name] = cost.down + cost.up, cost.masked
    torch.set_num_threads(threads)
    whole = found["fedavg"]
    return {name: (sent / whole[0], spent / whole[1]) for name, (sent, spent) in found.items()}


def page_text(name: str) -> str:
    """Return the page of a method, in Markdown; names that share a class share a page."""
    cls = _known(name).method
    if not cls.__module__.startswith("masquerade.methods."):
        # Of another package's method there is what its class says.
        return inspect.getdoc(cls) or ""
    # `masquerade.methods.dmpfl`, or a folder, as `masquerade.methods.pfedgate.method`.
    module = cls.__module__.split(".")[2]
    shipped = resources.files("masquerade") / "pages" / f"{module}.md"
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    # An editable installation reads the documents where they are written.
    path = Path(__file__).parents[3] / "docs" / "methods" / f"{module}.md"
    return path.read_text(encoding="utf-8")


def _known(name: str) -> MethodEntry:
    if name not in METHODS:
        known = ", ".join(METHODS)
        raise MasqueradeError(
            "E201", f"unknown method `{name}`{nearest(name, METHODS)}; known are {known}"
        )
    return METHODS[name]


def setting_records(name: str) -> list[dict[str, Any]]:
    """Return one record per setting of a method: name, default, meaning."""
    cls = _known(name).method
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Method):
            meanings |= _meanings(base)
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
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def methods_table() -> "Table":
    """Return the methods as a table for the terminal."""
    from rich.table import Table

    drawn = Table(
        title="Methods",
        caption="Bytes and FLOPs are shares of FedAvg's, forecast for the demo's setting from a "
        "first round. * Masks change size as training goes on, which is not foreseen. "
        "`masquerade methods NAME` shows a method's page.",
    )
    for column in ("name", "method", "paper", "what is personal", "what is sent"):
        drawn.add_column(column)
    for column in ("bytes", "FLOPs"):
        drawn.add_column(column, justify="right")
    for line in method_records():
        words = (line[key] for key in ("name", "title", "paper", "personal", "sent"))
        mark = " " if line["foreseen"] else "*"
        drawn.add_row(*words, f"{line['bytes']:.2f}{mark}", f"{line['flops']:.2f}{mark}")
    return drawn


def method_page(name: str) -> "Group":
    """Return a method's page and settings for the terminal."""
    from rich.console import Group
    from rich.markdown import Markdown
    from rich.table import Table

    drawn = Table(title="Settings", caption="change one with --set method.NAME=VALUE")
    for column in ("setting", "default", "does"):
        drawn.add_column(column)
    for each in setting_records(name):
        drawn.add_row(each["name"], str(each["default"]), each["meaning"])
    entry = METHODS[name]
    paper = f" ({entry.paper})" if entry.paper else ""
    told = f"`{name}` is {entry.title}{paper}, evaluated by its view `{entry.view}`.\n\n"
    return Group(Markdown(told + page_text(name)), drawn)


def model_records() -> list[dict[str, Any]]:
    """Return one record per network; parameters are those for the inputs and classes beside."""
    from masquerade.models import MODELS

    return [
        {
            "name": name,
            "about": network.about,
            "takes": network.needs,
            "input": list(network.shape),
            "classes": network.classes,
            "parameters": network.parameters(),
        }
        for name, network in MODELS.items()
    ]


def models_table() -> "Table":
    """Return the networks as a table for the terminal."""
    from rich.table import Table

    caption = "Parameters are counted for the input and the classes that stand beside them."
    drawn = Table(title="Networks", caption=caption)
    for column in ("name", "what", "takes", "input", "classes", "parameters"):
        drawn.add_column(column, justify="right" if column in ("classes", "parameters") else "left")
    for line in model_records():
        shape = " x ".join(map(str, line["input"]))
        counts = (_count(line[each]) for each in ("classes", "parameters"))
        drawn.add_row(line["name"], line["about"], line["takes"], shape, *counts)
    return drawn


SPLITS = ("train", "validation", "test")


def sample_counts(federation: Federation) -> LabelCounts:
    """Count the samples of every client, by split and by class."""

    def counted(id: int) -> ClientCounts:
        splits = {split: getattr(federation, split)[id] for split in SPLITS}
        classes: tuple[int, ...] = ()
        if federation.classes is not None:
            held = federation.y[splits["train"]]
            classes = tuple(held.bincount(minlength=federation.classes).tolist())
        name = federation.names[id] if federation.names else ""
        sizes = {name: len(index) for name, index in splits.items()}
        return ClientCounts(**sizes, classes=classes, name=name)

    clients = tuple(map(counted, range(federation.clients)))
    return LabelCounts(federation.name, federation.classes, clients, federation.class_names)


def count_record(federation: Federation) -> dict[str, Json]:
    """Return the same as JSON."""
    found = to_json(sample_counts(federation))
    assert isinstance(found, dict)
    return found


def dataset_records() -> dict[str, dict[str, Any]]:
    """Return one record per dataset that can be named, here or to be had."""
    here = {name: dataclasses.asdict(cache.describe(name)) for name in cache.names()}
    known = {
        name: {
            "title": named.title,
            "samples": named.samples,
            "classes": named.classes,
            "clients": named.clients,
            "origin": named.origin,
            "license": named.license,
            "how": named.how(name) if name in NAMED else "",
        }
        for name, named in (EMBEDDED | NAMED).items()
    }
    return {
        name: known.get(name, {}) | here.get(name, {}) | {"here": name in here or name in EMBEDDED}
        for name in (*known, *(name for name in here if name not in known))
    }


def datasets_table() -> "Table":
    """Return the datasets as a table for the terminal."""
    from rich.table import Table

    drawn = Table(
        title="Datasets",
        caption="`masquerade data fetch NAME` or `masquerade data add NAME --from PATH` gets one; "
        "runs also take the path of a file. `masquerade data show NAME` has more.",
    )
    for column in ("name", "here", "samples", "classes", "clients", "what", "license"):
        drawn.add_column(column, justify="right" if column in COUNTS else "left")
    for name, record in dataset_records().items():
        counts = [_count(record.get(each)) for each in COUNTS]
        title = record.get("title") or record.get("origin", "")
        license = record.get("license", "")
        drawn.add_row(name, "yes" if record["here"] else "", *counts, title, license)
    return drawn


def dataset_table(manifest: Manifest) -> "Table":
    """Return what is known of a dataset for the terminal."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=manifest.name, show_header=False)
    lines = {each: _count(getattr(manifest, each)) for each in COUNTS}
    lines["sample"] = f"{manifest.type} {manifest.shape}"
    lines["for training"] = _count(manifest.trained)
    lines["class names"] = ", ".join(manifest.class_names)
    lines["client names"] = listed(manifest.client_names)
    lines["columns"] = listed(map(_described, manifest.features), 50)
    lines["imputed by"] = manifest.impute
    lines["blocks"] = ", ".join(manifest.blocks)
    for each in ("origin", "license", "citation", "read_as"):
        lines[each.replace("_", " ")] = getattr(manifest, each)
    lines["lies in"] = str(cache.root() / manifest.name) if manifest.sha256 else "scikit-learn"
    for key, value in lines.items():
        if value:
            drawn.add_row(key, Text(value))
    return drawn


def _described(feature: Feature) -> str:
    categories = f" ({len(feature.categories)} categories)" if feature.is_category else ""
    return f"{feature.name}{categories}"


COUNTS = ("samples", "classes", "clients")


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


SHOWN = 50
"""Clients that a table shows."""


def label_table(federation: Federation) -> "Table":
    """Return the classes of clients' training samples as shaded cells."""
    from rich.table import Table
    from rich.text import Text

    counted = sample_counts(federation)
    more = federation.clients - SHOWN
    left_out = f"; {more} more clients are not shown" if more > 0 else ""
    drawn = Table(
        title=f"{federation.name}: training samples by client and class",
        caption=f"shades are shares of a client's samples{left_out}",
    )
    for column in ("client", *["name"] * bool(federation.names), *SPLITS):
        drawn.add_column(column, justify="left" if column == "name" else "right")
    for name in federation.class_names or range(federation.classes or 0):
        drawn.add_column(Text(str(name)), justify="center")
    for id, client in enumerate(counted.clients[:SHOWN]):
        cells = [_shade(count / max(1, client.train)) for count in client.classes]
        named = [Text(client.name)] if federation.names else []
        sizes = (client.train, client.validation, client.test)
        drawn.add_row(str(id), *named, *map(str, sizes), *cells)
    return drawn


def column_table(federation: Federation) -> "Table":
    """Return the columns of a table with what they hold."""
    from rich.table import Table
    from rich.text import Text

    caption = f"missing values are imputed by {federation.impute}" if federation.impute else None
    drawn = Table(title=f"{federation.name}: columns", caption=caption)
    for heading in ("column", "values", "missing"):
        drawn.add_column(heading, justify="right" if heading == "missing" else "left")
    for feature, column in zip(federation.features, federation.x.T, strict=True):
        here = column[~column.isnan()]
        held = listed(feature.categories)
        if not feature.is_category:
            held = f"{here.min().item():g} to {here.max().item():g}"
        drawn.add_row(Text(feature.name), Text(held), _count(len(column) - len(here)))
    return drawn


def _shade(share: float) -> str:
    return " " if share == 0 else "░▒▓█"[min(3, int(share * 8))]
