"""What a run ended with, and its clients' models by number or name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from masquerade.config.arguments import inputs_of
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.task import Task
from masquerade.errors import MasqueradeError
from masquerade.results import Summary


@dataclass(frozen=True, eq=False)
class Personal:
    """One client's model, ready for use."""

    method: Method
    task: Task
    parts: Message
    summary: Summary
    place: int
    """Where the client stands in what the summary lists of clients."""

    def predict(self, x: Any) -> Tensor:
        """Return the outputs for a batch of inputs (logits, for classification).

        `x` [samples, …] is a tensor, or what `torch.as_tensor` makes one of.
        """
        device = tree.leaves(self.parts)[0].device
        with torch.no_grad():
            return self.method.predict(self.task, self.parts, inputs_of(self.task, x).to(device))

    def export(self, path: str | Path, x: Tensor, labels: Sequence[str] | None = None) -> None:
        """Write a bundle that answers without torch, for inputs like x [samples, …]."""
        from masquerade.export.bundle import Model, write
        from masquerade.export.model_card import describe

        model = Model.at_home(self.method, self.task, self.parts, inputs_of(self.task, x))
        write(Path(path), model, describe(self.summary, self.place, model), labels)


@dataclass(frozen=True, eq=False)
class Result:
    """What a run ended with."""

    method: Method
    task: Task
    summaries: tuple[Summary, ...]
    """One per view, in the form of `summary.json`."""
    personal: dict[str, list[Message]]
    """Clients' models by view."""
    tasks: tuple[Task, ...] = ()
    """By client as the summaries list them, where each has preprocessing of its own."""

    def __repr__(self) -> str:
        own = ", ".join(f"{each.title} {each.accuracy.own.mean:.4g}" for each in self.summaries)
        return f"<Result of {self.summaries[0].rounds} rounds, on own data: {own}>"

    def table(self) -> None:
        """Print the table of results."""
        _print_table(self.summaries)

    def client(self, client: int | str, view: str | None = None) -> Personal:
        """Return the model of a client, by its number or its name.

        It is that of the method's default view unless another is named.
        """
        chosen = view or next(iter(self.personal))
        if chosen not in self.personal:
            known = ", ".join(self.personal)
            raise MasqueradeError("E202", f"no view `{chosen}` was evaluated; there are {known}")
        (summary,) = (each for each in self.summaries if each.view == chosen)
        place = summary.place_of(client)
        task = self.tasks[place] if self.tasks else self.task
        return Personal(self.method, task, self.personal[chosen][place], summary, place)


@dataclass(frozen=True, eq=False)
class Comparison:
    """What several trainings ended with."""

    results: tuple[Result, ...]
    """One per method and seed, in the order in which they were trained."""

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.results)} trainings>"

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """Return all summaries, one per view, method and seed."""
        return tuple(each for result in self.results for each in result.summaries)

    def table(self) -> None:
        """Print the table of results, seeds taken together."""
        _print_table(self.summaries)


def _print_table(summaries: Sequence[Summary]) -> None:
    from rich.console import Console

    from masquerade.report import terminal

    Console().print(terminal(summaries))
