"""A whole cohort at once: the same text of a round, every function mapped over stacked clients."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.round import Round, Stage, client_round
from masquerade.core.task import Task
from masquerade.core.train import batching
from masquerade.core.tree import State
from masquerade.cost import compute, traffic
from masquerade.cost.compute import Flops
from masquerade.cost.traffic import Traffic
from masquerade.data.batches import Orders
from masquerade.engine.setting import Job, Judgement, Outcome, Setting, astuple
from masquerade.errors import MasqueradeWarning

JUDGED = 4096
"""Samples judged at a time, over all clients of a chunk."""


@dataclass(frozen=True)
class Lifted:
    """A method whose functions take and give stacked states: what `client_round` runs here."""

    method: Method
    clients: int

    def map(self, function: Any, *states: Any) -> Any:
        """Map a function over clients; states may be empty, so an index comes along."""
        index = torch.arange(self.clients)
        with batching():
            return torch.func.vmap(lambda _, *each: function(*each))(index, *states)

    def download(self, task: Task, server: State, rows: State, round: Round) -> Message:
        """Return what the clients are sent."""
        found: Message = self.map(lambda row: self.method.download(task, server, row, round), rows)
        return found

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Return the clients' work."""
        begun: State = self.map(
            lambda one, own: self.method.start(task, one, own, round), message, client
        )
        return begun

    def stages(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """List the stages, each of their functions mapped."""
        return tuple(self.lift(stage) for stage in self.method.stages(task, round))

    def lift(self, stage: Stage) -> Stage:
        """Map the functions of a stage."""

        def step(work: State, given: Any, round: Round) -> State:
            batch, busy = given
            new = self.map(lambda one, part: stage.step(one, part, round), work, batch)
            return new if all(busy) else _only_busy(busy, new, work)

        def begin(work: State, round: Round) -> State:
            begun: State = self.map(lambda one: stage.prepare(one, round), work)
            return begun

        def then(work: State, round: Round) -> State:
            ended: State = self.map(lambda one: stage.then(one, round), work)
            return ended

        return replace(stage, step=step, begin=begin, then=then)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Return the uploads and what the clients hold."""
        ended: tuple[Message, State] = self.map(
            lambda *one: self.method.finish(task, one[0], one[1], one[2], round),
            work,
            message,
            client,
        )
        return ended


def _only_busy(busy: list[bool], new: State, old: State) -> State:
    """Keep all of a client's work, bit for bit, where a step had no sample for it."""

    def choose(after: Tensor, before: Tensor) -> Tensor:
        had = torch.tensor(busy, device=after.device).reshape(-1, *[1] * (after.ndim - 1))
        return torch.where(had, after, before)

    chosen: State = tree.transform(choose, new, old)
    return chosen


@dataclass
class Batched:
    """Runs clients in chunks of `width` at a time."""

    setting: Setting
    width: int = 64
    name: str = "batched"
    trial: bool = False
    """Take one step of every stage only: enough to find what cannot be mapped."""

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds, with half the width where memory does not suffice."""
        try:
            return self._work(job)
        except torch.OutOfMemoryError:
            width = min(self.width, len(job.ids))
            if width == 1:
                raise
        self.width = width // 2
        warnings.warn(
            f"W503 memory: {width} → {self.width} clients at a time, round {job.number} restarted; "
            "the last bits may depend on it",
            MasqueradeWarning,
            stacklevel=2,
        )
        return self.work(job)

    def _work(self, job: Job) -> Outcome:
        done: list[tuple[Any, ...]] = []
        for places, padding in self._chunks(len(job.ids)):
            part = job.take(places)
            lifted = Lifted(self.setting.method, len(places))
            download = lifted.download(self.setting.task, part.server, part.rows, part.round)
            upload, client, flops = self._chunk(lifted, part, download, padding)
            cost, after = traffic.measure(download, upload, part.known, lead=1)
            real = len(places) - padding
            chunk = (upload, client, after, astuple(cost), astuple(flops))
            done.append(tree.transform(lambda value, real=real: value[:real], chunk))
        upload, client, after, columns, flops = tree.transform(
            lambda *pieces: torch.cat(pieces), *done
        )
        return Outcome(upload, client, after, Traffic(*columns), Flops(*flops))

    def _chunks(self, clients: int) -> Iterator[tuple[Tensor, int]]:
        """Yield places in the cohort, always as many, and how many at the end are padding."""
        width = min(self.width, clients)
        for places in torch.split(torch.arange(clients), width):
            padding = width - len(places)
            yield torch.cat([places, places[:1].expand(padding)]), padding

    def _chunk(
        self, lifted: Lifted, job: Job, download: Message, padding: int
    ) -> tuple[Message, State, Flops]:
        """Do the rounds of one chunk, the last `padding` clients of which have no samples."""
        setting, feed, ids, round = self.setting, self.setting.feed, job.ids, job.round
        total = compute.nothing(len(ids))
        orders: dict[str, Orders] = {}

        def batches(stage: Stage) -> Iterator[Any]:
            made = feed.orders(ids, stage, round, job.number)
            counts = made.counts[: len(ids) - padding] + [0] * padding
            orders[stage.name] = replace(made, counts=counts)
            steps = feed.of_cohort(orders[stage.name])
            yield from islice(steps, 1) if self.trial else steps

        plain = {stage.name: stage for stage in setting.method.stages(setting.task, round)}

        def observe(stage: Stage, work: State) -> None:
            nonlocal total
            made = orders[stage.name]
            single = plain[stage.name]
            x, y = feed.federation.x[:1], feed.federation.y[:1]
            per_sample = setting.meter.step(single, tree.take(work, 0), x, y, round)
            seen = torch.tensor(made.counts, dtype=torch.float64) * stage.epochs
            keep = compute.shares(stage, work, lead=1)
            total = total + setting.meter.stage(single, per_sample, seen, keep, x)

        upload, client = client_round(
            lifted,
            setting.task,
            download,
            job.clients,
            batches,
            round,
            observe,
        )
        return upload, client, total

    def judge(self, job: Job, samples: list[Tensor]) -> Judgement:
        """Adapt every client on a copy and measure its samples."""
        method, task = self.setting.method, self.setting.task
        data, view = self.setting.feed.federation, job.round.phase[0]
        models: list[Message] = []
        found: list[Tensor] = []
        costs = []
        for places, padding in self._chunks(len(job.ids)):
            part = job.take(places)
            lifted = Lifted(method, len(places))
            download = lifted.download(task, part.server, part.rows, part.round)
            _, client, flops = self._chunk(lifted, part, download, padding)
            personal = lifted.map(
                lambda one, own: method.personalize(task, one, own, view), download, client
            )
            real = range(len(places) - padding)
            chosen = [samples[int(place)] for place in places]
            scores = self._scores(lifted, personal, chosen, data.x, data.y)
            models += [tree.take(personal, place) for place in real]
            found += [scores[place, : len(chosen[place])] for place in real]
            costs.append([column[: len(real)] for column in astuple(flops)])
        total = Flops(*(torch.cat(column) for column in zip(*costs, strict=True)))
        return Judgement(models, found, total)

    def score(
        self, models: list[Message], samples: list[Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        """Measure models, each on some samples of `x` and `y`."""
        found: list[Tensor] = []
        for places, padding in self._chunks(len(models)):
            lifted = Lifted(self.setting.method, len(places))
            personal = tree.stack([models[int(place)] for place in places])
            chosen = [samples[int(place)] for place in places]
            scores = self._scores(lifted, personal, chosen, x, y)
            real = range(len(places) - padding)
            found += [scores[place, : len(chosen[place])] for place in real]
        return found

    def _scores(
        self, lifted: Lifted, personal: Message, samples: list[Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        """Return the metric of every sample [clients, most]; padding is judged and not read."""
        method, task = lifted.method, self.setting.task
        table = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
        pieces = []
        for chosen in torch.split(table, max(1, JUDGED // lifted.clients), dim=1):
            if chosen.shape[1]:
                output = lifted.map(
                    lambda one, sample: method.predict(task, one, sample), personal, x[chosen]
                )
                score = task.metric(output.flatten(0, 1), y[chosen].flatten(0, 1))
                pieces.append(score.reshape(chosen.shape))
        return torch.cat(pieces, dim=1) if pieces else torch.empty(lifted.clients, 0)

    def close(self) -> None:
        """Hold nothing."""
