"""What a client measures of its own models, where they are: figures, and nothing else, travel.

The figures are those that the simulator would find: its `Evaluator` works here, on one client.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from masquerade.core.part import Message
from masquerade.core.round import Round
from masquerade.core.tree import State
from masquerade.cost import storage
from masquerade.cost.before_use import needed
from masquerade.cost.flops import Flops
from masquerade.cost.traffic import measure_exchange
from masquerade.engine.base import Evaluation
from masquerade.errors import MasqueradeError
from masquerade.evaluation.accuracy import Figure, mean_of
from masquerade.evaluation.costs import model_size
from masquerade.evaluation.evaluate import Evaluator
from masquerade.evaluation.majority import majority_class
from masquerade.results import Accuracy, Baseline, RuleFigures, Statistics, Storage
from masquerade.results.json_records import Json, from_json, parsed, to_json
from masquerade.wire import Session


@dataclass(frozen=True)
class Adapted:
    """A view as a client may use it: adapted on a copy, before anything is measured."""

    round: Round
    download: Message
    held: Session
    """What both ends hold of each other before the download."""
    client: State
    flops: Flops
    final: bool
    """Whether all is measured, and the model kept."""

    @property
    def view(self) -> str:
        """Name the view."""
        view: str = self.round.phase[0]
        return view


@dataclass(frozen=True)
class FinalFigures:
    """All that a client measures of a view at the end."""

    accuracy: Accuracy
    """Over this client alone: its figures are the means."""
    kept: float
    """Parameters that its model keeps."""
    storage: Storage
    metrics: Mapping[str, Accuracy] = field(default_factory=dict)
    rules: Mapping[str, RuleFigures] = field(default_factory=dict)
    majority: Baseline | None = None
    """What its most frequent label would get."""
    one_class: bool = False
    adapts: bool = False
    """Whether the view needs training before use."""
    down: float = 0.0
    """Bytes of the download that the view needs before use."""
    values_down: float = 0.0
    corrupted: str = ""
    """Whether corrupted images are "published" or "generated"."""


@dataclass(frozen=True)
class ClientReport:
    """What a client tells of a view."""

    own: float | None
    """The metric on its own data; None where it has none."""
    tests: int
    """Samples that this is a mean over."""
    notes: Mapping[str, Json] = field(default_factory=dict)
    """What the method notes of the model."""
    final: FinalFigures | None = None
    epsilon: float | None = None
    """What it has spent of its privacy, where it adds noise; and how much that is."""
    noise_multiplier: float = 0.0

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(to_json(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "ClientReport":
        """Read it; refuse what is none."""
        try:
            return from_json(cls, parsed(data))
        except ValueError as error:
            raise MasqueradeError("E605", f"a report of figures cannot be read: {error}") from None


def figure_of(found: Statistics) -> Figure:
    """Return the figure of a client from statistics over it alone."""
    return None if math.isnan(found.mean) else found.mean


@dataclass(frozen=True)
class Measurer:
    """Measures the views of one client with its own samples."""

    evaluator: Evaluator
    """Of a simulation of this client alone."""
    id: int

    def __call__(self, adapted: Adapted) -> tuple[ClientReport, Message]:
        """Return what the client tells of a view, and the model in use."""
        evaluator, view = self.evaluator, adapted.view
        server, engine = evaluator.server, evaluator.engine
        task, data = server.task, evaluator.simulation.federation
        model = server.method.personalize(task, adapted.download, adapted.client, view)
        own = evaluator.own[self.id]
        notes = evaluator.notes(view, [model])
        if not adapted.final:
            (scores,) = engine.score([model], [own], data.x, data.y)
            return ClientReport(mean_of(scores), len(own), notes), model
        (scores,) = engine.score([model], [evaluator.asked()[self.id]], data.x, data.y)
        final = self._final(adapted, model, Evaluation([model], [scores], adapted.flops))
        return ClientReport(figure_of(final.accuracy.own), len(own), notes, final), model

    def _final(self, adapted: Adapted, model: Message, found: Evaluation) -> FinalFigures:
        evaluator, ids = self.evaluator, [self.id]
        server, group = evaluator.server, (adapted.view, False)
        measured = evaluator.described({group: found})[group]
        parts = needed(server.method, server.task, adapted.download, adapted.client, adapted.round)
        sent = measure_exchange(parts, {}, adapted.held, 0)[0]
        held, client = adapted.held, adapted.client
        return FinalFigures(
            accuracy=evaluator.over_clients.accuracy(measured.figures, ids),
            kept=model_size(server.task, [model]).kept,
            storage=Storage(
                storage.model_bytes(model),
                storage.state_bytes(client, model),
                storage.session_bytes(held, adapted.download, client, model),
            ),
            metrics=measured.scored.metrics,
            rules={
                name: RuleFigures(each.accuracy, each.metrics, scope=each.scope)
                for name, each in measured.scored.rules.items()
            },
            majority=_without_clients(majority_class(evaluator)),
            one_class=bool(measured.one_class),
            adapts=bool(server.method.adapt(server.task, adapted.round)),
            down=float(sent.down),
            values_down=float(sent.values_down),
            corrupted=evaluator.corrupted.source if evaluator.corrupted else "",
        )


def _without_clients(found: Baseline | None) -> Baseline | None:
    return None if found is None else Baseline(found.accuracy, found.metrics)
