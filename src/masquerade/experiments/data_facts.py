"""What is known of a run's data without their samples: enough to use its models elsewhere."""

import json
from dataclasses import dataclass

import torch
from torch import nn

from masquerade.config.normalize import parse, spelled
from masquerade.core.features import Feature
from masquerade.core.part import Part
from masquerade.core.preprocess import Preprocess
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.tables.known import KnownColumn
from masquerade.tables.layout import PLAIN, Layout
from masquerade.tables.schema import Schema
from masquerade.wire import digest

FILE = "data.json"
"""Its name in a directory."""
MOST = 20_000
"""Columns, of all clients together, whose ranges are kept: more take seconds and megabytes."""

Quantiles = tuple[tuple[float, ...], ...]
"""What is known of the numbers of a client, by column."""


@dataclass(frozen=True)
class DataFacts:
    """What samples look like, what is done to them, and what their classes and columns mean."""

    clients: int
    shape: tuple[int, ...]
    """Of one sample."""
    dtype: str
    preprocess: str
    """As `data.normalize` spells it; empty where it is code of a program."""
    initial: int
    """A digest of the initial weights, which some models are made of."""
    constants: int = 0
    """A digest of the tensors of a program's own preprocessing; 0 where it has none."""
    classes: int | None = None
    class_names: tuple[str, ...] = ()
    worded: bool = False
    """Whether classes were given as words, though their names may look like numbers."""
    features: tuple[Feature, ...] = ()
    layout: Layout = PLAIN
    partition: str = ""
    fingerprint: str = ""
    """Of all samples and splits: models are used with the data that they were trained on."""
    ranges: tuple[Quantiles, ...] = ()
    """Of the columns of a table in every client's training samples, where a program made them and
    they are not too many."""

    def __post_init__(self) -> None:
        """Refuse ranges that are not of these clients and columns."""
        widths = {len(each) for each in self.ranges} or {len(self.features)}
        if len(self.ranges) not in (0, self.clients) or widths != {len(self.features)}:
            raise ValueError("`ranges` are not of these clients and columns")

    @classmethod
    def of(cls, federation: Federation, task: Task, ranges: bool = False) -> "DataFacts":
        """Take them from a federation, and a task whose preprocessing is fitted.

        `ranges` are nearly the values of a client with few samples: they are for who cannot have
        the samples read again.
        """
        return cls(
            clients=federation.clients,
            shape=tuple(federation.x.shape[1:]),
            dtype=str(federation.x.dtype).removeprefix("torch."),
            preprocess=_spelled(task.preprocess),
            initial=int(digest(Part(task.initial))),
            constants=_constants(task.preprocess),
            classes=federation.classes,
            class_names=federation.class_names,
            worded=federation.worded,
            features=federation.features,
            layout=federation.layout,
            partition=federation.partition,
            fingerprint=federation.fingerprint(),
            ranges=_ranges(federation) if ranges else (),
        )

    def schema(self, client: int, name: str, impute: bool) -> Schema | None:
        """Return what rows of a table look like to a client's model."""
        if not self.features:
            return None
        known = self.ranges[client] if self.ranges else ((),) * len(self.features)
        columns = tuple(
            KnownColumn(each.name, each.categories, quantiles)
            for each, quantiles in zip(self.features, known, strict=True)
        )
        return Schema(columns, impute, self.layout, name)

    def to_bytes(self) -> bytes:
        """Write them as JSON."""
        return json.dumps(to_json(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "DataFacts":
        """Read them from JSON."""
        try:
            return from_json(cls, parsed(data))
        except ValueError as error:
            text = f"{FILE} is damaged ({error}); restore it, or train again"
            raise MasqueradeError("E401", text) from None

    def fit(self, task: Task) -> Task:
        """Return a task with the preprocessing and the samples of the run; refuse another one."""
        if int(digest(Part(task.initial))) != self.initial:
            text = "`model` has other initial weights than the run began with; make it as before"
            raise MasqueradeError("E402", f"{text} (torch.manual_seed before it is built)")
        if self.constants and _constants(task.preprocess) != self.constants:
            text = "the preprocessing of `model` has other constants than it had in this run"
            raise MasqueradeError("E402", f"{text}; give the one that was fitted")
        if self.preprocess:
            task = task.with_preprocess(parse(self.preprocess))
        return task.with_example(torch.zeros(1, *self.shape, dtype=getattr(torch, self.dtype)))


def _ranges(federation: Federation) -> tuple[Quantiles, ...]:
    """Return what is known of the columns of every client."""
    if not federation.features or federation.clients * len(federation.features) > MOST:
        return ()
    schemas = (federation.schema(client, impute=False) for client in range(federation.clients))
    found = tuple(tuple(each.quantiles for each in schema.columns) for schema in schemas if schema)
    return found if any(map(any, found)) else ()


def _spelled(preprocess: Preprocess) -> str:
    """Write preprocessing as a text, where it is none of a program."""
    try:
        return spelled(preprocess)
    except MasqueradeError:
        return ""


def _constants(preprocess: Preprocess) -> int:
    """Return a digest of the tensors of preprocessing that no text spells; 0 where it has none."""
    if _spelled(preprocess) or not isinstance(preprocess, nn.Module):
        return 0
    state = dict(preprocess.state_dict())
    return int(digest(Part(state))) if state else 0
