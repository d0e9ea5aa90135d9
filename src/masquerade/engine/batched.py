"""A whole cohort at once: `client_round` with every function mapped over stacked clients."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.core.round import Round, Stage, client_round
from masquerade.core.tree import State
from masquerade.cost.flops import Flops, Shares, Step, densities, fetched, nothing
from masquerade.cost.traffic import Traffic, measure_exchange
from masquerade.data import Federation
from masquerade.data.loader import ShuffledIndices, StackedBatches
from masquerade.engine.base import EngineContext, Evaluation, Job, Outcome, astuple
from masquerade.engine.replay.convolutions import convolving
from masquerade.engine.replay.cuda_graphs import same_place
from masquerade.engine.replay.eager import RowStep, Stepper
from masquerade.engine.replay.recorded import Recordings
from masquerade.engine.vmapped import VmappedMethod
from masquerade.errors import MasqueradeWarning

Done = TypeVar("Done")

EVALUATED = 4096
"""Samples evaluated at a time, over all clients of a chunk."""
KEPT = 2**26
"""Numbers of outputs that are held at a time where whole test sets are scored."""


def where_busy(busy: Tensor, new: State, old: State) -> State:
    """Keep all of a client's work, bit for bit, where a step had no sample for it."""

    def choose(after: Tensor, before: Tensor) -> Tensor:
        if same_place(after, before):
            return after
        return torch.where(busy.reshape(-1, *[1] * (after.ndim - 1)), after, before)

    chosen: State = tree.transform(choose, new, old)
    return chosen


def stretches(lengths: list[int], halves: bool) -> list[tuple[int, int, int]]:
    """Divide the steps of clients, longest first, into (width, first step, step after the last).

    A stretch is as wide as clients have steps in it; with `halves`, widths are those of all
    clients, half of them, a quarter and so on, so that there are few.
    """
    widths = [len(lengths)]
    while widths[-1] > 1:
        widths.append(-(-widths[-1] // 2) if halves else widths[-1] - 1)
    found: list[tuple[int, int, int]] = []
    for width, narrower in zip(widths, [*widths[1:], 0], strict=True):
        # At this width until the next one holds everybody who still has steps.
        first, last = found[-1][2] if found else 0, lengths[narrower]
        if last > first:
            found.append((width, first, last))
    return found


@dataclass
class Batched:
    """Runs clients in chunks of `clients_per_chunk`."""

    context: EngineContext
    clients_per_chunk: int = 64
    name: str = "batched"
    trial: bool = False
    """Take one step of every stage only: enough to find what cannot be mapped."""
    steps: Stepper = field(default_factory=Recordings)
    """How steps are taken: as they are written, or recorded once and repeated."""
    copies: ClassVar[bool] = False
    evaluated: int = field(default_factory=lambda: EVALUATED)
    """Samples evaluated at a time; fewer once memory did not suffice."""
    prepared: dict[Any, tuple[ShuffledIndices, StackedBatches]] = field(default_factory=dict)
    """Batches that were laid out before they are asked for."""

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds, with half as many at a time where memory does not suffice."""
        return self._fitting(lambda: self._work(job), job)

    def _fitting(self, go: Callable[[], Done], job: Job) -> Done:
        """Do something for a job, with half as many clients at a time until memory suffices."""
        while True:
            try:
                return go()
            except torch.OutOfMemoryError:
                width = min(self.clients_per_chunk, len(job.ids))
                if width == 1:
                    raise
            # Here nothing holds what was computed any more, as the error did.
            self.clients_per_chunk = width // 2
            self.prepared.clear()
            self.steps.clear()
            warnings.warn(
                f"W503 memory: {width} → {self.clients_per_chunk} clients at a time, round "
                f"{job.number} restarted; the last bits may depend on it",
                MasqueradeWarning,
                stacklevel=3,
            )

    def _work(self, job: Job) -> Outcome:
        done: list[tuple[Any, ...]] = []
        spent: list[tuple[int, Traffic, Callable[[], Flops]]] = []
        order = self._by_size(job.ids)
        # Usually all fit into one chunk, and often all are of a size: then nothing is moved.
        single = len(order) <= self.clients_per_chunk and _in_order(order)
        for places, padding in self._chunks(order):
            part = job if single else job.take(places)
            vmapped = self._vmapped(len(places))
            download = vmapped.download(self.context.task, part.server, part.rows, part.round)
            download = self.context.as_received(download, part.ids, None)
            upload, client, flops = self.work_chunk(vmapped, part, download, padding)
            upload = self.context.as_received(upload, part.ids, (job.round.label, job.number))
            cost, after = measure_exchange(download, upload, part.session, lead=1)
            real = len(places) - padding
            spent.append((real, cost, flops))
            done.append((upload, client, after))
        back = order.argsort()

        def joined(chunks: list[Any]) -> Any:
            """Join what chunks of clients gave, without padding, in the order of the job."""
            if single:
                return tree.transform(torch.Tensor.contiguous, chunks[0])
            pieces = [
                tree.transform(lambda value, real=real: value[:real], chunk)
                for chunk, (real, _, _) in zip(chunks, spent, strict=True)
            ]
            whole = tree.transform(lambda *each: torch.cat(each), *pieces)
            return tree.take(whole, back)

        def count() -> tuple[Traffic, Flops]:
            chunks = [(astuple(cost.here()), astuple(flops())) for _, cost, flops in spent]
            traffic, flops = joined(chunks)
            return Traffic(*traffic), Flops(*flops)

        upload, client, after = joined(done)
        return Outcome(upload, client, after, count)

    def _vmapped(self, clients: int) -> VmappedMethod:
        return VmappedMethod(self.context.method, clients, self.steps.rewrites)

    @property
    def prepares(self) -> bool:
        """Prepare the next round where work goes on without the CPU."""
        return self.context.loader.federation.x.is_cuda

    def prepare(self, ids: Tensor, round: Round, number: int) -> None:
        """Lay out the batches of the round to come, while a device is busy with this one."""
        self.prepared.clear()
        try:
            for places, padding in self._chunks(self._by_size(ids)):
                for stage in self.context.method.stages(self.context.task, round):
                    key = _key(ids[places], stage, round, number)
                    self.prepared[key] = self._batches_of(
                        ids[places], padding, stage, round, number
                    )
        except torch.OutOfMemoryError:
            # It is done when it is needed, and memory is freed until then.
            self.prepared.clear()

    def _batches_of(
        self, ids: Tensor, padding: int, stage: Stage, round: Round, number: int
    ) -> tuple[ShuffledIndices, StackedBatches]:
        """Return the samples of a chunk's stage, the last `padding` clients having none."""
        made = self.context.loader.shuffle(ids, stage, round, number)
        made = replace(made, counts=made.counts[: len(ids) - padding] + [0] * padding)
        return made, self.context.loader.stack(made)

    def _by_size(self, ids: Tensor) -> Tensor:
        """Order places in the cohort by the clients' samples, so that a chunk has alike ones."""
        return self.context.loader.counts(ids).argsort(descending=True, stable=True)

    def _chunks(self, order: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Yield places in the cohort, always as many, and how many at the end are padding."""
        width = min(self.clients_per_chunk, len(order))
        for places in torch.split(order, width):
            padding = width - len(places)
            yield torch.cat([places, places[:1].expand(padding)]), padding

    def work_chunk(
        self, vmapped: VmappedMethod, job: Job, download: Message, padding: int
    ) -> tuple[Message, State, Callable[[], Flops]]:
        """Do the rounds of one chunk, the last `padding` clients of which have no samples.

        What they cost is counted when it is asked for: it needs the masks' densities, and nobody is
        to wait for these before all work has been handed to the device.
        """
        context, loader, ids, round = self.context, self.context.loader, job.ids, job.round
        noted: list[tuple[Stage, Step, Tensor, Tensor]] = []
        kept: list[Shares | None] = []
        shuffled: dict[str, ShuffledIndices] = {}
        stacked_by_stage: dict[str, StackedBatches] = {}

        def batches(stage: Stage) -> StackedBatches:
            ready = self.prepared.pop(_key(ids, stage, round, job.number), None)
            made = ready or self._batches_of(ids, padding, stage, round, job.number)
            shuffled[stage.name], stacked_by_stage[stage.name] = made
            return stacked_by_stage[stage.name]

        plain = {stage.name: stage for stage in context.method.stages(context.task, round)}
        x, y = loader.federation.x[:1], loader.federation.y[:1]

        def observe(stage: Stage, work: State) -> None:
            made = shuffled[stage.name]
            single = plain[stage.name]
            per_sample = context.meter.step(single, tree.take(work, 0), x, y, round)
            seen = per_sample.samples(made.drawn) * stage.epochs
            ran = self.samples_run(stacked_by_stage[stage.name], len(ids) - padding)
            noted.append((single, per_sample, seen, ran))
            kept.append(densities(stage, work, lead=1))

        upload, client = client_round(
            vmapped,
            context.task,
            download,
            job.clients,
            batches,
            round,
            observe,
            self._steps,
        )

        def count() -> Flops:
            total = nothing(len(ids))
            for (stage, step, seen, ran), keep in zip(noted, fetched(kept), strict=True):
                total += context.meter.stage(stage, step, seen, keep, x, ran)
            return total

        return upload, client, count

    def _steps(self, stage: Stage, work: State, stacked: StackedBatches, round: Round) -> State:
        """Take all steps of a stage, with fewer clients as they come to their ends."""
        if len(set(stacked.lengths)) == 1:
            last = min(stacked.lengths[0], 1) if self.trial else stacked.lengths[0]
            part = (len(stacked.lengths), 0, last)
            return self._stretch(stage, work, stacked, part, round) if last else work
        order = torch.tensor(stacked.lengths).argsort(descending=True, stable=True)
        stacked, work = stacked.take(order), _reordered(work, order)
        ended: list[State] = []
        parts = stretches(stacked.lengths, halves=self.steps.few)
        for width, first, last in parts[:1] if self.trial else parts:
            ended.append(tree.transform(lambda value, at=width: value[at:], work))
            work = tree.transform(lambda value, at=width: value[:at], work)
            last = first + 1 if self.trial else last
            work = self._stretch(stage, work, stacked, (width, first, last), round)
        whole = tree.transform(lambda *pieces: torch.cat(pieces), work, *reversed(ended))
        return _reordered(whole, order.argsort())

    def samples_run(self, stacked: StackedBatches, real: int) -> Tensor:
        """Count the samples computed for each client; padding clients are shared by all."""
        parts = stretches(sorted(stacked.lengths, reverse=True), halves=self.steps.few)
        own = torch.tensor(stacked.lengths, dtype=torch.float64)
        taken = sum(width * (last - first) for width, first, last in parts)
        return (own + (taken - own.sum()) / real) * (stacked.rows.shape[-1] - 2)

    def _stretch(
        self,
        stage: Stage,
        work: State,
        stacked: StackedBatches,
        part: tuple[int, int, int],
        round: Round,
    ) -> State:
        """Take some steps with the first clients."""
        width, first, last = part
        # With few widths some clients have no samples, and one form of a step serves for all.
        one = [(False, first, last)]
        for whole, first, last in one if self.steps.few else stacked.alike(*part):
            step = self._step(stage, stacked.draws, whole)
            key = (round.kind, round.phase, stage.name, whole)
            work = self.steps.run(key, step, work, stacked.rows[first:last, :width], round)
        return work

    def _step(self, stage: Stage, draws: int, whole: bool) -> RowStep:
        """Return a step from a row of batches, which may be known to be `whole`."""
        loader, few = self.context.loader, self.steps.few

        def step(work: State, row: Tensor, round: Round) -> State:
            new = stage.step(work, loader.batch(row, draws, whole), round)
            return where_busy(row[:, -2] >= draws, new, work) if few else new

        return step

    def evaluate(self, job: Job, samples: list[Tensor], models: bool = True) -> Evaluation:
        """Adapt every client on a copy and measure its samples, as many at a time as fit."""
        return self._fitting(lambda: self._evaluate(job, samples, models), job)

    def _evaluate(self, job: Job, samples: list[Tensor], models: bool) -> Evaluation:
        method, task = self.context.method, self.context.task
        data, view = self.context.loader.federation, job.round.phase[0]
        kept: list[Message] = []
        found: list[Tensor] = []
        costs = []
        order = self._by_size(job.ids)
        for places, padding in self._chunks(order):
            part = job.take(places)
            vmapped = self._vmapped(len(places))
            download = vmapped.download(task, part.server, part.rows, part.round)
            download = self.context.as_received(download, part.ids, None)
            _, client, flops = self.work_chunk(vmapped, part, download, padding)
            personal = vmapped.map(
                lambda one, own: method.personalize(task, one, own, view), download, client
            )
            real = range(len(places) - padding)
            chosen = [samples[int(place)] for place in places]
            scores = self._scores(vmapped, personal, chosen, data.x, data.y)
            kept += [tree.take(personal, place) for place in real if models]
            found += [scores[place, : len(chosen[place])] for place in real]
            costs.append([column[: len(real)] for column in astuple(flops())])
        back = order.argsort()
        total = Flops(*(torch.cat(column)[back] for column in zip(*costs, strict=True)))
        at = back.tolist()
        kept = [kept[one] for one in at if models]
        return Evaluation(kept, [found[one] for one in at], total)

    def score(
        self, models: list[Message], samples: list[Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        """Measure models, each on some samples of `x` and `y`."""
        found: list[Tensor] = []
        for places, padding in self._chunks(torch.arange(len(models))):
            vmapped = self._vmapped(len(places))
            personal = tree.stack([models[int(place)] for place in places])
            chosen = [samples[int(place)] for place in places]
            scores = self._scores(vmapped, personal, chosen, x, y)
            real = range(len(places) - padding)
            found += [scores[place, : len(chosen[place])] for place in real]
        return found

    def _scores(
        self, vmapped: VmappedMethod, personal: Message, samples: list[Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        """Return the metric of every sample [clients, most]; padding is evaluated and not read."""
        pieces = []
        for chosen, output in self.predictions(vmapped, personal, samples, x):
            score = self.context.task.metric(output.flatten(0, 1), y[chosen].flatten(0, 1))
            pieces.append(score.reshape(chosen.shape))
        return torch.cat(pieces, dim=1) if pieces else torch.empty(vmapped.clients, 0)

    def outputs(
        self, models: Sequence[Message], samples: Sequence[Tensor], x: Tensor
    ) -> Iterator[Tensor]:
        """Yield, model after model, all outputs for some samples of `x`.

        Those of as many models are held at a time as `KEPT` numbers have room for.
        """
        task = self.context.task
        most = max(map(len, samples), default=0) * task(task.initial, task.sample)[0].numel()
        together = min(self.clients_per_chunk, max(1, KEPT // max(1, most)))
        for places in torch.split(torch.arange(len(models)), together):
            here = places.tolist()
            vmapped, personal = self._vmapped(len(here)), tree.stack([models[at] for at in here])
            chosen = [samples[at] for at in here]
            pieces = [output for _, output in self.predictions(vmapped, personal, chosen, x)]
            for at, own in enumerate(chosen):
                yield (
                    torch.cat([piece[at] for piece in pieces])[: len(own)]
                    if pieces
                    else (torch.empty(0, device=x.device))
                )

    def predictions(
        self, vmapped: VmappedMethod, personal: Message, samples: list[Tensor], x: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples of `x` [clients, some], padded, and the clients' outputs for them."""
        method, task = vmapped.method, self.context.task
        table = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
        at = 0
        while at < table.shape[1]:
            width = max(1, self.evaluated // vmapped.clients)
            chosen = table[:, at : at + width]
            try:
                with convolving(x.device, vmapped.products):
                    output = vmapped.map(
                        lambda one, sample: method.predict(task, one, sample), personal, x[chosen]
                    )
            except torch.OutOfMemoryError:
                if width == 1:
                    raise
                self.evaluated = width // 2 * vmapped.clients
                continue
            yield chosen, output
            at += width

    @property
    def federation(self) -> Federation:
        """Return the data that it works on."""
        return self.context.loader.federation

    def close(self) -> None:
        """Do nothing: there are no processes."""


def _reordered(work: State, order: Tensor) -> State:
    """Put stacked work into another order."""
    if _in_order(order):
        return work
    moved: State = tree.take(work, order)
    return moved


def _key(ids: Tensor, stage: Stage, round: Round, number: int) -> Any:
    return round.kind, number, stage.name, tuple(ids.tolist())


def _in_order(order: Tensor) -> bool:
    return torch.equal(order, torch.arange(len(order)))
