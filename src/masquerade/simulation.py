"""One run: data → rounds → judgement. It can be stopped anywhere and continued to the same bits."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from masquerade import preflight
from masquerade.config import Compute, Evaluate, Train
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.random import fold
from masquerade.core.round import Cohort, Round, Who
from masquerade.core.task import Task
from masquerade.cost.compute import Flops, Meter
from masquerade.data import Federation, shift_sets
from masquerade.data.batches import Feed
from masquerade.engine import auto
from masquerade.engine.setting import Engine, Job, Judgement, Outcome, Setting
from masquerade.engine.store import Store
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.participation import Participation
from masquerade.progress import COSTS, Progress, Record, totals
from masquerade.report.overlap import overlap
from masquerade.rundir import Committer, RunDirectory
from masquerade.wire import session

Watch = Callable[[int, Record | None], None]
"""Called with the rounds done, and the record of an evaluation where there was one."""


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
        self.method, self.train, self.evaluate, self.seed = method, train, evaluate, seed
        self.views = views
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(found if compute.device == "auto" else compute.device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise MasqueradeError("E503", "there is no CUDA device here; take compute.device=cpu")
        self.federation = federation.to(self.device)
        self.task = task.to(self.device).fed(self.federation.x)
        self.samples = federation.samples.cpu()
        self.novel = [id for id in novel if self.samples[id]]
        known = self.samples.index_fill(0, torch.tensor(novel, dtype=torch.int64), 0)
        self.eligible = torch.nonzero(known).flatten()
        self.known = [id for id in range(federation.clients) if id not in set(novel)]
        if not len(self.eligible):
            text = ", or all that have one are novel" if len(novel) else ""
            raise MasqueradeError("E303", f"no client has a training sample{text}")
        if not any(len(own) for own in getattr(federation, evaluate.split)):
            raise MasqueradeError(
                "E304", f"no client has a sample to be judged on ({evaluate.split})"
            )
        preflight.try_out(self.task, self.federation)
        self.participation = Participation.of(
            self.eligible, train.participation, train.cohort, train.available, train.drop, seed
        )
        engine = compute.engine
        if engine == "auto":
            engine = auto.choose(self.task, self.device, self.participation.asked)
        feed = Feed(self.federation, seed, train.batch)
        meter = Meter(self.task)
        self.setting = Setting(method, self.task, feed, meter, train.rounds, train.rate_decay)
        torch.set_num_threads(compute.threads)
        self.engine: Engine = auto.make(self.setting, engine, compute.workers, compute.width)
        self.compute = dataclasses.replace(
            compute, engine=self.engine.name, device=self.device.type
        )
        self.place = self.device if compute.store == "device" else torch.device("cpu")
        shares = budgets or [1.0] * federation.clients
        self.whos = [
            Who(id, int(count), fold(seed, "client", id), shares[id])
            for id, count in enumerate(self.samples)
        ]
        preflight.warn_of_small_limits(method, self.task, self.whos[0])
        self.sets = shift_sets(
            federation,
            evaluate.degrees if federation.clients > 1 else (0,),
            evaluate.draws,
            seed,
            evaluate.pooled,
            evaluate.split,
        )

    def begin(self) -> Progress:
        """Return the state before round 0."""
        rows = [self.method.row_init(self.task, who) for who in self.whos]
        clients = [self.method.client_init(self.task, who) for who in self.whos]
        server = self.method.server_init(self.task)
        first = self.setting.round("train", self.method.schedule(0, self.train.rounds), 0)
        download = self.method.download(self.task, server, rows[0], first)
        return Progress(
            0,
            server,
            Store.of(rows, self.device, self.place),
            Store.of(clients, self.device, self.place),
            _at(session.begin(self.task.initial, len(self.whos), download), self.place),
            {"train": dict.fromkeys(COSTS, 0.0)},
            [],
        )

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
        progress.history, progress.seconds = facts["history"], facts["seconds"]
        progress.diverged = facts["diverged"]
        return progress

    def cohort(self, number: int) -> Tensor:
        """Return the clients that are sampled in a round, in ascending order."""
        return self.participation.cohort(number)

    def advance(self, progress: Progress) -> Record:
        """Do one round, in place; return what it cost. Before round 0, greet the clients."""
        number = progress.number
        if number == 0 and self.method.greet(self.task, self.setting.round("hello", None, 0)):
            progress.costs["hello"] = dict.fromkeys(COSTS, 0.0)
            self._exchange(progress, "hello", None, self.eligible, 0)
        ids = self.cohort(number)
        returning = self.participation.returning(number, ids)
        cost = self._exchange(
            progress,
            "train",
            self.method.schedule(number, self.train.rounds),
            ids,
            number,
            returning,
        )
        progress.number += 1
        back = ids[returning].tolist()
        line: Record = {"round": progress.number, "clients": back, **cost}
        if len(back) < len(ids):
            line["lost"] = sorted(set(ids.tolist()) - set(back))
        return line

    def _exchange(
        self,
        progress: Progress,
        kind: str,
        phase: Any,
        ids: Tensor,
        number: int,
        returning: Tensor | None = None,
    ) -> dict[str, float]:
        """Do the clients' rounds; those whose places do not return are as if never asked."""
        round = self.setting.round(kind, phase, number)
        rows, clients = progress.rows.take(ids), progress.clients.take(ids)
        known = self._sessions(progress, ids)
        outcome = self.engine.work(Job(progress.server, rows, clients, known, ids, round, number))
        asked = len(ids)
        cost = totals(outcome)
        if returning is not None and len(returning) < asked:
            # What was lost had been sent down and computed; it was not received.
            ids, rows = ids[returning], tree.take(rows, returning.to(self.device))
            outcome = outcome.take(returning)
            cost |= {name: totals(outcome)[name] for name in ("up", "values_up")}
        self._add(progress.costs[kind], cost)
        if len(ids):
            cohort = Cohort(ids, self.samples[ids], asked, len(self.eligible))
            progress.server, rows = self.method.aggregate(
                self.task, progress.server, rows, outcome.uploads, cohort, round
            )
            self._keep(progress, ids, rows, outcome)
            self._watch_for_divergence(progress, outcome, number)
        return cost

    def _keep(self, progress: Progress, ids: Tensor, rows: Any, outcome: Outcome) -> None:
        """Write what the clients and the server's rows of them are from now on."""
        progress.rows.put(ids, rows)
        progress.clients.put(ids, outcome.clients)
        session.put(progress.session, ids, outcome.session)

    def _sessions(self, progress: Progress, ids: Tensor) -> session.Session:
        """Return what some clients and the server hold of each other, on the device."""
        return Store(progress.session, self.device).take(ids)

    @staticmethod
    def _add(total: dict[str, float], cost: dict[str, float]) -> None:
        for name, value in cost.items():
            total[name] += value

    def _watch_for_divergence(self, progress: Progress, outcome: Outcome, number: int) -> None:
        """Note and warn once when training has left the finite numbers."""
        if progress.diverged is not None:
            return
        states = tree.leaves([progress.server, outcome.clients])
        numbers = [value for value in states if value.is_floating_point()]
        # A sum is finite only if all of its terms are, and costs one pass without a mask.
        if not all(bool(value.sum().isfinite()) for value in numbers):
            progress.diverged = number
            warnings.warn(
                f"W604 training diverged in round {number}: values that are not finite; "
                "its figures mean nothing (lower method.rate?)",
                MasqueradeWarning,
                stacklevel=2,
            )

    def judge(
        self, progress: Progress, view: str, samples: list[Tensor], novel: bool = False
    ) -> Judgement:
        """Use a view at every client, or every novel one, and measure it on some samples of each.

        `samples` are those of all clients; a novel client joins first, as its method has it.
        """
        found = []
        # States of clients that lie in host memory come to the device a few at a time.
        judged = torch.tensor(self.novel if novel else self.known, dtype=torch.int64)
        for ids in torch.split(judged, self.compute.width):
            rows, clients = progress.rows.take(ids), progress.clients.take(ids)
            job = Job(progress.server, rows, clients, {}, ids, self._now(progress), progress.number)
            if novel:
                job = self._joining(progress, job)
            round = self.setting.round("adapt", (view, novel), progress.number)
            chosen = [samples[id].to(self.device) for id in ids.tolist()]
            found.append(self.engine.judge(dataclasses.replace(job, round=round), chosen))
        return Judgement.joined(found)

    def _now(self, progress: Progress) -> Round:
        """Return the last round that was done, as others took part in it."""
        number = max(0, progress.number - 1)
        return self.setting.round("train", self.method.schedule(number, self.train.rounds), number)

    def _joining(self, progress: Progress, job: Job) -> Job:
        """Return what clients that come after training begin with.

        They say hello, and then do one round whose uploads are dropped, unless their method has
        another rule for them in `adapt`.
        """
        job = dataclasses.replace(job, session=self._sessions(progress, job.ids))
        hello, now = self.setting.round("hello", None, progress.number), job.round
        rounds = [hello] * bool(self.method.greet(self.task, hello)) + [now] * self.method.joins
        cohort = Cohort(job.ids, self.samples[job.ids], len(job.ids), len(self.eligible))
        for round in rounds:
            job = dataclasses.replace(job, round=round)
            done = self.engine.work(job)
            # What the server would know of them is kept (a mask), what it would learn is not.
            _, rows = self.method.aggregate(
                self.task, job.server, job.rows, done.uploads, cohort, round
            )
            job = dataclasses.replace(job, rows=rows, clients=done.clients)
        return dataclasses.replace(job, session={})

    def trains(self, view: str) -> bool:
        """Tell whether a view has to be trained before it can be used."""
        return bool(self.method.adapt(self.task, self.setting.round("adapt", (view, False), 0)))

    def look(self, progress: Progress) -> Record:
        """Measure every view that needs no training, on the clients' own data."""
        own = list(getattr(self.federation, self.evaluate.split))
        record: Record = {"round": progress.number, "views": {}}
        for view in self.views:
            if not self.trains(view):
                found = self.judge(progress, view, own)
                record["views"][view] = self.spread(_means(found.scores))
                record |= self._notes(view, found.models)
        record |= self._sent(progress)
        return record

    def _notes(self, view: str, models: list[Message]) -> Record:
        """Return what the method notes of its default view's models, averaged over clients."""
        if view != self.method.views[0]:
            return {}
        notes = tree.stack([self.method.notes(self.task, model) for model in models])
        means = {name: values.double().mean(0).tolist() for name, values in notes.items()}
        return {"notes": means} if means else {}

    def _sent(self, progress: Progress) -> Record:
        cost, clients = progress.costs["train"], len(self.known)
        names = {"down": "down", "up": "up", "masked": "flops"}
        return {new: cost[old] / clients for old, new in names.items()}

    def spread(
        self, values: Sequence[float | None], ids: Sequence[int] | None = None
    ) -> dict[str, float]:
        """Describe one figure per client: mean, std, mean over all samples, bottom decile."""
        judged = getattr(self.federation, self.evaluate.split)
        pairs = zip(values, [len(judged[id]) for id in ids or self.known], strict=True)
        present = [(value, count) for value, count in pairs if value is not None]
        figures = torch.tensor([value for value, _ in present], dtype=torch.float64)
        weights = torch.tensor([count for _, count in present], dtype=torch.float64)
        worst_first = figures.sort(descending=self.task.better == "lower").values
        return {
            "mean": float(figures.mean()),
            "std": float(figures.std(correction=0)),
            "weighted": float((figures * weights).sum() / weights.sum()),
            "bottom_decile": float(worst_first[len(figures) // 10]),
        }

    def verdict(self, progress: Progress) -> tuple[list[Record], dict[str, list[Message]]]:
        """Judge every view, shifted and not: one summary per view, and the personal models."""
        asked = [
            torch.unique(
                torch.cat([chosen[id] for draws in self.sets.values() for chosen in draws])
            )
            for id in range(len(self.whos))
        ]
        views = list(self.views)
        if "global" in self.method.views and "global" not in views:
            views.append("global")
        judged, costs, personal = {}, {}, {}
        for view in views:
            found = self.judge(progress, view, asked)
            personal[view], costs[view] = found.models, found.flops
            judged[view] = self._accuracy(asked, [score.cpu() for score in found.scores])
        summaries = []
        for view in self.views:
            accuracy = dict(judged[view])
            per_client = accuracy.pop("per_client")
            if "global" in judged:
                accuracy["global"] = {key: judged["global"][key] for key in ("own", "shift")}
            history = self._history(progress, view, accuracy["own"])
            history[-1] |= self._notes(view, personal[view])
            summaries.append(
                {
                    "view": view,
                    "seed": self.seed,
                    "rounds": progress.number,
                    "clients": len(self.known),
                    "network": self.train.model or type(self.task.module).__name__,
                    "metric": getattr(self.task.metric, "__name__", "metric"),
                    "better": self.task.better,
                    "accuracy": accuracy,
                    **self._cost(progress, costs[view] if self.trains(view) else None),
                    "density": self._density(personal[view]),
                    **overlap(personal[view]),
                    "parameters": self.task.parameters,
                    "seconds": progress.seconds,
                    "diverged": progress.diverged,
                    "per_client": {
                        "own": per_client,
                        "samples": self.samples[self.known].tolist(),
                        "ids": self.known,
                    },
                    "never_sampled": self._never_sampled(progress),
                    "rounds_to_80": self._rounds_to_80(history),
                    "history": history,
                }
                | self._of_novel(progress, view, asked, accuracy)
            )
        return summaries, {view: personal[view] for view in self.views}

    def _never_sampled(self, progress: Progress) -> int:
        """Count the clients that could have taken part, and of whom no round was received."""
        taken: set[int] = set()
        for number in range(progress.number):
            ids = self.cohort(number)
            taken |= set(ids[self.participation.returning(number, ids)].tolist())
        return len(self.eligible) - len(taken)

    def _of_novel(
        self, progress: Progress, view: str, asked: list[Tensor], known: Record
    ) -> Record:
        """Judge the clients that were kept out of training, and say how far they fall behind."""
        if not self.novel:
            return {}
        found = self.judge(progress, view, asked, novel=True)
        accuracy = self._accuracy(asked, [score.cpu() for score in found.scores], self.novel)
        gap = known["own"]["mean"] - accuracy["own"]["mean"]
        return {"novel": {"clients": len(self.novel), "accuracy": accuracy, "gap": gap}}

    def _accuracy(
        self, asked: list[Tensor], scores: list[Tensor], ids: Sequence[int] | None = None
    ) -> Record:
        """Read the figures of all shift degrees off the metric of each (client, sample)."""
        judged = dict(zip(ids or self.known, scores, strict=True))

        def figure(id: int, chosen: list[Tensor]) -> float | None:
            means = [
                float(judged[id][torch.searchsorted(asked[id], index)].double().mean())
                for index in chosen
                if len(index)
            ]
            return sum(means) / len(means) if means else None

        shift: Record = {}
        own: list[float | None] = []
        for degree, draws in self.sets.items():
            per_client = [figure(id, [chosen[id] for chosen in draws]) for id in judged]
            described = self.spread(per_client, ids)
            shift[str(degree)] = {"mean": described["mean"], "std": described["std"]}
            if degree == 0:
                own = per_client
        shift["averaged"] = sum(entry["mean"] for entry in shift.values()) / len(shift)
        return {"own": self.spread(own, ids), "shift": shift, "per_client": own}

    def _cost(self, progress: Progress, adapt: Flops | None) -> Record:
        """Return means per client over the training rounds; hello and adapt stand apart."""
        clients = len(self.known)
        found: Record = {}
        for kind, sums in progress.costs.items():
            mean = {name: value / clients for name, value in sums.items()}
            costs = {
                "bytes": {"down": mean["down"], "up": mean["up"]},
                "flops": {"dense": mean["dense"], "masked": mean["masked"]},
                "paper": {
                    "bytes": (mean["values_down"] + mean["values_up"]) / 2,
                    "flops": mean["paper"],
                },
            }
            found |= costs if kind == "train" else {kind: costs}
        if adapt is not None:
            found["adapt"] = {
                "bytes": {"down": 0.0, "up": 0.0},
                "flops": {"dense": float(adapt.dense.mean()), "masked": float(adapt.masked.mean())},
            }
        return found

    def _density(self, personal: list[Message]) -> float:
        """Return kept / all parameters of the personal models, averaged over clients."""
        names = self.task.parameter_names
        kept = sum(_kept(model, name) for model in personal for name in names)
        return kept / self.task.parameters / len(personal)

    def _history(self, progress: Progress, view: str, own: Record) -> list[Record]:
        """Return the curve of a view; one that trains has its last point only."""
        notes = view == self.method.views[0]
        points = [
            {
                "round": record["round"],
                "own": record["views"][view]["mean"],
                "std": record["views"][view]["std"],
                **{name: record[name] for name in ("down", "up", "flops")},
                **({"notes": record["notes"]} if notes and "notes" in record else {}),
            }
            for record in progress.history
            if view in record["views"] and record["round"] < progress.number
        ]
        last = {"round": progress.number, "own": own["mean"], "std": own["std"]}
        return [*points, last | self._sent(progress)]

    def _rounds_to_80(self, history: list[Record]) -> int:
        """Return the first round that was looked at and has 80 % of the final figure."""
        final, last = history[-1]["own"], int(history[-1]["round"])
        if self.task.better == "higher":
            reached = [int(point["round"]) for point in history if point["own"] >= 0.8 * final]
        else:
            reached = [int(point["round"]) for point in history if 0.8 * point["own"] <= final]
        return reached[0] if reached else last

    def close(self) -> None:
        """Let go of processes."""
        self.engine.close()


def carry_on(
    simulation: Simulation,
    progress: Progress,
    directory: RunDirectory | None = None,
    watch: Watch = lambda done, record: None,
    world: Record | None = None,
) -> Progress:
    """Move a simulation on to its last round, committing beside the computation.

    `world` is written with every commit: facts that a later resume compares.
    """
    begun, before = time.monotonic(), progress.seconds
    committer = None
    if directory is not None:
        committer = Committer(directory, simulation.compute.commit_every)
    lines: list[Record] = []
    try:
        while progress.number < simulation.train.rounds:
            line = simulation.advance(progress)
            every, last = simulation.evaluate.every, progress.number == simulation.train.rounds
            record = None
            if every and (progress.number % every == 0) and not last:
                record = simulation.look(progress)
                progress.history.append(record)
                line["views"] = record["views"]
            lines.append(line)
            progress.seconds = before + time.monotonic() - begun
            if committer is not None and (last or committer.due()):
                facts = progress.facts() | (world or {})
                committer.submit(progress.number, progress.tensors(), facts, lines)
                lines = []
            watch(progress.number, record)
    finally:
        if committer is not None:
            committer.close()
    return progress


def _at(state: Any, place: torch.device) -> Any:
    return tree.transform(lambda value: value.to(place), state)


def _kept(model: Message, name: str) -> int:
    """Count the entries of a parameter that a model uses.

    Where bits alone speak of it, they choose from the initial weights (FedMask); beside numbers
    they say something else (DM-PFL+: which weights two models share).
    """
    parts = [part for part in model.values() if name in part.values]
    numbers = [part for part in parts if part.values[name].dtype is not torch.bool]
    count = 0
    for part in numbers or parts:
        value, held = part.values[name], part.held(name)
        used = torch.ones_like(value, dtype=torch.bool) if numbers else value
        count += int((used if held is None else used & held).sum())
    return count


def _means(scores: Sequence[Tensor]) -> list[float | None]:
    """Average each client's samples; a client without samples has no figure, not a zero."""
    return [float(score.double().mean()) if len(score) else None for score in scores]
