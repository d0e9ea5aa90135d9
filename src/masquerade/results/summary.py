"""The summary: everything that is known of one view of a training at its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from masquerade.errors import MasqueradeError, listed, nearest
from masquerade.results.accuracy import Accuracy
from masquerade.results.costs import Bytes, Costs
from masquerade.results.json_records import Json, from_json, to_json

SCHEMA = 2
"""The version of a summary's JSON; 0.1 wrote the first, without a number."""
MAJORITY = "majority_class"
"""What the majority class is called where methods have names."""
_NOT_MEASURED: dict[str, Any] = {
    "rules": {},
    "global_view": None,
    "global_metrics": {},
    "history": (),
    "overlap": None,
}
"""What is known of a view's own models alone."""


@dataclass(frozen=True)
class ModelSize:
    """Parameters of the network, and how many of them clients' models keep on average."""

    parameters: int
    kept: float
    density: float
    layers: Mapping[str, float] = field(default_factory=dict)
    """By tensor, the share of it that is kept; empty where all of every tensor is."""


@dataclass(frozen=True)
class Participations:
    """How often clients took part."""

    mean: float
    """Rounds in which a client was asked, on average."""
    never_sampled: int
    never_heard: int
    """Clients that were never asked, or whose answer never came back."""


@dataclass(frozen=True)
class ClientMetric:
    """A further metric, client by client, as `ClientFigures` has the first one."""

    own: tuple[float | None, ...]
    shift: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    pooled: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientFigures:
    """Clients, each with the metric on its own data, and under shift; all in the order of `ids`."""

    ids: tuple[int, ...]
    samples: tuple[int, ...]
    """Training samples."""
    own: tuple[float | None, ...]
    """None where a client has no test data."""
    names: tuple[str, ...] = ()
    """What the data call them."""
    tests: tuple[int, ...] = ()
    """Samples of its own that a client is tested on."""
    shift: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """By degree, and `AVERAGED` over them: means over the draws of one other client each."""
    pooled: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """The same with samples of all other clients."""
    one_class: tuple[int, ...] = ()
    """Clients whose test labels differ, and whose model answers all of them with one class; of a
    regression with one number."""
    metrics: Mapping[str, ClientMetric] = field(default_factory=dict)
    """Further metrics by name; those of one class on own data alone."""
    classes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By the name of a class: the test samples of it that each client has."""
    labels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The same of training samples, where who simulates has all of them."""


@dataclass(frozen=True)
class Novel:
    """Clients that were kept out of training."""

    clients: ClientFigures
    accuracy: Accuracy
    gap: float
    """What the others' mean on own data is ahead of theirs."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Those whose update was refused when they joined, and the code that says why."""
    metrics: Mapping[str, Accuracy] = field(default_factory=dict)
    """Further metrics by name."""


@dataclass(frozen=True)
class Overlap:
    """How far the masks of clients overlap: intersection over union."""

    whole: float
    """The mean over all pairs of clients and all tensors."""
    layers: Mapping[str, float]
    pairs: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    """Client by client, of the last weight."""
    with_global: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Entries that each client's mask shares with the global model's, by tensor: ‖m_c ∩ m_g‖₀."""


@dataclass(frozen=True)
class Point:
    """A point of the curve over rounds: the metric on own data, and the costs so far."""

    round: int
    own: float
    std: float
    down: float
    up: float
    flops: float
    notes: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Preprocessing:
    """What is done to samples before the network, and what it cost a client to find out."""

    text: str
    bytes: Bytes
    sent: tuple[str, ...] = ()
    """What clients sent sums of; empty where nothing was fitted, or by each client for itself."""
    per_client: bool = False
    """Whether each client fitted it on its own training samples."""


@dataclass(frozen=True)
class ClassWeights:
    """What classes weigh in the loss, and what it cost a client to find out."""

    weights: tuple[float, ...]
    bytes: Bytes


@dataclass(frozen=True)
class RuleFigures:
    """The figures of a view whose outputs went through a rule."""

    accuracy: Accuracy
    metrics: Mapping[str, Accuracy] = field(default_factory=dict)
    per_client: ClientFigures | None = None
    scope: str = "several"
    """"sample" where the rule answers every sample by itself, "several" where it may look at more.
    """


@dataclass(frozen=True)
class Baseline:
    """The figures of clients that answer without a model."""

    accuracy: Accuracy
    metrics: Mapping[str, Accuracy] = field(default_factory=dict)
    per_client: ClientFigures | None = None
    novel: Novel | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything that is known of one view of a training at its end."""

    method: str
    """The name in the table of methods, or the class."""
    title: str
    view: str
    data: str
    seed: int
    rounds: int
    clients: int
    network: str
    metric: str
    better: str
    """Whether "higher" or "lower" is better."""
    split: str = "test"
    """The samples that all of it was measured on: "test" or "validation"."""
    accuracy: Accuracy
    costs: Costs
    model: ModelSize
    participation: Participations
    history: tuple[Point, ...]
    rounds_to_80: int
    """The first round that was evaluated and has 80 % of the final figure."""
    per_client: ClientFigures | None = None
    global_view: Accuracy | None = None
    """The shared model in everybody's hands, where the method has one."""
    global_metrics: Mapping[str, Accuracy] = field(default_factory=dict)
    """Further metrics of the shared model, by name."""
    metrics: Mapping[str, Accuracy] = field(default_factory=dict)
    """Further metrics by name."""
    rules: Mapping[str, RuleFigures] = field(default_factory=dict)
    """The same under rules on outputs, by name."""
    majority: Baseline | None = None
    """Each client answers the most frequent label of its training samples; None unless targets are
    classes."""
    scope: str = ""
    """What the rule looks at whose figures these are; "" is no rule, and "baseline" no model."""
    overlap: Overlap | None = None
    novel: Novel | None = None
    beside: bool = False
    """Whether it is the shared model of a method whose default view is another."""
    diverged: int | None = None
    """The first round that left values which are not finite, counted from 0."""
    refused: int = 0
    """Updates that were not taken."""
    data_note: str = ""
    preprocessing: Preprocessing | None = None
    """What is done to samples, where it is not the default."""
    class_weights: ClassWeights | None = None
    """What classes weigh in the loss, where they differ."""
    corrupted_images: str = ""
    """Whether corrupted images are "published" or "generated"."""
    lead: str = ""
    """The metric that reports put first (`results/lead.py`); "" is `metric`."""
    measured: str = ""
    """The metric of the task, which `history` is of, where another has been put first."""

    def __repr__(self) -> str:
        own = f"{self.metric} {self.accuracy.own.mean:.4g} on own data"
        return f"<Summary of {self.title}, view {self.view}, seed {self.seed}: {own}>"

    @property
    def percent(self) -> bool:
        """Tell whether the metric is given in percent; of the tasks' own accuracy alone is."""
        return self.accuracy.percent if self.measured else self.metric == "accuracy"

    def to_json(self) -> dict[str, Json]:
        """Return the summary as JSON, with the version of its schema."""
        found = to_json(self)
        assert isinstance(found, dict)
        return {"schema": SCHEMA, **found}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Read a summary; E401 says what is wrong with one that cannot be."""
        if not isinstance(data, dict) or "schema" not in data:
            raise MasqueradeError("E401", "this is no summary of version 0.2 or later; train anew")
        given = dict(data)
        schema = given.pop("schema")
        if schema != SCHEMA:
            text = f"a summary of schema {schema}, and this version reads schema {SCHEMA}"
            raise MasqueradeError("E401", f"{text}; report it with the version that wrote it")
        try:
            return from_json(cls, given)
        except ValueError as error:
            raise MasqueradeError("E401", f"a summary is damaged: {error}") from None

    def under_rules(self) -> "list[Summary]":
        """Return this summary alone, and for every rule one that has the figures under it.

        What was measured without the rule (curve, masks, novel clients) is not the rule's.
        """
        return [
            replace(self, rules={}),
            *(
                replace(
                    self,
                    method=f"{self.method}+{name}",
                    title=f"{self.title}, {name}",
                    accuracy=found.accuracy,
                    metrics=found.metrics,
                    scope=found.scope,
                    novel=None,
                    per_client=found.per_client,
                    **_NOT_MEASURED,
                )
                for name, found in self.rules.items()
            ),
        ]

    def majority_row(self) -> "Summary | None":
        """Return a summary that has the figures of the majority class, where there are any."""
        found = self.majority
        if found is None:
            return None
        return replace(
            self,
            method=MAJORITY,
            title="Majority class",
            scope="baseline",
            accuracy=found.accuracy,
            metrics=found.metrics,
            per_client=found.per_client,
            novel=found.novel,
            **_NOT_MEASURED,
            majority=None,
            diverged=None,
            refused=0,
        )

    def place_of(self, client: int | str) -> int:
        """Return the place of a client, given by number or name, in what is listed of clients.

        A text is a name before it is a number, and never a number where names are numbers as well:
        nobody is to get another's model.
        """
        assert self.per_client is not None
        ids, names = self.per_client.ids, self.per_client.names
        kept_out = self.novel.clients if self.novel else None
        called = (*names, *(kept_out.names if kept_out else ()))
        if client in names:
            return names.index(str(client))
        given = client
        if isinstance(given, str) and given.isdecimal() and not any(map(str.isdecimal, called)):
            given = int(given)
        if given in ids:
            return ids.index(int(given))
        text = f"there is no model of client `{client}`{nearest(str(client), names)}; those with"
        text += " one have the"
        if kept_out and (given in kept_out.ids or client in kept_out.names):
            text = f"client `{client}` was kept out of training, and its model was not kept; "
            text += "train with it (no `novel`), or take a client with a model; they have the"
        raise MasqueradeError("E202", f"{text} {self.called}")

    @property
    def called(self) -> str:
        """Write the numbers of its clients, and their names if they have any."""
        assert self.per_client is not None
        ids, names = self.per_client.ids, self.per_client.names
        calls = f"names {listed(names)}" if names else ""
        return " and the ".join(filter(None, (f"numbers {listed(ids)}", calls)))


def splits(results: Sequence[Summary]) -> str:
    """Name the samples that results were measured on: "test", "validation", or both."""
    return " and ".join(dict.fromkeys(each.split for each in results))
