"""Write a personal model as a bundle: a folder that answers without torch, whole or not at all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.preprocess import Scale, describe
from masquerade.core.task import Task
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError
from masquerade.export import onnx, predict, sliced, sparse
from masquerade.export.graph import Program, trace, trace_function
from masquerade.storage import atomic
from masquerade.storage.manifest import fingerprint, seal
from masquerade.tables.schema import Schema

NEEDED = """\
# With the package itself (pip install --no-deps), all that `masquerade predict` needs.
click>=8.1,<9
numpy>=1.26
onnxruntime>=1.20,<2
rich>=13,<15
typer>=0.15,<0.21
"""
"""What a machine installs that answers; it has no torch."""


@dataclass(frozen=True)
class Model:
    """One client's model, and inputs like those that it was trained on [samples, …]."""

    method: Method
    task: Task
    parts: Message
    x: Tensor
    schema: Schema | None = None
    """What rows look like, where the inputs are those of a table."""

    @classmethod
    def at_home(
        cls, method: Method, task: Task, parts: Message, x: Tensor, schema: Schema | None = None
    ) -> Self:
        """Bring a model and its inputs to the CPU, where files are written."""
        own = tree.transform(lambda value: value.detach().cpu(), parts)
        return cls(method, task.to("cpu"), own, x.cpu(), schema)

    @property
    def meaning(self) -> str:
        """Say what an input is, and what is done to it; the graph itself does it."""
        own, pixels = self.task.preprocess, self.x.dtype == torch.uint8
        if self.schema is not None:
            done = describe(own) if type(own) is not Scale else "nothing"
            return f"rows of a table, by column names; the model does this itself: {done}"
        if type(own) is not Scale:
            given = "pixels from 0 to 255" if pixels else "numbers"
            return f"{given} as the data have them; the model does this itself: {describe(own)}"
        if pixels:
            return "pixels from 0 to 255, which the model scales to 0 to 1 itself"
        return "numbers, scaled as in training" if self.x.is_floating_point() else "tokens"

    def predict(self, x: Tensor) -> Tensor:
        """Return the outputs for a batch of inputs."""
        with torch.no_grad():
            return self.method.predict(self.task, self.parts, x)

    def masked(self) -> Program:
        """Return `predict` as a graph, with zeros where masks are."""
        return trace(self.method, self.task, self.parts, self.x)

    def dense(self) -> Program:
        """Return the network without masks, for comparison."""
        task = self.task.to("cpu")
        return trace_function(lambda given: task(task.initial, given)[0], self.x.cpu())

    def networks(self) -> list[Tree]:
        """Return the weights that `predict` runs the network with."""
        return sparse.networks(self.method, self.task, self.parts, self.x)

    def onnx(self, program: Program) -> bytes:
        """Return a graph of this model as ONNX, checked against the model itself."""
        return onnx.encode(program, self.x, self.predict(self.x))


Fact = str | float
"""A line of a card: a text, or a number."""


@dataclass(frozen=True)
class Card:
    """What is known of a model: lines of a table, by heading."""

    title: str
    facts: dict[str, dict[str, Fact]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the card as Markdown."""
        lines = [f"# {_shown(self.title)}"]
        for heading, table in self.facts.items():
            lines += ["", f"## {heading}", "", "| | |", "|---|---|"]
            lines += [f"| {_shown(name)} | {_shown(value)} |" for name, value in table.items()]
        return "\n".join(lines) + "\n"


def _shown(value: Fact) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    # Data bring names along, and a bar or a new line would end a cell.
    return " ".join(str(value).split()).replace("|", r"\|")


def write(
    path: Path,
    model: Model,
    card: Card,
    labels: Sequence[str] | None = None,
    compare: bool = False,
) -> dict[str, Any]:
    """Write a bundle; return its manifest.

    `labels` name the classes. With `compare` it also holds the network without masks, and the
    masked one before it was cut, to be timed beside.
    """
    _check_free(path)
    _check_labels(model, labels)
    whole = model.masked()
    files = {predict.MODEL: model.onnx(sliced.cut(whole)), predict.CARD: card.text().encode()}
    files[predict.REQUIREMENTS] = NEEDED.encode()
    if compare:
        dense = model.dense()
        files |= {
            predict.DENSE: onnx.encode(dense, model.x, dense(model.x)),
            predict.MASKED: model.onnx(whole),
        }
    manifest = {
        "version": predict.VERSION,
        "title": card.title,
        "card": card.facts,
        "input": {
            "shape": list(model.x.shape[1:]),
            "type": str(model.x.dtype).removeprefix("torch."),
            "meaning": model.meaning,
            "divides_bytes": model.schema is None and isinstance(model.task.preprocess, Scale),
        },
        "table": None if model.schema is None else model.schema.to_json(),
        "labels": None if labels is None else list(labels),
        "files": {name: fingerprint(data) for name, data in files.items()},
    }
    appear(path, files | {predict.MANIFEST: seal(manifest)})
    return manifest


def _check_labels(model: Model, labels: Sequence[str] | None) -> None:
    outputs = model.predict(model.x[:1]).shape[-1]
    if labels is not None and len(labels) != outputs:
        text = f"there are {len(labels)} labels for {outputs} outputs; name every class once"
        raise MasqueradeError("E201", text)


def appear(path: Path, files: dict[str, bytes]) -> None:
    """Write files into a folder that appears with all of them or not at all."""
    with _refusals(path):
        atomic.write_folder(path, files)


def place(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    with _refusals(path):
        atomic.write_file(path, data)


def _check_free(path: Path) -> None:
    if path.exists():
        raise MasqueradeError("E407", f"{path} is already there; choose another place")


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Refuse what is there already, make its folder, and give a code to what the disk refuses."""
    _check_free(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as fault:
        left = "do not use what is there" if path.exists() else "nothing is left of it"
        text = f"{path} could not be written ({fault.strerror}); {left}"
        raise MasqueradeError("E502", text) from fault
