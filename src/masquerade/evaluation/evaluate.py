"""Evaluation: every view of a training, at every client, between rounds and at the end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from masquerade.config.metrics import leading, metrics_for
from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Evaluate
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.metric import Rule
from masquerade.core.part import Message
from masquerade.data import shift_sets
from masquerade.data.corrupted_sets import CorruptedSets, kinds_of
from masquerade.engine.base import Engine, Evaluation, Job
from masquerade.engine.loop import Loop
from masquerade.errors import MasqueradeError, warn
from masquerade.evaluation import accuracy, costs
from masquerade.evaluation.accuracy import (
    Figure,
    Figures,
    GroupFigures,
    OverClients,
    ShiftSets,
    mean_of,
    means,
)
from masquerade.evaluation.majority import majority_class
from masquerade.evaluation.one_class import answering_alike
from masquerade.evaluation.outputs import OutputScorer, Scored, reference_samples
from masquerade.evaluation.overlap import overlap
from masquerade.evaluation.summary import Measured, client_figures, name_of, summarize
from masquerade.results import EvaluationRecord, Statistics, Summary
from masquerade.results.json_records import Json
from masquerade.rules import PRIORS
from masquerade.simulation.build import Simulation
from masquerade.simulation.server import Server
from masquerade.simulation.state import RunState

COMPARED = 8
"""Clients whose masks are compared between rounds."""

Group = tuple[str, bool]
"""A view, at the clients of the training or at novel ones."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Measures the models of a run, on test sets that are drawn before it begins."""

    simulation: Simulation
    shifted: dict[str, ShiftSets]
    """Test sets under shift, by where foreign samples come from: "shift", one other client;
    "pooled", all others."""
    kinds: tuple[str, ...]
    """Kinds of corruption."""
    corrupted: CorruptedSets | None
    scorer: OutputScorer
    """Scores whole test sets, where rules or metrics need them."""

    @classmethod
    def of(cls, simulation: Simulation) -> "Evaluator":
        """Draw the test sets of a simulation."""
        spec, asked = simulation.spec, simulation.spec.evaluate
        degrees = _degrees(simulation)
        draws = (degrees, asked.draws, spec.seed)
        shifted: dict[str, ShiftSets] = {
            source: shift_sets(spec.federation, *draws, source == "pooled", asked.split)
            for source in ("shift", "pooled")
        }
        kinds = kinds_of(asked.corruptions) if asked.severities else ()
        corrupted = CorruptedSets.of(simulation.federation, asked.split) if kinds else None
        scorer = OutputScorer(
            task=simulation.server.task,
            engine=simulation.engine,
            metrics=metrics_for(asked.metrics, spec.federation, name_of(spec.task.metric))
            | spec.task.set_metrics,
            rules=_rules(spec),
            shifted=shifted,
            kinds=kinds,
            severities=asked.severities,
            corrupted=corrupted,
            reference=reference_samples(spec.federation, asked.split, spec.seed),
        )
        scorer.try_out(simulation.server.known)
        return cls(simulation, shifted, kinds, corrupted, scorer)

    @property
    def settings(self) -> Evaluate:
        """Return what is measured."""
        return self.simulation.spec.evaluate

    @property
    def server(self) -> Server:
        """Return the server whose models they are."""
        return self.simulation.server

    @property
    def engine(self) -> Engine:
        """Return who does the clients' work."""
        return self.simulation.engine

    @property
    def lead(self) -> str:
        """Name the metric that reports put first; "" is the task's own."""
        return leading(self.settings.metrics, name_of(self.simulation.spec.task.metric))

    @property
    def has_classes(self) -> bool:
        """Tell whether models answer every sample with a class."""
        data = self.simulation.federation
        return self.server.task.classifies and data.classes is not None and data.y.ndim == 1

    @property
    def has_numbers(self) -> bool:
        """Tell whether models answer every sample with numbers: whether it is a regression."""
        return self.simulation.federation.classes is None

    @property
    def own(self) -> list[Tensor]:
        """Return by client the samples of its own that it is evaluated on."""
        return list(getattr(self.simulation.federation, self.settings.split))

    @property
    def over_clients(self) -> OverClients:
        """Return how figures of clients are described."""
        return OverClients([len(own) for own in self.own], self.server.task.better)

    def between_rounds(self, state: RunState) -> EvaluationRecord | None:
        """Measure on own data where it is time to."""
        every, last = self.settings.every, state.number == self.server.rounds
        if not every or state.number % every or last:
            return None
        with state.spending("evaluation"):
            record = self.on_own_data(state)
        state.history.append(record)
        return record

    def on_own_data(self, state: RunState) -> EvaluationRecord:
        """Measure every view that needs no training, on the clients' own data."""
        views: dict[str, Statistics] = {}
        notes: dict[str, Json] = {}
        for view in self.simulation.spec.views:
            if not self.trains(view):
                figures: list[Figure] = []
                noted: list[dict[str, Tensor]] = []
                # Models are let go of a few at a time: those of all clients may be many.
                for some in self._measurements(state, view, self.own, models=self._notes(view)):
                    figures += means(some.scores)
                    noted += self._noted(view, some.models)
                views[view] = self.over_clients.describe(figures, self.server.known)
                notes |= _mean_notes(noted)
                if view == self.server.method.views[0]:
                    notes |= _of_masks(self._first_models(state, view))
        spent = costs.so_far(state, len(self.server.known))
        return EvaluationRecord(state.number, views, **spent, notes=notes)

    def final(self, state: RunState) -> tuple[list[Summary], dict[str, list[Message]]]:
        """Measure every view, shifted, corrupted and not: a summary of each, and its models."""
        views, named = self.simulation.spec.views, self.simulation.spec.titles
        with state.spending("evaluation"):
            measured = self.described(self._all_groups(state))
            baseline = majority_class(self)
            summaries = [
                summarize(self, state, view, names, measured, baseline)
                for view, names in zip(views, named, strict=True)
            ]
        state.note_memory()
        data = self.simulation.federation
        seconds = dict(state.clock.seconds)
        held = state.memory | {"data": float(data.x.nbytes + data.y.nbytes)}
        summaries = [
            replace(each, costs=replace(each.costs, seconds=seconds, memory=held))
            for each in summaries
        ]
        return summaries, {view: measured[view, False].models for view in views}

    def described(self, found: Mapping[Group, Evaluation]) -> dict[Group, Measured]:
        """Describe models and scores in all ways that are asked for."""
        figures = self._figures(found)
        return {
            group: Measured(
                models=each.models,
                flops=each.flops,
                figures=figures[group],
                scored=self._scored(group, each.models),
                one_class=answering_alike(self, self.ids(group), each),
            )
            for group, each in found.items()
        }

    def _scored(self, group: Group, models: Sequence[Message]) -> Scored:
        """Score whole test sets of a group; rules are for the views at clients of the training."""
        view, novel = group
        ruled = view in self.simulation.spec.views and not novel
        rules = self.scorer.rules if ruled else {}
        known = self.server.method.contains_mix(view)
        scorer = replace(self.scorer, rules=rules, contains_mix=known)
        ids = self.ids(group)
        figures = partial(client_figures, self, ids)
        return scorer.describe(models, ids, self.asked(), self.over_clients, figures)

    def _all_groups(self, state: RunState) -> dict[Group, Evaluation]:
        """Measure every group on all samples that it is asked for at any degree of shift."""
        asked, views = self.asked(), list(self.simulation.spec.views)
        groups = [(view, False) for view in views]
        if "global" in self.server.method.views and "global" not in views:
            groups.append(("global", False))
        groups += [(view, True) for view in views if self.server.novel]
        return {group: self.measure(state, group[0], asked, group[1]) for group in groups}

    def asked(self) -> list[Tensor]:
        """Return by client every sample that it is evaluated on at any degree of shift."""
        draws = [draw for sets in self.shifted.values() for each in sets.values() for draw in each]
        return [
            torch.unique(torch.cat([chosen[id] for chosen in draws]))
            for id in range(len(self.server.clients))
        ]

    def ids(self, group: Group) -> Sequence[int]:
        """Return the clients of a group, in the order in which they are measured."""
        return self.server.novel if group[1] else self.server.known

    def _figures(self, found: Mapping[Group, Evaluation]) -> dict[Group, GroupFigures]:
        """Return every group's figures: under shift, which has own data too, and corruption."""
        asked = self.asked()
        corrupted = self._under_corruption({group: each.models for group, each in found.items()})
        figures = {}
        for group, each in found.items():
            ids = self.ids(group)
            scores = dict(zip(ids, (score.cpu() for score in each.scores), strict=True))

            def figure(id: int, samples: Tensor, scores: dict[int, Tensor] = scores) -> Figure:
                return mean_of(scores[id][torch.searchsorted(asked[id], samples)])

            shifted = {
                source: accuracy.under_shift(sets, ids, figure)
                for source, sets in self.shifted.items()
            }
            figures[group] = GroupFigures(**shifted, corruption=corrupted[group])
        return figures

    def _under_corruption(
        self, models: dict[Group, list[Message]]
    ) -> dict[Group, dict[str, Figures]]:
        """Measure models on their clients' own samples, corrupted: kind → severity → clients.

        Kinds may be "averaged", which is the mean over all of them at each client.
        """
        scores = {
            (kind, severity): self._corrupted(models, kind, severity)
            for kind in self.kinds
            for severity in self.settings.severities
        }
        return {
            group: accuracy.under_corruption(
                self.kinds, self.settings.severities, lambda *at, group=group: scores[at][group]
            )
            for group in models
        }

    def _corrupted(
        self, models: dict[Group, list[Message]], kind: str, severity: int
    ) -> dict[Group, list[Figure]]:
        """Score all groups on one corrupted copy of the samples, which is then given up."""
        assert self.corrupted is not None
        x, y = self.corrupted.x(kind, severity), self.corrupted.y
        own = {group: [self.corrupted.own[id] for id in self.ids(group)] for group in models}
        return {
            group: means(self.engine.score(some, own[group], x, y))
            for group, some in models.items()
        }

    def _notes(self, view: str) -> bool:
        """Tell whether the method notes anything of a view's models."""
        method = self.server.method
        return view == method.views[0] and type(method).notes is not Method.notes

    def notes(self, view: str, models: Sequence[Message]) -> dict[str, Json]:
        """Return what is noted of the default view's models: by the method, and of their masks."""
        first = view == self.server.method.views[0]
        masks = _of_masks(models[:COMPARED]) if first else {}
        return _mean_notes(self._noted(view, models)) | masks

    def _noted(self, view: str, models: Sequence[Message]) -> list[dict[str, Tensor]]:
        method, task = self.server.method, self.server.task
        return [method.notes(task, model) for model in models] if self._notes(view) else []

    def _first_models(self, state: RunState, view: str) -> list[Message]:
        """Return the models of a few clients, of a view that needs no training."""
        server, ids = self.server, torch.tensor(self.server.known[:COMPARED])
        round = server.round("adapt", state.number, (view, False))
        rows, clients = state.rows.take(ids), state.clients.take(ids)
        held = tree.leaves((state.server, rows, clients))
        # Masks that move lie in a state.
        if not any(each.dtype == torch.bool for each in held):
            return []
        job = Job(state.server, rows, clients, {}, ids, round, state.number)
        # One after another, in every process: models of a few clients are not worth an exchange.
        some = [self.own[id][:1].to(server.device) for id in ids.tolist()]
        return Loop(self.simulation.context).evaluate(job, some).models

    def trains(self, view: str) -> bool:
        """Tell whether a view has to be trained before it can be used."""
        round = self.server.round("adapt", 0, (view, False))
        return bool(self.server.method.adapt(self.server.task, round))

    def measure(
        self,
        state: RunState,
        view: str,
        samples: Sequence[Tensor],
        novel: bool = False,
        models: bool = True,
    ) -> Evaluation:
        """Use a view at every client, or every novel one, and score it on some samples of each.

        `samples` are those of all clients; a novel client joins first, as its method has it.
        `models` are returned if they are wanted.
        """
        found = self._measurements(state, view, samples, novel, models)
        return Evaluation.joined(list(found))

    def _measurements(
        self,
        state: RunState,
        view: str,
        samples: Sequence[Tensor],
        novel: bool = False,
        models: bool = True,
    ) -> Iterator[Evaluation]:
        """Measure a few clients at a time."""
        ids_of_all = torch.tensor(self.ids((view, novel)), dtype=torch.int64)
        round = self.server.round("adapt", state.number, (view, novel))
        # States of clients that lie in host memory come to the device a few at a time.
        for ids in torch.split(ids_of_all, self.simulation.spec.compute.clients_per_chunk):
            rows, clients = state.rows.take(ids), state.clients.take(ids)
            job = Job(state.server, rows, clients, {}, ids, round, state.number)
            if novel:
                self._join(state, job)
            chosen = [samples[id].to(self.server.device) for id in ids.tolist()]
            yield self.engine.evaluate(job, chosen, models)

    def _join(self, state: RunState, job: Job) -> None:
        """Let clients that come after training begin, by changing what a job says of them.

        They go through their setup, and then do one round whose uploads are dropped, unless their
        method has another rule for them in `adapt`. Their updates are checked as others are: who is
        refused goes on as if it had not been asked.
        """
        server, method = self.server, self.server.method
        number = state.number
        sessions = state.session.take(job.ids)
        rounds = [server.round("setup", number)] * server.has_setup()
        last = max(0, number - 1)
        rounds += [server.round("train", last)] * method.joins
        for round in rounds:
            done = self.engine.work(replace(job, round=round, session=sessions))
            refused, taken = server.refused(
                done, job.ids, round, last, state.warned, lambda: job.clients
            )
            state.refused_novel |= refused
            if len(taken):
                done = done.take(taken)
                cohort = server.cohort(job.ids[taken], len(job.ids))
                # What the server would know of them is kept (a mask), what it would learn is not.
                _, known = method.aggregate(
                    server.task,
                    job.server,
                    tree.take(job.rows, taken),
                    done.uploads,
                    cohort,
                    round,
                )
                tree.put(job.rows, taken, known)
                tree.put(job.clients, taken, done.clients)


def _of_masks(models: Sequence[Message]) -> dict[str, Json]:
    """Note how far the masks of models overlap; nothing where they have none."""
    found = overlap(models) if models else None
    return {} if found is None else {"mask_overlap": found.whole}


def _mean_notes(noted: Sequence[dict[str, Tensor]]) -> dict[str, Json]:
    """Average what was noted of models."""
    stacked: dict[str, Tensor] = tree.stack(noted) if noted else {}
    return {name: values.double().mean(0).tolist() for name, values in stacked.items()}


def _degrees(simulation: Simulation) -> tuple[int, ...]:
    """Return the degrees of shift that can be evaluated."""
    asked, clients = simulation.spec.evaluate.degrees, simulation.spec.federation.clients
    if simulation.fitting.own and any(asked):
        text = "W309 samples of other clients are preprocessed with those clients' constants, as "
        text += "each fits its own (per client): only own data are evaluated, and no shift"
        warn(text)
    return asked if clients > 1 and not simulation.fitting.own else (0,)


def _rules(spec: TrainingSpec) -> dict[str, Rule]:
    """Return all rules that views are evaluated under: named ones, and a program's own."""
    asked = spec.evaluate.prior or spec.method.prior
    named = [name for name in dict.fromkeys(asked) if name != "none"]
    twice = [name for name in named if name in spec.rules]
    if twice:
        text = f"`{twice[0]}` is a rule of `evaluate.prior` and one of your own"
        raise MasqueradeError("E202", f"{text}; call yours otherwise")
    return {name: PRIORS[name] for name in named} | dict(spec.rules)
