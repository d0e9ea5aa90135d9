"""Clients' models, ready for use: they answer samples and frames, and leave as a bundle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from masquerade.config.arguments import inputs_of
from masquerade.config.settings import Data
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.table import imputes
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError
from masquerade.experiments.data_facts import DataFacts
from masquerade.results import PrivacySheet, Summary
from masquerade.results.alarms import warn_of_client
from masquerade.tables.columns import WHOLE
from masquerade.tables.schema import Schema

if TYPE_CHECKING:
    from masquerade.export.from_run import Found
    from masquerade.export.sparse import Origin


Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Models:
    """The models of all clients, and what it takes to use them."""

    method: Method
    task: Task
    personal: Mapping[str, Sequence[Message]]
    """By view."""
    facts: DataFacts
    federation: Federation | None = None
    """None where a result was loaded without its data."""
    data: Data | None = None
    """How the federation was made; None where a program made it."""
    origin: "Origin | None" = None
    """Where the weights began, if in a seed."""
    tasks: Sequence[Task] = ()
    """By client as summaries list them, where each has preprocessing of its own."""


@dataclass(frozen=True, eq=False)
class Personal:
    """One client's model, ready for use."""

    models: Models
    """Those of all clients."""
    parts: Message
    summary: Summary
    place: int
    """Where the client stands in what the summary lists of clients."""
    privacy: PrivacySheet | None = None
    """What is guaranteed of all that left clients."""

    def __repr__(self) -> str:
        listed = self.summary.per_client
        assert listed is not None
        own, name = listed.own[self.place], listed.names[self.place] if listed.names else ""
        client = f"client {self.id}{f' ({name})' if name else ''}"
        figure = f"no {self.summary.split} data" if own is None else f"{own:.4g} on its own data"
        return f"<Personal of {client}: {self.summary.title}, {figure}>"

    @property
    def id(self) -> int:
        """Return the client's number."""
        assert self.summary.per_client is not None
        return self.summary.per_client.ids[self.place]

    @property
    def method(self) -> Method:
        """Return the method that was trained."""
        return self.models.method

    @property
    def task(self) -> Task:
        """Return the task, its preprocessing fitted."""
        return self.models.tasks[self.place] if self.models.tasks else self.models.task

    def predict(self, x: Any) -> Tensor:
        """Return the outputs for a batch of inputs (logits, for classification).

        `x` [samples, …] is a tensor, an array, lists, or a frame of pandas, polars or Arrow.
        Columns of a frame are found by name where the data named theirs; words become the numbers
        of their categories, and what is missing becomes NaN. Rows of a table are checked as
        `masquerade predict` checks them: columns that seem swapped are refused (E302), and numbers
        outside the client's training samples are warned of (W308).
        """
        samples = inputs_of(self.task, x, self.schema)
        if self.schema is not None:
            self.schema.check(samples.cpu().numpy(), "`x`")
        return self._outputs(samples)

    @cached_property
    def schema(self) -> Schema | None:
        """Return what rows of a table look like, with the ranges of the client's samples."""
        models, impute = self.models, imputes(self.task.preprocess)
        if models.federation is not None:
            return models.federation.schema(self.id, impute)
        listed = self.summary.per_client
        name = listed.names[self.place] if listed and listed.names else str(self.id)
        return models.facts.schema(self.id, name, impute)

    def _outputs(self, samples: Tensor) -> Tensor:
        device = tree.leaves(self.parts)[0].device
        with torch.no_grad():
            return self.method.predict(self.task, self.parts, samples.to(device))

    def predict_proba(self, x: Any) -> Tensor:
        """Return the probability of every class for a batch of inputs [samples, classes]."""
        self._check_classifies()
        return self.predict(x).softmax(-1)

    def predict_label(self, x: Any) -> Array:
        """Return the most probable class of every input, as the data had it.

        Classes are whole numbers, booleans, or words, so that they can be compared with labels.
        """
        self._check_classifies()
        labels = self._labels()
        assert labels is not None
        best = self.predict(x).argmax(-1).numpy(force=True)
        found: Array = _as_given(labels, self.models.facts.worded)[best]
        return found

    def export(
        self,
        path: str | Path,
        x: Any = None,
        labels: Sequence[str] | None = None,
        *,
        format: str = "bundle",
        compare: bool = False,
    ) -> None:
        """Write the model for use without torch: a folder by default, or a file of another format.

        It is compared on inputs `x` [samples, …], by default samples that the client was trained
        on. `labels` name the classes, by default as the data do. `format` is bundle, onnx, sliced,
        dense, packed or seeded. With `compare` a bundle holds the dense and the masked network too.
        """
        from masquerade.export import formats

        formats.check(format)
        warn_of_client(self.summary, self.place)
        formats.write(self._found(x, labels), Path(path), format, compare)

    def _found(self, x: Any, labels: Sequence[str] | None) -> "Found":
        from masquerade.export.bundle import Model
        from masquerade.export.from_run import Found
        from masquerade.export.model_card import describe, made_by

        models = self.models
        samples = inputs_of(self.task, self._own() if x is None else x, self.schema)
        model = Model.at_home(models.method, self.task, self.parts, samples, self.schema)
        made = made_by(models.data) if models.data else {"partition": models.facts.partition}
        made = made if any(made.values()) else {}
        names = self._labels() if labels is None else list(labels)
        classes = models.facts.class_names
        card = describe(self.summary, self.place, model, made, classes, self.privacy)
        return Found(model, card, names, models.origin)

    def _own(self) -> Tensor:
        from masquerade.export.from_run import own_inputs

        if self.models.federation is None:
            text = "a result that was loaded has no samples; give `x`, some inputs of the client"
            raise MasqueradeError("E202", text)
        return own_inputs(self.models.federation, self.id)

    def _labels(self) -> list[str] | None:
        from masquerade.export.from_run import labels_of

        facts, task = self.models.facts, self.task
        found = labels_of(facts.class_names, facts.classes)
        if found is None or not task.classifies:
            return None
        # A network may have more outputs than there are classes.
        outputs = self._outputs(task.sample).shape[-1]
        return found + [str(each) for each in range(len(found), outputs)]

    def _check_classifies(self) -> None:
        if not self.task.classifies or self.models.facts.classes is None:
            why = "the task has a loss of its own"
            why = why if self.models.facts.classes else "the targets are numbers, not classes"
            raise MasqueradeError("E202", f"{why}, so outputs are no logits; use `predict`")


def _as_given(names: Sequence[str], worded: bool) -> Array:
    """Return names of classes as the data had them: those that look like numbers are numbers."""
    truths = {"False": False, "True": True}
    if worded:
        return np.array(names)
    if all(name in truths or WHOLE.fullmatch(name) for name in names):
        return np.array([truths[name] if name in truths else int(name) for name in names])
    return np.array(names)
