"""What a run ended with: figures, and models that are ready for use."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.task import Task
from masquerade.errors import MasqueradeError
from masquerade.progress import Record


@dataclass(frozen=True)
class Personal:
    """One client's model, ready for use."""

    method: Method
    task: Task
    parts: Message
    client: int
    summary: Record
    """What its run ended with, in the form of `summary.json`."""

    def predict(self, x: Tensor) -> Tensor:
        """Return the outputs for a batch of inputs (logits, for classification)."""
        device = tree.leaves(self.parts)[0].device
        with torch.no_grad():
            return self.method.predict(self.task, self.parts, x.to(device))

    def export(self, path: str | Path, x: Tensor, labels: Sequence[str] | None = None) -> None:
        """Write a bundle that answers without torch, for inputs like x [samples, …]."""
        from masquerade.card import describe
        from masquerade.export.bundle import Model, write

        model = Model.at_home(self.method, self.task, self.parts, x)
        write(Path(path), model, describe(self.summary, self.client, model), labels)


@dataclass(frozen=True)
class Result:
    """What a run ended with."""

    method: Method
    task: Task
    summaries: list[Record]
    """One per view, in the form of `summary.json`."""
    personal: dict[str, list[Message]]

    def __repr__(self) -> str:
        own = ", ".join(f"{s['title']} {s['accuracy']['own']['mean']:.4g}" for s in self.summaries)
        return f"<Result of {self.summaries[0]['rounds']} rounds, on own data: {own}>"

    def table(self) -> None:
        """Print the table of results."""
        from rich.console import Console

        from masquerade.report import terminal

        Console().print(terminal(self.summaries))

    def client(self, id: int, view: str | None = None) -> Personal:
        """Return the model of one client; in the method's default view unless another is named."""
        chosen = view or next(iter(self.personal))
        if chosen not in self.personal:
            known = ", ".join(self.personal)
            raise MasqueradeError("E202", f"no view `{chosen}` was judged; there are {known}")
        (summary,) = (each for each in self.summaries if each["view"] == chosen)
        model = self.personal[chosen][place_of(id, summary)]
        return Personal(self.method, self.task, model, id, summary)


def place_of(client: int, summary: Record) -> int:
    """Return where a client's figures and model stand in a run; refuse a client that has none."""
    ids: list[int] = summary["per_client"]["ids"]
    if client in ids:
        return ids.index(client)
    text = f"there is no model of client {client}; take one of"
    if client in summary.get("novel", {}).get("ids", []):
        text = (
            f"client {client} was kept out of training, and what it was judged with was not kept; "
            "train with it (no `novel`), or take a model of"
        )
    raise MasqueradeError("E202", f"{text} {_named(ids)}")


def _named(ids: list[int]) -> str:
    """Name clients, neighbors together: 0 to 3, 5."""
    runs: list[list[int]] = []
    for id in ids:
        if runs and id == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], id]
        else:
            runs.append([id])
    return ", ".join(" to ".join(map(str, run)) for run in runs)
