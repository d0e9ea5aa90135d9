"""One client after another: the reference, and the debugger."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from masquerade.core import slicing, tree
from masquerade.core.part import Message
from masquerade.core.random import fold
from masquerade.core.round import Round, Stage, client_round, steps
from masquerade.core.tree import State
from masquerade.cost.flops import Flops, nothing, shares, slices
from masquerade.cost.traffic import Traffic, measure_exchange
from masquerade.data import Federation
from masquerade.data.loader import ShuffledIndices
from masquerade.engine.base import EngineContext, Evaluation, Job, Outcome, astuple
from masquerade.wire.session import Seen

EVALUATED = 1024
"""Samples that a model is evaluated on at a time."""
OTHER_SHAPES = "clients of one round gave tensors of different shapes"


@dataclass
class _Diary:
    """Where a client's round stands, and what its stages cost."""

    stage: str = "start"
    step: int = 0
    flops: Flops = field(default_factory=lambda: nothing(1))


@dataclass
class Loop:
    """Runs clients one after another."""

    context: EngineContext
    name: str = "loop"
    copies: ClassVar[bool] = False
    prepares: ClassVar[bool] = False

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds.

        What a client gives is written down at once and let go of, so that its memory serves the
        next client.
        """
        table: Any = None
        shuffled: dict[str, ShuffledIndices] = {}
        seen: Seen = {}
        for place, download in downloads(self.context, job, range(len(job.ids))):
            client, session = (tree.take(state, place) for state in (job.clients, job.session))
            id, sent = int(job.ids[place]), (job.round.label, job.number)
            upload, client, flops = self.client(job, place, download, client, shuffled)
            upload = self.context.as_received(upload, id, sent)
            cost, after = measure_exchange(download, upload, session, 0, seen)
            done = upload, client, after, astuple(cost), tree.take(astuple(flops), 0)
            table = _room(done, len(job.ids)) if table is None else table
            tree.transform(lambda rows, value, at=place: _write(rows[at], value), table, done)
        uploads, clients, session, traffic, flops = table
        return Outcome(uploads, clients, session, lambda: (Traffic(*traffic).here(), Flops(*flops)))

    def prepare(self, ids: Tensor, round: Round, number: int) -> None:
        """Prepare nothing: there is nothing to wait for."""

    def client(
        self,
        job: Job,
        place: int,
        download: Message,
        client: State,
        shuffled: dict[str, ShuffledIndices],
    ) -> tuple[Message, State, Flops]:
        """Do one client's round; `shuffled` is that of the whole job, made once for each stage."""
        context, loader = self.context, self.context.loader
        id, round = int(job.ids[place]), job.round
        diary, sliceable = _Diary(), context.slices(round)

        def batches(stage: Stage) -> Iterator[Any]:
            if stage.name not in shuffled:
                shuffled[stage.name] = loader.shuffle(job.ids, stage, round, job.number)
            diary.stage, diary.step = stage.name, 0
            return counted(loader.batches(shuffled[stage.name], place))

        def counted(given: Iterator[Any]) -> Iterator[Any]:
            for diary.step, batch in enumerate(given):
                yield batch

        def observe(stage: Stage, work: State) -> None:
            x, y = loader.federation.x[:1], loader.federation.y[:1]
            per_sample = context.meter.step(stage, work, x, y, round)
            drawn = shuffled[stage.name].drawn[place : place + 1]
            seen = per_sample.samples(drawn) * stage.epochs
            keep, cut = shares(stage, work, lead=0), slices(stage, work)
            diary.flops += context.meter.stage(stage, per_sample, seen, keep, x, slices=cut)

        # A user's module may draw from torch's generator (dropout): what it draws then depends
        # on the client and the round alone, not on who came before.
        torch.default_generator.manual_seed(fold(loader.seed, round.label, job.number, id))
        given = tree.leaves([download, client])
        versions = [tensor._version for tensor in given]
        try:
            upload, client = client_round(
                context.method,
                context.task,
                download,
                client,
                batches,
                round,
                observe,
                slicing.steps if sliceable else steps,
            )
        except Exception as error:
            error.add_note(f"in client {id}, stage `{diary.stage}`, step {diary.step}")
            raise
        if versions != [tensor._version for tensor in given]:
            raise RuntimeError(
                "the method wrote in place into a tensor that it was given; other clients read it "
                "too, so make a new one (`x * 0.5`, not `x.mul_(0.5)`)"
            )
        return upload, client, diary.flops

    def evaluate(self, job: Job, samples: list[Tensor], models: bool = True) -> Evaluation:
        """Adapt every client on a copy and measure its samples."""
        method, task = self.context.method, self.context.task
        data, view = self.context.loader.federation, job.round.phase[0]
        shuffled: dict[str, ShuffledIndices] = {}
        kept: list[Message] = []
        found: list[Tensor] = []
        costs = []
        for place, download in downloads(self.context, job, range(len(job.ids))):
            id, client = int(job.ids[place]), tree.take(job.clients, place)
            _, client, flops = self.client(job, place, download, client, shuffled)
            try:
                personal = method.personalize(task, download, client, view)
                found += self.score([personal], [samples[place]], data.x, data.y)
            except Exception as error:
                error.add_note(f"in client {id}, using the view `{view}`")
                raise
            kept += [personal] * models
            costs.append(astuple(flops))
        total = Flops(*(torch.cat(part) for part in zip(*costs, strict=True)))
        return Evaluation(kept, found, total)

    def score(
        self, models: list[Message], samples: list[Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        """Measure models, each on some samples of `x` and `y`."""
        found = []
        for model, own in zip(models, samples, strict=True):
            scores = [
                self.context.task.metric(output, y[chosen])
                for chosen, output in self._predictions(model, own, x)
            ]
            found.append(torch.cat(scores) if scores else torch.empty(0))
        return found

    def outputs(
        self, models: Sequence[Message], samples: Sequence[Tensor], x: Tensor
    ) -> Iterator[Tensor]:
        """Yield, model after model, all outputs for some samples of `x`."""
        for model, own in zip(models, samples, strict=True):
            pieces = [output for _, output in self._predictions(model, own, x)]
            yield torch.cat(pieces) if pieces else torch.empty(0, device=x.device)

    def _predictions(
        self, model: Message, samples: Tensor, x: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples of `x`, some at a time, and a model's outputs for them."""
        method, task, loader = self.context.method, self.context.task, self.context.loader
        for chosen in torch.split(samples, EVALUATED):
            if len(chosen):
                yield chosen, method.predict(task, model, loader.in_layout(x[chosen]))

    @property
    def federation(self) -> Federation:
        """Return the data that it works on."""
        return self.context.loader.federation

    def close(self) -> None:
        """Do nothing: it holds nothing."""


def downloads(
    context: EngineContext, job: Job, places: Iterable[int]
) -> Iterator[tuple[int, Message]]:
    """Yield places, and what the clients there are sent."""
    method, task = context.method, context.task
    sent = None
    for place in places:
        # Where the server knows nothing of single clients, all are sent the same.
        if sent is None or tree.leaves(job.rows):
            row = tree.take(job.rows, place)
            sent = method.download(task, job.server, row, job.round)
            sent = context.as_received(sent, int(job.ids[place]), None)
        yield place, sent


def _room(done: Any, clients: int) -> Any:
    return tree.transform(lambda value: value.new_empty(clients, *value.shape), done)


def _write(place: Tensor, value: Tensor) -> Tensor:
    # A copy would broadcast a smaller tensor over the place.
    if place.shape != value.shape:
        raise RuntimeError(f"{OTHER_SHAPES}: {list(place.shape)} and {list(value.shape)}")
    return place.copy_(value)
