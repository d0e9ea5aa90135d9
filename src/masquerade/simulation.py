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
from masquerade.core.random import choose, fold
from masquerade.core.round import Cohort, Who
from masquerade.core.task import Task
from masquerade.cost import traffic
from masquerade.cost.compute import Flops, Meter
from masquerade.data import Federation, shift_sets
from masquerade.data.batches import Feed
from masquerade.engine import auto
from masquerade.engine.setting import Engine, Job, Judgement, Outcome, Setting
from masquerade.engine.store import Store
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.progress import COSTS, Progress, Record, totals
from masquerade.rundir import Committer, RunDirectory

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
    ) -> None:
        self.method, self.train, self.evaluate, self.seed = method, train, evaluate, seed
        self.views = views
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(found if compute.device == "auto" else compute.device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise MasqueradeError("E503", "there is no CUDA device here; take compute.device=cpu")
        self.task = task.to(self.device)
        self.federation = federation.to(self.device)
        self.samples = federation.samples.cpu()
        self.eligible = torch.nonzero(self.samples).flatten()
        if not len(self.eligible):
            raise MasqueradeError("E303", "no client has a training sample")
        if not any(len(own) for own in getattr(federation, evaluate.split)):
            raise MasqueradeError(
                "E304", f"no client has a sample to be judged on ({evaluate.split})"
            )
        preflight.try_out(self.task, self.federation)
        self.asked = max(1, round(train.participation * len(self.eligible)))
        engine = compute.engine
        if engine == "auto":
            engine = auto.choose(self.task, self.device, self.asked)
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
        return Progress(
            0,
            self.method.server_init(self.task),
            Store.of(rows, self.device, self.place),
            Store.of(clients, self.device, self.place),
            traffic.at_first(self.task.initial, len(self.whos)),
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
        prefix = "known/"
        progress.known = {
            "" if name == prefix + "any" else name.removeprefix(prefix): value
            for name, value in moved.items()
            if name.startswith(prefix)
        }
        progress.number, progress.costs = number, facts["costs"]
        progress.history, progress.seconds = facts["history"], facts["seconds"]
        progress.diverged = facts["diverged"]
        return progress

    def cohort(self, number: int) -> Tensor:
        """Sample the clients of a round, in ascending order; one without data is never sampled."""
        return choose(fold(self.seed, "cohort", number), self.eligible, self.asked)

    def advance(self, progress: Progress) -> Record:
        """Do one round, in place; return what it cost. Before round 0, greet the clients."""
        number = progress.number
        if number == 0 and self.method.greet(self.task, self.setting.round("hello", None, 0)):
            progress.costs["hello"] = dict.fromkeys(COSTS, 0.0)
            self._exchange(progress, "hello", None, self.eligible, 0)
        ids = self.cohort(number)
        cost = self._exchange(
            progress, "train", self.method.schedule(number, self.train.rounds), ids, number
        )
        progress.number += 1
        return {"round": progress.number, "clients": ids.tolist(), **cost}

    def _exchange(
        self, progress: Progress, kind: str, phase: Any, ids: Tensor, number: int
    ) -> dict[str, float]:
        round = self.setting.round(kind, phase, number)
        rows, clients = progress.rows.take(ids), progress.clients.take(ids)
        known = tree.take(progress.known, ids.to(self.device))
        outcome = self.engine.work(Job(progress.server, rows, clients, known, ids, round, number))
        cohort = Cohort(ids, self.samples[ids], len(ids), len(self.eligible))
        progress.server, rows = self.method.aggregate(
            self.task, progress.server, rows, outcome.uploads, cohort, round
        )
        progress.rows.put(ids, rows)
        progress.clients.put(ids, outcome.clients)
        place = ids.to(self.device)
        for name, digests in outcome.known.items():
            old = progress.known.setdefault(name, progress.known[""].clone())
            old.index_copy_(0, place, digests.to(self.device))
        self._watch_for_divergence(progress, outcome, number)
        cost = totals(outcome)
        total = progress.costs[kind]
        for name, value in cost.items():
            total[name] += value
        return cost

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

    def judge(self, progress: Progress, view: str, samples: list[Tensor]) -> Judgement:
        """Use a view at every client, and measure it on some samples of each."""
        round = self.setting.round("adapt", (view, False), progress.number)
        found = []
        # States of clients that lie in host memory come to the device a few at a time.
        for ids in torch.split(torch.arange(len(self.whos)), self.compute.width):
            rows, clients = progress.rows.take(ids), progress.clients.take(ids)
            job = Job(progress.server, rows, clients, {}, ids, round, progress.number)
            chosen = [samples[id].to(self.device) for id in ids.tolist()]
            found.append(self.engine.judge(job, chosen))
        return Judgement.joined(found)

    def trains(self, view: str) -> bool:
        """Tell whether a view has to be trained before it can be used."""
        return bool(self.method.adapt(self.task, self.setting.round("adapt", (view, False), 0)))

    def look(self, progress: Progress) -> Record:
        """Measure every view that needs no training, on the clients' own data."""
        own = list(getattr(self.federation, self.evaluate.split))
        record: Record = {"round": progress.number, "views": {}}
        for view in self.views:
            if not self.trains(view):
                scores = self.judge(progress, view, own).scores
                record["views"][view] = self.spread(_means(scores))
        record |= self._sent(progress)
        return record

    def _sent(self, progress: Progress) -> Record:
        cost, clients = progress.costs["train"], len(self.whos)
        names = {"down": "down", "up": "up", "masked": "flops"}
        return {new: cost[old] / clients for old, new in names.items()}

    def spread(self, values: Sequence[float | None]) -> dict[str, float]:
        """Describe one figure per client: mean, std, mean over all samples, bottom decile."""
        judged = getattr(self.federation, self.evaluate.split)
        pairs = zip(values, map(len, judged), strict=True)
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
            summaries.append(
                {
                    "view": view,
                    "seed": self.seed,
                    "rounds": progress.number,
                    "clients": len(self.whos),
                    "metric": getattr(self.task.metric, "__name__", "metric"),
                    "better": self.task.better,
                    "accuracy": accuracy,
                    **self._cost(progress, costs[view] if self.trains(view) else None),
                    "density": self._density(personal[view]),
                    "parameters": self.task.parameters,
                    "seconds": progress.seconds,
                    "diverged": progress.diverged,
                    "per_client": {"own": per_client, "samples": self.samples.tolist()},
                    "history": self._history(progress, view, accuracy["own"]),
                }
            )
        return summaries, {view: personal[view] for view in self.views}

    def _accuracy(self, asked: list[Tensor], scores: list[Tensor]) -> Record:
        """Read the figures of all shift degrees off the metric of each (client, sample)."""

        def figure(id: int, chosen: list[Tensor]) -> float | None:
            means = [
                float(scores[id][torch.searchsorted(asked[id], index)].double().mean())
                for index in chosen
                if len(index)
            ]
            return sum(means) / len(means) if means else None

        shift: Record = {}
        own: list[float | None] = []
        for degree, draws in self.sets.items():
            per_client = [
                figure(id, [chosen[id] for chosen in draws]) for id in range(len(self.whos))
            ]
            described = self.spread(per_client)
            shift[str(degree)] = {"mean": described["mean"], "std": described["std"]}
            if degree == 0:
                own = per_client
        shift["averaged"] = sum(entry["mean"] for entry in shift.values()) / len(shift)
        return {"own": self.spread(own), "shift": shift, "per_client": own}

    def _cost(self, progress: Progress, adapt: Flops | None) -> Record:
        """Return means per client over the training rounds; hello and adapt stand apart."""
        clients = len(self.whos)
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
        points = [
            {
                "round": record["round"],
                "own": record["views"][view]["mean"],
                "std": record["views"][view]["std"],
                **{name: record[name] for name in ("down", "up", "flops")},
            }
            for record in progress.history
            if view in record["views"] and record["round"] < progress.number
        ]
        last = {"round": progress.number, "own": own["mean"], "std": own["std"]}
        return [*points, last | self._sent(progress)]

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
