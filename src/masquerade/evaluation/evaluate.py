"""Evaluation: every view of a training, at every client, between rounds and at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from masquerade.config.settings import Evaluate
from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.cost import memory
from masquerade.data import shift_sets
from masquerade.data.corrupted_sets import CorruptedSets, kinds_of
from masquerade.engine.base import Engine, Evaluation, Job
from masquerade.engine.store import Store
from masquerade.evaluation import accuracy, costs
from masquerade.evaluation.accuracy import OverClients, ShiftSets, means
from masquerade.evaluation.summary import summarize
from masquerade.simulation.build import Simulation
from masquerade.simulation.server import Server
from masquerade.simulation.state import Record, RunState

Group = tuple[str, bool]
"""A view, at the clients of the training or at novel ones."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Measures the models of a run, on test sets that are drawn before it begins."""

    simulation: Simulation
    shifted: dict[str, ShiftSets]
    """By source of what is foreign: "shift", one other client; "pooled", all others."""
    kinds: tuple[str, ...]
    """Kinds of corruption."""
    corrupted: CorruptedSets | None

    @classmethod
    def of(cls, simulation: Simulation) -> "Evaluator":
        """Draw the test sets of a simulation."""
        spec, asked = simulation.spec, simulation.spec.evaluate
        degrees = asked.degrees if spec.federation.clients > 1 else (0,)
        draws = (degrees, asked.draws, spec.seed)
        shifted: dict[str, ShiftSets] = {
            source: shift_sets(spec.federation, *draws, source == "pooled", asked.split)
            for source in ("shift", "pooled")
        }
        kinds = kinds_of(asked.corruptions) if asked.severities else ()
        corrupted = CorruptedSets.of(simulation.federation, asked.split) if kinds else None
        return cls(simulation, shifted, kinds, corrupted)

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
    def own(self) -> list[Tensor]:
        """Return by client the samples of its own that it is evaluated on."""
        return list(getattr(self.simulation.federation, self.settings.split))

    @property
    def over_clients(self) -> OverClients:
        """Return how figures of clients are described."""
        return OverClients([len(own) for own in self.own], self.server.task.better)

    def between_rounds(self, state: RunState) -> Record | None:
        """Measure on own data where it is time to; return what the line of metrics says of it."""
        every, last = self.settings.every, state.number == self.server.rounds
        if not every or state.number % every or last:
            return None
        with state.clock.measure("evaluation"):
            record = self.on_own_data(state)
        state.history.append(record)
        return {"views": record["views"]}

    def on_own_data(self, state: RunState) -> Record:
        """Measure every view that needs no training, on the clients' own data."""
        record: Record = {"round": state.number, "views": {}}
        for view in self.simulation.spec.views:
            if not self.trains(view):
                found = self.measure(state, view, self.own)
                figures = means(found.scores)
                record["views"][view] = self.over_clients.describe(figures, self.server.known)
                record |= self.notes(view, found.models)
        return record | costs.so_far(state, len(self.server.known))

    def final(self, state: RunState) -> tuple[list[Record], dict[str, list[Message]]]:
        """Measure every view, shifted, corrupted and not: a summary of each, and its models."""
        with state.clock.measure("evaluation"):
            found = self._all_groups(state)
            figures = self._figures({group: each.scores for group, each in found.items()})
            models = {group: each.models for group, each in found.items()}
            for group, corruption in self.under_corruption(models).items():
                figures[group]["corruption"] = corruption
            summaries = [
                summarize(self, state, view, found, figures) for view in self.simulation.spec.views
            ]
        state.memory = memory.most(state.memory, memory.peak(self.server.device))
        for summary in summaries:
            summary["seconds"] = state.clock.total
            summary["time"] = dict(state.clock.seconds)
            summary["memory"] = dict(state.memory)
        return summaries, {view: models[view, False] for view in self.simulation.spec.views}

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

    def _figures(self, scores: dict[Group, list[Tensor]]) -> dict[Group, Record]:
        """Describe every group on own data and under shift."""
        asked, found = self.asked(), {}
        for group, each in scores.items():
            ids = self.ids(group)
            here = dict(zip(ids, (score.cpu() for score in each), strict=True))
            figures = {
                source: accuracy.under_shift(sets, asked, here)
                for source, sets in self.shifted.items()
            }
            own = figures["shift"]["0"]
            found[group] = {
                "own": self.over_clients.describe(own, ids),
                **{name: self.over_clients.by_step(one, ids) for name, one in figures.items()},
                "per_client": own,
            }
        return found

    def under_corruption(self, models: dict[Group, list[Message]]) -> dict[Group, Record]:
        """Measure models on their clients' own samples, corrupted, by group of clients.

        Figures are kind → severity → mean and std over clients. Either may be "averaged", which is
        the mean over all of them at each client.
        """
        if self.corrupted is None:
            return {}
        scores = {
            (kind, severity): self._corrupted(self.corrupted, models, kind, severity)
            for kind in self.kinds
            for severity in self.settings.severities
        }
        found = {}
        for group in models:
            figures = accuracy.under_corruption(
                self.kinds, self.settings.severities, lambda *at, group=group: scores[at][group]
            )
            found[group] = {
                kind: self.over_clients.by_step(steps, self.ids(group))
                for kind, steps in figures.items()
            }
        return found

    def _corrupted(
        self,
        corrupted: CorruptedSets,
        models: dict[Group, list[Message]],
        kind: str,
        severity: int,
    ) -> dict[Group, list[float | None]]:
        """Score all groups on one corrupted copy of the samples, which is then given up."""
        x, y = corrupted.x(kind, severity), corrupted.y
        own = {group: [corrupted.own[id] for id in self.ids(group)] for group in models}
        return {
            group: means(self.engine.score(some, own[group], x, y))
            for group, some in models.items()
        }

    def notes(self, view: str, models: Sequence[Message]) -> Record:
        """Return what the method notes of its default view's models, averaged over clients."""
        method = self.server.method
        if view != method.views[0]:
            return {}
        notes = tree.stack([method.notes(self.server.task, model) for model in models])
        found = {name: values.double().mean(0).tolist() for name, values in notes.items()}
        return {"notes": found} if found else {}

    def trains(self, view: str) -> bool:
        """Tell whether a view has to be trained before it can be used."""
        round = self.server.round("adapt", 0, (view, False))
        return bool(self.server.method.adapt(self.server.task, round))

    def measure(
        self, state: RunState, view: str, samples: Sequence[Tensor], novel: bool = False
    ) -> Evaluation:
        """Use a view at every client, or every novel one, and score it on some samples of each.

        `samples` are those of all clients; a novel client joins first, as its method has it.
        """
        found = []
        ids_of_all = torch.tensor(self.ids((view, novel)), dtype=torch.int64)
        round = self.server.round("adapt", state.number, (view, novel))
        # States of clients that lie in host memory come to the device a few at a time.
        for ids in torch.split(ids_of_all, self.simulation.spec.compute.clients_per_chunk):
            rows, clients = state.rows.take(ids), state.clients.take(ids)
            job = Job(state.server, rows, clients, {}, ids, round, state.number)
            if novel:
                self._join(state, job)
            chosen = [samples[id].to(self.server.device) for id in ids.tolist()]
            found.append(self.engine.evaluate(job, chosen))
        return Evaluation.joined(found)

    def _join(self, state: RunState, job: Job) -> None:
        """Let clients that come after training begin, by changing what a job says of them.

        They go through their setup, and then do one round whose uploads are dropped, unless their
        method has another rule for them in `adapt`. Their updates are checked as others are: who is
        refused goes on as if it had not been asked.
        """
        server, method = self.server, self.server.method
        number = state.number
        sessions = Store(state.session, server.device, server.place).take(job.ids)
        rows = Store(job.rows, server.device, server.device)
        clients = Store(job.clients, server.device, server.device)
        rounds = [server.round("setup", number)] * server.has_setup()
        rounds += [server.round("train", max(0, number - 1))] * method.joins
        for round in rounds:
            done = self.engine.work(replace(job, round=round, session=sessions))
            refused, taken = server.refused(done, job.ids, round, number, state.warned)
            state.refused_novel |= refused
            if len(taken):
                done = done.take(taken)
                cohort = server.cohort(job.ids[taken], len(job.ids))
                # What the server would know of them is kept (a mask), what it would learn is not.
                _, known = method.aggregate(
                    server.task, job.server, rows.take(taken), done.uploads, cohort, round
                )
                rows.put(taken, known)
                clients.put(taken, done.clients)
