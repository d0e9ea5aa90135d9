"""Results of a federation: summaries made of the figures that clients report of themselves."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from masquerade.config.resolve import TrainingSpec
from masquerade.deploy.measure import ClientReport, FinalFigures, figure_of
from masquerade.deploy.noise import Noised
from masquerade.engine.remote import WAYS, Remote, Reply
from masquerade.errors import MasqueradeError
from masquerade.evaluation import costs
from masquerade.evaluation.accuracy import Figure, GroupFigures, OverClients
from masquerade.evaluation.summary import (
    by_step,
    class_weights,
    history,
    initial_bytes,
    name_of,
    participations,
    preprocessing,
    rounds_to_80,
)
from masquerade.results import (
    AVERAGED,
    Accuracy,
    Baseline,
    Bytes,
    ClientFigures,
    EvaluationRecord,
    Flops,
    ModelSize,
    Novel,
    PaperCosts,
    RuleFigures,
    Spent,
    Statistics,
    Storage,
    Summary,
)
from masquerade.results.json_records import Json
from masquerade.simulation.class_weights import Weighting
from masquerade.simulation.fitting import Fitting
from masquerade.simulation.server import Server
from masquerade.simulation.state import RunState

TRIES = 3
"""How often a client is asked for its figures at the end."""
NOTE = (
    "Clients measured themselves, where their data are: on their own data alone. Test-time shift "
    "and the overlap of masks need several clients' data or models in one place, and are not known."
)
"""What a summary says of figures that are not there."""

Found = TypeVar("Found")
HasMetrics = FinalFigures | RuleFigures | Baseline


@dataclass(frozen=True)
class Told:
    """What some clients tell of a view."""

    reports: Mapping[int, ClientReport]
    """By client, in ascending order."""
    flops: Mapping[int, Mapping[str, float]]
    """What adapting cost each, by the columns of `Flops`."""

    def joined(self, more: "Told") -> "Told":
        """Return what these and other clients tell, in the order of their numbers."""
        reports, flops = {**self.reports, **more.reports}, {**self.flops, **more.flops}
        return Told(dict(sorted(reports.items())), dict(sorted(flops.items())))

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the clients that told."""
        return tuple(self.reports)

    @property
    def finals(self) -> list[FinalFigures]:
        """Return all that they measured, where they did."""
        return [each.final for each in self.reports.values() if each.final is not None]


@dataclass(frozen=True, eq=False)
class FleetEvaluator:
    """Has clients measure themselves, and describes what they tell."""

    spec: TrainingSpec
    engine: Remote
    fitting: Fitting
    weighting: Weighting
    names: tuple[str, ...]
    """Of all clients, by number."""
    server: Server
    refused: Callable[[int, str], None]
    """Is told of a client whose report cannot be read, and why."""
    spent: dict[int, Noised]
    """Where it notes what clients say of their privacy."""
    again: Callable[[], None]
    """Is called before clients are asked again: some may have to begin anew."""

    def trains(self, view: str) -> bool:
        """Tell whether a view has to be trained before it can be used."""
        round = self.server.round("adapt", 0, (view, False))
        return bool(self.server.method.adapt(self.server.task, round))

    def between_rounds(
        self, state: RunState, ids: Sequence[int], rounds: int
    ) -> EvaluationRecord | None:
        """Have clients measure every view that needs no training, where it is time to."""
        every, last = self.spec.evaluate.every, state.number == rounds
        if not every or state.number % every or last or not ids:
            return None
        views: dict[str, Statistics] = {}
        notes: dict[str, Json] = {}
        with state.clock.measure("evaluation"):
            for view in self.spec.views:
                if not self.trains(view):
                    told = self.told(state, view, ids)
                    if not any(each.tests for each in told.reports.values()):
                        return None
                    views[view] = self._own(told)
                    notes |= _mean_notes(told)
        spent = costs.so_far(state, len(self.server.known))
        record = EvaluationRecord(state.number, views, **spent, notes=notes)
        state.history.append(record)
        return record

    def told(
        self,
        state: RunState,
        view: str,
        ids: Sequence[int],
        final: bool = False,
        novel: bool = False,
    ) -> Told:
        """Ask clients for the figures of a view; those that answer well are in what is returned."""
        round = self.server.round("adapt", state.number, (view, novel))
        found = Told({}, {})
        for attempt in range(TRIES if final else 1):
            missing = [id for id in ids if id not in found.reports]
            if attempt and missing:
                self.again()
            if missing:
                asked = torch.tensor(missing, dtype=torch.int64)
                job = self.server.make_job(state, asked, round)
                found = found.joined(self._read(self.engine.reports(job, final), final))
        return found

    def _read(self, replies: Mapping[int, Reply], final: bool) -> Told:
        reports, flops = {}, {}
        for id, reply in replies.items():
            try:
                report, counted = _checked(reply.body, final), self.engine.flops(reply)
            except MasqueradeError as error:
                self.refused(id, str(error))
                continue
            reports[id] = report
            if report.epsilon is not None:
                self.spent[id] = Noised(report.epsilon, report.noise_multiplier)
            flops[id] = {way: float(getattr(counted, way).sum()) for way in WAYS}
        return Told(reports, flops)

    def summaries(
        self, state: RunState, known: Sequence[int], novel: Sequence[int]
    ) -> list[Summary]:
        """Have every view measured to the end, and describe it; clients keep their models."""
        with state.clock.measure("evaluation"):
            shared = None
            if "global" in self.server.method.views:
                shared = self.told(state, "global", known, final=True)
            found = []
            for view, names in zip(self.spec.views, self.spec.titles, strict=True):
                same = view == "global" and shared is not None
                told = shared if same and shared else self.told(state, view, known, final=True)
                if not any(each.tests for each in told.reports.values()):
                    text = "training is done, and no client reported a figure"
                    how = "see that clients can be reached and have test data, and serve again"
                    raise MasqueradeError("E619", f"{text}; {how}")
                late = self.told(state, view, novel, final=True, novel=True) if novel else None
                found.append(self._summary(state, view, names, told, shared, late))
        seconds = dict(state.clock.seconds)
        return [replace(each, costs=replace(each.costs, seconds=seconds)) for each in found]

    def _summary(
        self,
        state: RunState,
        view: str,
        named: tuple[str, str],
        told: Told,
        shared: Told | None,
        late: Told | None,
    ) -> Summary:
        server, spec = self.server, self.spec
        accuracy = self._accuracy(told, lambda final: final.accuracy)
        curve = history(server, state, view, accuracy.own, _mean_notes(told))
        parameters, kept = server.task.parameters, _mean(each.kept for each in told.finals)
        return Summary(
            method=named[0],
            title=named[1],
            view=view,
            data=spec.federation.name,
            seed=spec.seed,
            rounds=state.number,
            clients=len(server.known),
            network=spec.train.model,
            metric=name_of(server.task.metric),
            better=server.task.better,
            split=spec.evaluate.split,
            accuracy=accuracy,
            global_view=self._accuracy(shared, lambda f: f.accuracy) if shared else None,
            global_metrics=self._metrics(shared) if shared else {},
            metrics=self._metrics(told),
            rules=self._rules(told),
            majority=self._majority(told),
            costs=costs.total(
                server, state, self._before_use(told), _storage(told), initial_bytes(spec)
            ),
            model=ModelSize(parameters, kept, kept / parameters),
            participation=participations(server, state),
            history=curve,
            rounds_to_80=rounds_to_80(server.task.better, curve),
            per_client=self._figures(told, lambda final: final.accuracy),
            novel=self._novel(state, accuracy.own, late) if late and late.reports else None,
            beside=view == "global" and view != server.method.views[0],
            diverged=state.diverged,
            refused=state.refused,
            data_note=NOTE,
            corrupted_images=next((each.corrupted for each in told.finals), ""),
            preprocessing=preprocessing(self.fitting),
            class_weights=class_weights(self.weighting),
        )

    def _over(self, told: Told, better: str = "") -> OverClients:
        """Return how figures of clients are described, by their numbers."""
        tests = {id: report.tests for id, report in told.reports.items()}
        samples = [tests.get(id, 0) for id in range(len(self.names))]
        return OverClients(samples, better or self.server.task.better)

    def _own(self, told: Told) -> Statistics:
        return self._over(told).describe([r.own for r in told.reports.values()], told.ids)

    def _accuracy(self, told: Told, pick: Callable[[FinalFigures], Accuracy]) -> Accuracy:
        """Describe an accuracy that every client has of itself."""
        each = [pick(final) for final in told.finals]
        over = self._over(told, each[0].better if each else "")
        found = over.accuracy(_group(each), told.ids)
        return replace(found, percent=all(one.percent for one in each))

    def _metrics(self, told: Told) -> dict[str, Accuracy]:
        return {
            name: self._accuracy(told, _metric(name))
            for name in _common([final.metrics for final in told.finals])
        }

    def _rules(self, told: Told) -> dict[str, RuleFigures]:
        rules = _common([final.rules for final in told.finals])
        return {name: self._rule(told, name) for name in rules}

    def _rule(self, told: Told, name: str) -> RuleFigures:
        each = [final.rules[name] for final in told.finals]
        metrics = {
            metric: self._accuracy(told, _metric(metric, lambda final: final.rules[name]))
            for metric in _common([one.metrics for one in each])
        }
        return RuleFigures(
            self._accuracy(told, lambda final: final.rules[name].accuracy),
            metrics,
            self._figures(told, lambda final: final.rules[name].accuracy),
            each[0].scope,
        )

    def _majority(self, told: Told) -> Baseline | None:
        """Describe what clients get that answer their most frequent label."""
        having = {id: r for id, r in told.reports.items() if r.final and r.final.majority}
        if not having:
            return None
        some = Told(having, {})
        each = [final.majority for final in some.finals if final.majority]
        metrics = {
            name: self._accuracy(some, _metric(name, _baseline))
            for name in _common([one.metrics for one in each])
        }
        own = self._accuracy(some, lambda final: _baseline(final).accuracy)
        figures = self._figures(some, lambda final: _baseline(final).accuracy)
        return Baseline(own, metrics, replace(figures, one_class=()))

    def _figures(self, told: Told, pick: Callable[[FinalFigures], Accuracy]) -> ClientFigures:
        group = _group([pick(final) for final in told.finals])
        return ClientFigures(
            ids=told.ids,
            samples=tuple(self.server.clients[id].samples for id in told.ids),
            own=tuple(group.own),
            names=tuple(self.names[id] for id in told.ids),
            tests=tuple(report.tests for report in told.reports.values()),
            shift=by_step(group.shift),
            pooled=by_step(group.pooled),
            one_class=tuple(
                id for id, each in told.reports.items() if each.final and each.final.one_class
            ),
        )

    def _novel(self, state: RunState, own: Statistics, late: Told) -> Novel:
        theirs = self._accuracy(late, lambda final: final.accuracy)
        return Novel(
            clients=self._figures(late, lambda final: final.accuracy),
            accuracy=theirs,
            gap=own.mean - theirs.own.mean,
            refused={str(id): code for id, code in sorted(state.refused_novel.items())},
            metrics=self._metrics(late),
        )

    def _before_use(self, told: Told) -> Spent | None:
        """Return what a view costs before use, as clients counted it."""
        finals = told.finals
        down = _mean(each.down for each in finals)
        if not finals or (not down and not any(each.adapts for each in finals)):
            return None
        *flops, paper = [_mean(each[way] for each in told.flops.values()) for way in WAYS]
        values = _mean(each.values_down for each in finals)
        # Papers average the two directions.
        return Spent(Bytes(down, 0.0), Flops(*flops), PaperCosts(values / 2, paper))


def _checked(data: bytes, final: bool) -> ClientReport:
    """Read a report; refuse one that has other figures than were asked for."""
    report = ClientReport.from_bytes(data)
    spent = report.epsilon
    possible = spent is None or (0 <= spent < math.inf and report.noise_multiplier > 0)
    if (report.final is not None) != final or report.tests < 0 or not possible:
        raise MasqueradeError("E605", "a report has other figures than were asked for")
    return report


def _metric(
    name: str, of: Callable[[FinalFigures], HasMetrics] = lambda final: final
) -> Callable[[FinalFigures], Accuracy]:
    """Return what picks a further metric of a client's figures."""
    return lambda final: of(final).metrics[name]


def _baseline(final: FinalFigures) -> Baseline:
    assert final.majority is not None
    return final.majority


def _group(each: Sequence[Accuracy]) -> GroupFigures:
    """Put the accuracies of single clients together, as figures of all of them."""
    own: list[Figure] = [figure_of(one.own) for one in each]
    corruption: dict[str, dict[str, list[Figure]]] = {
        kind: {
            step: [figure_of(one.corruption[kind][step]) for one in each]
            for step in _common([one.corruption[kind] for one in each])
            if step != AVERAGED
        }
        for kind in _common([one.corruption for one in each])
    }
    found = {kind: steps for kind, steps in corruption.items() if steps}
    return GroupFigures(shift={"0": own}, pooled={"0": own}, corruption=found)


def _common(maps: Sequence[Mapping[str, Found]]) -> list[str]:
    """List the names that all have, in the order of the first."""
    first = maps[0] if maps else {}
    return [name for name in first if all(name in each for each in maps)]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else math.nan


def _storage(told: Told) -> Storage:
    held = [final.storage for final in told.finals]
    columns = ("model", "state", "session")
    return Storage(*(_mean(getattr(each, name) for each in held) for name in columns))


def _mean_notes(told: Told) -> dict[str, Json]:
    """Average what clients note of their models; notes that do not fit together are left out."""
    notes = [report.notes for report in told.reports.values()]
    found: dict[str, Json] = {}
    for name in _common(notes):
        try:
            values = torch.tensor([each[name] for each in notes], dtype=torch.float64)
        except (ValueError, TypeError):
            continue
        found[name] = values.mean(0).tolist()
    return found
