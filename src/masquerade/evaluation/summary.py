"""The summary of a view: everything that is known of it at the end, put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from masquerade.config.metrics import class_titles
from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.core.preprocess import Scale
from masquerade.cost.flops import Flops
from masquerade.data.registry import note_of
from masquerade.evaluation import costs
from masquerade.evaluation.accuracy import Figure, Figures, GroupFigures, with_average
from masquerade.evaluation.outputs import Scored
from masquerade.evaluation.overlap import overlap
from masquerade.results import (
    Baseline,
    Bytes,
    ClassWeights,
    ClientFigures,
    ClientMetric,
    Costs,
    Novel,
    Participations,
    Point,
    Preprocessing,
    Statistics,
    Summary,
)
from masquerade.results.json_records import Json
from masquerade.simulation.class_weights import Weighting
from masquerade.simulation.fitting import Fitting
from masquerade.simulation.server import Server
from masquerade.simulation.state import RunState

if TYPE_CHECKING:
    from masquerade.config.resolve import TrainingSpec
    from masquerade.evaluation.evaluate import Evaluator, Group

SEED_BYTES = 8
"""What the initial weights cost a client when they are drawn from a seed."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of a view, at the clients of the training or at novel ones."""

    models: list[Message]
    flops: Flops
    """What adapting cost."""
    figures: GroupFigures
    scored: Scored
    one_class: tuple[int, ...]
    """Clients that answer all of their own test samples alike, though labels differ."""


def summarize(
    evaluator: "Evaluator",
    state: RunState,
    view: str,
    named: tuple[str, str],
    measured: "Mapping[Group, Measured]",
    majority: Baseline | None,
) -> Summary:
    """Return everything that is known of a view at the end; `named` are its name and title."""
    server, spec = evaluator.server, evaluator.simulation.spec
    found, shared = measured[view, False], measured.get(("global", False))
    models, over_clients = found.models, evaluator.over_clients
    accuracy = over_clients.accuracy(found.figures, server.known)
    novel = measured.get((view, True))
    curve = history(server, state, view, accuracy.own, evaluator.notes(view, models))
    return Summary(
        method=named[0],
        title=named[1],
        view=view,
        data=spec.federation.name,
        seed=spec.seed,
        rounds=state.number,
        clients=len(server.known),
        network=spec.train.model or type(server.task.module).__name__,
        metric=name_of(server.task.metric),
        better=server.task.better,
        split=spec.evaluate.split,
        accuracy=accuracy,
        global_view=over_clients.accuracy(shared.figures, server.known) if shared else None,
        global_metrics=shared.scored.metrics if shared else {},
        metrics=found.scored.metrics,
        rules=found.scored.rules,
        majority=majority,
        costs=_costs(evaluator, state, view, found),
        model=costs.model_size(server.task, models),
        participation=participations(server, state),
        history=curve,
        rounds_to_80=rounds_to_80(server.task.better, curve),
        per_client=replace(
            client_figures(
                evaluator, server.known, found.figures, found.scored.further, found.one_class
            ),
            labels=_classes(evaluator, server.known, evaluator.simulation.federation.train),
        ),
        overlap=overlap(models, shared.models if shared and view != "global" else ()),
        novel=_novel(evaluator, state, accuracy.own, novel) if novel else None,
        beside=view == "global" and view != server.method.views[0],
        diverged=state.diverged,
        refused=state.refused,
        data_note=note_of(spec.federation.name) or "",
        corrupted_images=evaluator.corrupted.source if evaluator.corrupted else "",
        preprocessing=preprocessing(evaluator.simulation.fitting),
        class_weights=class_weights(evaluator.simulation.weighting),
        lead=evaluator.lead,
    )


def name_of(metric: object) -> str:
    """Return what a metric is called; a lambda has no name that would mean anything."""
    name = getattr(metric, "__name__", "metric")
    return "metric" if name == "<lambda>" else name


def _costs(evaluator: "Evaluator", state: RunState, view: str, found: Measured) -> Costs:
    server, context = evaluator.server, evaluator.simulation.context

    def as_received(message: Message, id: int) -> Message:
        return context.as_received(message, id, None)

    held = costs.on_device(server, state, found.models, as_received)
    adapt = costs.before_use(server, state, view, found.flops, as_received)
    initial = initial_bytes(evaluator.simulation.spec)
    return costs.total(server, state, adapt, held, initial)


def preprocessing(fitting: Fitting) -> Preprocessing | None:
    """Say what is done to samples, and what fitting it cost, where that is not the default."""
    if type(fitting.preprocess) is Scale:
        return None
    spent = Bytes(fitting.down, fitting.up)
    return Preprocessing(fitting.text, spent, fitting.sent, bool(fitting.own))


def class_weights(found: Weighting) -> ClassWeights | None:
    """Say what classes weigh and what that cost to find out, where they differ."""
    if found.weights is None:
        return None
    return ClassWeights(tuple(found.weights.tolist()), Bytes(found.down, found.up))


def initial_bytes(spec: "TrainingSpec") -> float:
    """Return what the initial weights cost a client: a seed, or a download."""
    # A program's weights are its own affair; those of a named network are drawn from a seed.
    seeded = spec.data is not None and not spec.train.weights
    whole = tree.size(spec.task.initial) * spec.task.dtype.itemsize
    return float(SEED_BYTES if seeded else whole)


def client_figures(
    evaluator: "Evaluator",
    ids: Sequence[int],
    group: GroupFigures,
    further: Mapping[str, GroupFigures],
    one_class: tuple[int, ...] = (),
) -> ClientFigures:
    """List the figures of some clients, one by one, also of `further` metrics."""
    names, tests = evaluator.simulation.federation.names, evaluator.over_clients.samples
    return ClientFigures(
        ids=tuple(ids),
        samples=tuple(evaluator.server.samples[list(ids)].tolist()),
        own=tuple(group.own),
        names=tuple(names[id] for id in ids) if names else (),
        tests=tuple(tests[id] for id in ids),
        shift=by_step(group.shift),
        pooled=by_step(group.pooled),
        one_class=one_class,
        metrics={name: _metric(name, each) for name, each in further.items()},
        classes=_classes(evaluator, ids, evaluator.own),
    )


def _metric(name: str, group: GroupFigures) -> ClientMetric:
    """List the figures of a further metric; under shift those of single classes would be many."""
    if ":" in name:
        return ClientMetric(tuple(group.own))
    return ClientMetric(tuple(group.own), by_step(group.shift), by_step(group.pooled))


def _classes(
    evaluator: "Evaluator", ids: Sequence[int], samples: Sequence[Tensor]
) -> dict[str, tuple[int, ...]]:
    """Count the classes of clients' `samples`, by client."""
    if not evaluator.has_classes:
        return {}
    data = evaluator.simulation.federation
    counts = [data.y[samples[id]].bincount(minlength=data.classes or 0).tolist() for id in ids]
    return dict(zip(class_titles(data), zip(*counts, strict=True), strict=True))


def by_step(figures: Figures) -> dict[str, tuple[Figure, ...]]:
    """List clients' figures by degree of shift, and their average over these."""
    return {step: tuple(values) for step, values in with_average(figures).items()}


def _novel(evaluator: "Evaluator", state: RunState, own: Statistics, found: Measured) -> Novel:
    ids = evaluator.server.novel
    theirs = evaluator.over_clients.accuracy(found.figures, ids)
    return Novel(
        clients=client_figures(
            evaluator, ids, found.figures, found.scored.further, found.one_class
        ),
        accuracy=theirs,
        gap=own.mean - theirs.own.mean,
        refused={str(id): code for id, code in sorted(state.refused_novel.items())},
        metrics=found.scored.metrics,
    )


def participations(server: Server, state: RunState) -> Participations:
    """Say how often a client was asked on average, and how many never were, or never answered."""
    eligible = server.participation.eligible
    return Participations(
        mean=int(state.sampled.sum()) / len(server.known),
        never_sampled=int((state.sampled[eligible] == 0).sum()),
        never_heard=int((state.answered[eligible] == 0).sum()),
    )


def history(
    server: Server,
    state: RunState,
    view: str,
    own: Statistics,
    notes: Mapping[str, Json],
) -> tuple[Point, ...]:
    """Return the curve of a view; one that trains has its last point only."""
    first = view == server.method.views[0]
    points = [
        Point(
            round=record.round,
            own=record.views[view].mean,
            std=record.views[view].std,
            down=record.down,
            up=record.up,
            flops=record.flops,
            notes=record.notes if first else {},
        )
        for record in state.history
        if view in record.views and record.round < state.number
    ]
    spent = costs.so_far(state, len(server.known))
    last = Point(state.number, own.mean, own.std, **spent, notes=notes)
    return (*points, last)


def rounds_to_80(better: str, curve: Sequence[Point]) -> int:
    """Return the first round that was evaluated and has 80 % of the final figure."""
    final, last = curve[-1].own, curve[-1].round
    if better == "higher":
        reached = [point.round for point in curve if point.own >= 0.8 * final]
    else:
        reached = [point.round for point in curve if 0.8 * point.own <= final]
    return reached[0] if reached else last
