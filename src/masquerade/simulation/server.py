"""One run: data → rounds → judgement. It can be stopped anywhere and continued to the same bits."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from masquerade.config.availability import check as check_available
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.random import Label, fold
from masquerade.core.round import ClientInfo, Cohort, Round
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.cost.flops import Meter
from masquerade.cost.memory import keep_freed
from masquerade.data import Federation, shift_sets
from masquerade.data.corrupted_sets import Corrupted, kinds_of
from masquerade.data.loader import BatchLoader
from masquerade.engine import select as auto
from masquerade.engine.base import Engine, EngineContext, Evaluation, Job, Outcome
from masquerade.engine.store import Store
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.simulation import preflight
from masquerade.simulation import update_checks as admission
from masquerade.simulation.participation import Participation
from masquerade.simulation.state import COSTS, WAYS, Progress, Record, by_layer, label, totals
from masquerade.wire import session


class Simulation:
    """A federation in one process: a method, a task and data, moved on round by round."""

    def __init__(
        self,
        method: Method,
        task: Task,
        federation: Federation,
        train: Train,
        evaluate: Evaluate,
        compute: Compute,
        seed: int,
        views: tuple[str, ...],
        budgets: Sequence[float] | None = None,
        novel: Sequence[int] = (),
    ) -> None:
        begun = time.monotonic()
        self.method, self.train, self.evaluate, self.seed = method, train, evaluate, seed
        self.views = views
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(found if compute.device == "auto" else compute.device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise MasqueradeError("E503", "there is no CUDA device here; take compute.device=cpu")
        self.federation = federation.to(self.device)
        self.task = task.to(self.device).with_example(self.federation.x)
        self.samples = federation.samples.cpu()
        self.novel = [id for id in novel if self.samples[id]]
        known = self.samples.index_fill(0, torch.tensor(novel, dtype=torch.int64), 0)
        self.eligible = torch.nonzero(known).flatten()
        apart = set(novel)
        self.known = [id for id in range(federation.clients) if id not in apart]
        if not len(self.eligible):
            text = ", or all that have one are novel" if len(novel) else ""
            raise MasqueradeError("E303", f"no client has a training sample{text}")
        if not any(len(own) for own in getattr(federation, evaluate.split)):
            raise MasqueradeError(
                "E304", f"no client has a sample to be judged on ({evaluate.split})"
            )
        preflight.try_out(self.task, self.federation)
        check_available(train.available, federation.clients)
        self.participation = Participation.of(
            self.eligible,
            train.participation,
            train.clients_per_round,
            train.available,
            train.drop,
            seed,
        )
        engine = compute.engine
        if engine == "auto":
            engine = auto.choose(self.task, self.device, self.participation.asked)
        loader = BatchLoader(self.federation, seed, train.batch_size)
        meter = Meter(self.task)
        self.context = EngineContext(
            method,
            self.task,
            loader,
            meter,
            train.rounds,
            train.lr_decay,
            compute.precision,
            train.message_dtype,
        )
        torch.set_num_threads(compute.threads)
        keep_freed()
        self.engine: Engine = auto.make(
            self.context, engine, compute.workers, compute.clients_per_chunk
        )
        self.compute = dataclasses.replace(
            compute, engine=self.engine.name, device=self.device.type
        )
        self.place = self.device if compute.store == "device" else torch.device("cpu")
        shares = budgets or [1.0] * federation.clients
        self.infos = [
            ClientInfo(id, int(count), fold(seed, Label.CLIENT, id), shares[id])
            for id, count in enumerate(self.samples)
        ]
        self._limits: dict[int, dict[str, dict[str, int]]] = {}
        self._told: set[str] = set()
        preflight.warn_of_small_limits(method, self.task, self.infos[0])
        degrees = evaluate.degrees if federation.clients > 1 else (0,)
        self.sets = {
            name: shift_sets(
                federation, degrees, evaluate.draws, seed, name == "pooled", evaluate.split
            )
            for name in ("shift", "pooled")
        }
        self.kinds = kinds_of(evaluate.corruptions) if evaluate.severities else ()
        self.corrupted = Corrupted.of(self.federation, evaluate.split) if self.kinds else None
        self.seconds = time.monotonic() - begun

    def begin(self) -> Progress:
        """Return the state before round 0."""
        server = self.method.server_init(self.task)
        first = self.context.round("train", self.method.schedule(0, self.train.rounds), 0)
        row = self.method.row_init(self.task, self.infos[0])
        download = self.method.download(self.task, server, row, first)
        return Progress(
            0,
            server,
            self._stored(self.method.row_init),
            self._stored(self.method.client_init),
            _at(session.begin(self.task.initial, len(self.infos), download), self.place),
            {"train": dict.fromkeys(COSTS, 0.0)},
            [],
        )

    def _stored(self, init: Callable[[Task, ClientInfo], State]) -> Store:
        """Keep the states that all clients begin with."""
        states = (init(self.task, info) for info in self.infos)
        return Store.of(states, len(self.infos), self.device, self.place)

    def restore(self, number: int, tensors: dict[str, Tensor], facts: Record) -> Progress:
        """Return the state that a commit holds."""
        progress = self.begin()
        moved = {name: value.to(self.device) for name, value in tensors.items()}
        places = {"server": progress.server, "rows": progress.rows.state}
        filled = tree.rebuild(places | {"clients": progress.clients.state}, moved)
        progress.server = filled["server"]
        progress.rows = Store(_at(filled["rows"], self.place), self.device)
        progress.clients = Store(_at(filled["clients"], self.place), self.device)
        progress.session = {
            name.removeprefix("session/"): value.to(self.place)
            for name, value in moved.items()
            if name.startswith("session/")
        }
        progress.number, progress.costs = number, facts["costs"]
        for name in ("layers", "history", "memory", "diverged", "refused"):
            setattr(progress, name, facts[name])
        progress.seconds |= facts["seconds"]
        return progress

    def cohort(self, number: int) -> Tensor:
        """Return the clients that are sampled in a round, in ascending order."""
        return self.participation.cohort(number)

    def advance(self, progress: Progress) -> Record:
        """Do one round, in place; return what it cost. Before round 0, setup the clients."""
        number = progress.number
        at_setup: dict[int, str] = {}
        if number == 0 and self.method.setup(self.task, self.context.round("setup", None, 0)):
            progress.costs["setup"] = dict.fromkeys(COSTS, 0.0)
            _, at_setup = self._exchange(progress, "setup", None, self.eligible, 0)
        ids = self.cohort(number)
        returning = self.participation.returning(number, ids)
        cost, refused = self._exchange(
            progress,
            "train",
            self.method.schedule(number, self.train.rounds),
            ids,
            number,
            returning,
        )
        progress.number += 1
        back = ids[returning].tolist()
        used = [id for id in back if id not in refused]
        line: Record = {"round": progress.number, "clients": used, **cost}
        if len(back) < len(ids):
            line["lost"] = sorted(set(ids.tolist()) - set(back))
        for name, found in (("refused", refused), ("refused_setup", at_setup)):
            if found:
                line[name] = {str(id): code for id, code in found.items()}
        return line

    def _exchange(
        self,
        progress: Progress,
        kind: str,
        phase: Any,
        ids: Tensor,
        number: int,
        returning: Tensor | None = None,
    ) -> tuple[dict[str, float], dict[int, str]]:
        """Do the clients' rounds; return what they cost, and which clients were refused and why.

        Those whose places do not return, or who are refused, are as if never asked. Where nobody
        is asked nothing changes.
        """
        if not len(ids):
            return dict.fromkeys(COSTS, 0.0), {}
        round = self.context.round(kind, phase, number)
        rows = progress.rows.take(ids)
        clients = progress.clients.take(ids, lend=self.engine.copies)
        known = self._sessions(progress, ids)
        outcome = self.engine.work(Job(progress.server, rows, clients, known, ids, round, number))
        if self.device.type != "cpu" and kind == "train":
            self._expect(number + 1)
        asked, sent = len(ids), outcome
        if returning is not None and len(returning) < asked:
            ids, rows = ids[returning], tree.take(rows, returning)
            outcome = outcome.take(returning)
        received = outcome
        refused = self._refused(outcome, ids, round, number)
        progress.refused += len(refused)
        finite = None
        if refused:
            places = _places(ids, refused)
            ids, rows = ids[places], tree.take(rows, places)
            outcome = outcome.take(places)
        if len(ids):
            cohort = Cohort(ids, self.samples[ids], asked, len(self.eligible))
            progress.server, rows = self.method.aggregate(
                self.task, progress.server, rows, outcome.uploads, cohort, round
            )
            self._keep(progress, ids, rows, outcome)
            finite = _finite([progress.server, outcome.clients])
        # A device aggregates while costs are added up here; only then is it asked.
        cost = self._account(progress, kind if phase is None else label(phase), sent, received)
        self._add(progress.costs[kind], cost)
        if finite is not None and progress.diverged is None and not finite:
            self._diverged(progress, number)
        return cost, refused

    def _expect(self, number: int) -> None:
        """Let the engine prepare a round, before what it does now is waited for."""
        ids = self.cohort(number) if number < self.train.rounds else torch.empty(0)
        if len(ids):
            phase = self.method.schedule(number, self.train.rounds)
            self.engine.expect(ids, self.context.round("train", phase, number), number)

    def _account(
        self, progress: Progress, phase: str, sent: Outcome, received: Outcome
    ) -> dict[str, float]:
        """Return what a cohort's rounds cost; add its operations to those of every layer."""
        cost = totals(sent)
        if received is not sent:
            # What was lost had been sent down and computed; it was not received.
            back = totals(received).items()
            cost |= {n: value for n, value in back if n in ("up", "values_up") or n[:3] == "up/"}
        layers = list(self.context.meter.forward(self.federation.x[:1]))
        done = progress.layers.setdefault(phase, {})
        for layer, counts in by_layer(sent, layers).items():
            self._add(done.setdefault(layer, dict.fromkeys(WAYS, 0.0)), counts)
        return cost

    def _refused(self, outcome: Outcome, ids: Tensor, round: Round, number: int) -> dict[int, str]:
        """Judge the uploads; warn of the first refused for a reason, and of the first all of it."""
        sent = "upload" if round.kind == "train" else round.kind
        limits = [self._limit(id).get(sent, {}) for id in ids.tolist()]
        found = admission.judge(outcome.uploads, limits)
        refused = {int(ids[place]): code for place, code in found.items()}
        for id, code in refused.items():
            text = (
                f"{code} client {id}, round {number}: {admission.REASONS[code]}; its update is "
                "ignored, and so are others like it (metrics.jsonl lists them; of novel clients, "
                "summary.json)"
            )
            self._tell_once(code, text)
        if len(refused) == len(ids) and set(refused.values()) == {"W604"}:
            text = (
                f"W604 round {number}: no update is finite, so the round changes nothing, nor do "
                "others like it (lower method.lr?)"
            )
            self._tell_once("round", text)
        return refused

    def _tell_once(self, about: str, text: str) -> None:
        """Warn of something the first time."""
        if about not in self._told:
            self._told.add(about)
            warnings.warn(text, MasqueradeWarning, stacklevel=3)

    def _limit(self, id: int) -> dict[str, dict[str, int]]:
        """Return the most entries of a tensor that a client may send, by occasion."""
        if id not in self._limits:
            self._limits[id] = self.method.limit(self.task, self.infos[id])
        return self._limits[id]

    def _keep(self, progress: Progress, ids: Tensor, rows: Any, outcome: Outcome) -> None:
        """Write what the clients and the server's rows of them are from now on."""
        progress.rows.put(ids, rows)
        progress.clients.put(ids, outcome.clients)
        session.put(progress.session, ids, outcome.session)

    def _sessions(self, progress: Progress, ids: Tensor) -> session.Session:
        """Return what some clients and the server hold of each other, on the device."""
        taken: session.Session = Store(progress.session, self.device).take(ids)
        return taken

    @staticmethod
    def _add(total: dict[str, float], cost: dict[str, float]) -> None:
        for name, value in cost.items():
            total[name] = total.get(name, 0.0) + value

    @staticmethod
    def _diverged(progress: Progress, number: int) -> None:
        """Note and tell that what is kept has left the finite numbers."""
        progress.diverged = number
        warnings.warn(
            f"W604 training diverged in round {number}: values that are not finite; "
            "its figures mean nothing (lower method.lr?)",
            MasqueradeWarning,
            stacklevel=2,
        )

    def judge(
        self, progress: Progress, view: str, samples: list[Tensor], novel: bool = False
    ) -> Evaluation:
        """Use a view at every client, or every novel one, and measure it on some samples of each.

        `samples` are those of all clients; a novel client joins first, as its method has it.
        """
        found = []
        # States of clients that lie in host memory come to the device a few at a time.
        judged = torch.tensor(self.novel if novel else self.known, dtype=torch.int64)
        for ids in torch.split(judged, self.compute.clients_per_chunk):
            rows, clients = progress.rows.take(ids), progress.clients.take(ids)
            job = Job(progress.server, rows, clients, {}, ids, self.now(progress), progress.number)
            if novel:
                job = self._joining(progress, job)
            round = self.context.round("adapt", (view, novel), progress.number)
            chosen = [samples[id].to(self.device) for id in ids.tolist()]
            found.append(self.engine.judge(dataclasses.replace(job, round=round), chosen))
        return Evaluation.joined(found)

    def now(self, progress: Progress) -> Round:
        """Return the last round that was done, as others took part in it."""
        number = max(0, progress.number - 1)
        return self.context.round("train", self.method.schedule(number, self.train.rounds), number)

    def _joining(self, progress: Progress, job: Job) -> Job:
        """Return what clients that come after training begin with.

        They go through their setup, and then do one round whose uploads are dropped, unless their
        method has another rule for them in `adapt`. Their updates are checked as others are: who is
        refused goes on as if it had not been asked.
        """
        job = dataclasses.replace(job, session=self._sessions(progress, job.ids))
        setup, now = self.context.round("setup", None, progress.number), job.round
        rounds = [setup] * bool(self.method.setup(self.task, setup)) + [now] * self.method.joins
        rows, clients = Store(job.rows, self.device), Store(job.clients, self.device)
        for round in rounds:
            done = self.engine.work(dataclasses.replace(job, round=round))
            refused = self._refused(done, job.ids, round, progress.number)
            progress.turned_away |= refused
            places = _places(job.ids, refused)
            if len(places):
                ids, done = job.ids[places], done.take(places)
                cohort = Cohort(ids, self.samples[ids], len(job.ids), len(self.eligible))
                # What the server would know of them is kept (a mask), what it would learn is not.
                _, known = self.method.aggregate(
                    self.task, job.server, rows.take(places), done.uploads, cohort, round
                )
                rows.put(places, known)
                clients.put(places, done.clients)
        return dataclasses.replace(job, session={})

    def trains(self, view: str) -> bool:
        """Tell whether a view has to be trained before it can be used."""
        return bool(self.method.adapt(self.task, self.context.round("adapt", (view, False), 0)))

    def close(self) -> None:
        """Let go of processes."""
        self.engine.close()


def _finite(states: Any) -> Tensor | bool:
    """Tell whether all numbers of states are finite, where they lie."""
    numbers = [value for value in tree.leaves(states) if value.is_floating_point()]
    # A sum is finite only if all of its terms are, and costs one pass without a mask.
    return not numbers or torch.stack([value.sum().double() for value in numbers]).isfinite().all()


def _places(ids: Tensor, refused: dict[int, str]) -> Tensor:
    """Return the places of those who were not refused."""
    places = [place for place, id in enumerate(ids.tolist()) if id not in refused]
    return torch.tensor(places, dtype=torch.int64)


def _at(state: Any, place: torch.device) -> Any:
    return tree.transform(lambda value: value.to(place), state)
