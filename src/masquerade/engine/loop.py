"""One client after another, or divided among processes: the reference, and the debugger."""

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from masquerade.core import slicing, tree
from masquerade.core.part import Message
from masquerade.core.random import fold
from masquerade.core.round import Round, Stage, client_round, round_name, steps
from masquerade.core.tree import State
from masquerade.cost.flops import Flops, nothing, shares, slices
from masquerade.cost.traffic import Traffic, measure_exchange
from masquerade.data import Federation
from masquerade.data.loader import ShuffledIndices
from masquerade.engine.base import EngineContext, Evaluation, Job, Outcome, astuple
from masquerade.engine.precision import numbers
from masquerade.engine.shared_memory import Layout, Memory, Place, shared
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.wire.session import Seen

_used_cuda: Callable[[], bool] = torch.cuda.is_initialized

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
    """Runs clients one after another in this process, or in `workers` processes."""

    context: EngineContext
    workers: int = 1
    name: str = "loop"
    _pool: ProcessPoolExecutor | None = None
    memories: list[Memory] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds."""

        def room(done: Any) -> Any:
            return tree.transform(lambda value: value.new_empty(len(job.ids), *value.shape), done)

        alone = self.workers == 1
        done = self._clients(job, range(len(job.ids)), room) if alone else self._processes_do(job)
        uploads, clients, session, traffic, flops = done
        return Outcome(uploads, clients, session, lambda: (Traffic(*traffic).here(), Flops(*flops)))

    @property
    def copies(self) -> bool:
        """Tell whether states go to other processes."""
        return self.workers > 1

    @property
    def prepares(self) -> bool:
        """Prepare nothing: there is nothing to wait for."""
        return False

    def prepare(self, ids: Tensor, round: Round, number: int) -> None:
        """Prepare nothing: there is nothing to wait for."""

    def _clients(self, job: Job, places: Iterable[int], room: Callable[[Any], Any]) -> Any:
        """Do the rounds of the clients at some places, and write what they give into `room`.

        That is stacked (upload, client, session, traffic, flops) [clients, …], and is made from
        what the first one gives. What is written at once is let go of, and so its memory serves the
        next client.
        """
        table = None
        shuffled: dict[str, ShuffledIndices] = {}
        seen: Seen = {}
        for place, download in downloads(self.context, job, places):
            client, session = (tree.take(state, place) for state in (job.clients, job.session))
            id, sent = int(job.ids[place]), (job.round.label, job.number)
            upload, client, flops = self.client(job, place, download, client, shuffled)
            upload = self.context.as_received(upload, id, sent)
            cost, after = measure_exchange(download, upload, session, 0, seen)
            done = upload, client, after, astuple(cost), tree.take(astuple(flops), 0)
            table = room(done) if table is None else table
            tree.transform(lambda rows, value, at=place: _write(rows[at], value), table, done)
        return table

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

    def _processes_do(self, job: Job, again: bool = True) -> Any:
        """Do the same in processes, which read the states and write what they give in memory."""
        states = (job.server, job.rows, job.clients, job.session, job.ids)
        layout = Layout.of(states)
        try:
            given, wanted = self._memory()
            tree.transform(_write, given.view(layout), states)
            places = (given.place, wanted.place)
            call = (layout, *places, job.round.kind, job.round.phase, job.number)
            begun = [self._processes().submit(_do, call, each) for each in self.divide(job.ids)]
            try:
                found = [each.result() for each in begun]
            finally:
                # Where one fails, the others still use the memory.
                wait(begun)
            if any(each != found[0] for each in found):
                raise RuntimeError(OTHER_SHAPES)
            return wanted.view(found[0])
        except BrokenProcessPool:
            self.close()
            if not again:
                text = "a worker process died twice in one round; lower workers"
                raise MasqueradeError("E505", text) from None
            what = round_name(job.round.kind, job.number)
            warnings.warn(
                f"W505 a worker process died; {what} is done again",
                MasqueradeWarning,
                stacklevel=2,
            )
            return self._processes_do(job, again=False)

    def _memory(self) -> list[Memory]:
        """Return the memory of what processes are given, and of what they give.

        It is used again, if nobody holds what they gave before: pages are dear to come by.
        """
        if any(each.held() for each in self.memories):
            self.free_memories()
        if not self.memories:
            self.memories = [Memory(self._open.enter_context(shared())) for _ in range(2)]
        return self.memories

    def free_memories(self) -> None:
        """Forget the shared memory; tensors that are still held keep theirs."""
        for each in self.memories:
            each.room = None
        self.memories = []
        self._open.close()

    def _processes(self) -> ProcessPoolExecutor:
        """Return the processes, which are started when they are first asked for."""
        global _working
        if self._pool is None:
            _working = self
            # Forked processes see the samples where they lie; nothing is copied to them. After
            # work on CUDA a process cannot be forked.
            fork = "fork" in multiprocessing.get_all_start_methods()
            start = "fork" if fork and not _used_cuda() else "spawn"
            context = multiprocessing.get_context(start)
            given = (None if start == "fork" else self,)
            self._pool = ProcessPoolExecutor(self.workers, context, _enter, given)
        return self._pool

    def divide(self, ids: Tensor) -> list[list[int]]:
        """Divide places in the cohort so that processes have about as many samples to train on."""
        counts = self.context.loader.counts(ids).tolist()
        pieces: list[list[int]] = [[] for _ in range(min(self.workers, len(counts)))]
        loads = [0] * len(pieces)
        for place in sorted(range(len(counts)), key=lambda place: -counts[place]):
            lightest = loads.index(min(loads))
            pieces[lightest].append(place)
            loads[lightest] += max(1, counts[place])
        return pieces

    def evaluate(self, job: Job, samples: list[Tensor]) -> Evaluation:
        """Adapt every client on a copy and measure its samples."""
        method, task = self.context.method, self.context.task
        data, view = self.context.loader.federation, job.round.phase[0]
        shuffled: dict[str, ShuffledIndices] = {}
        models: list[Message] = []
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
            models.append(personal)
            costs.append(astuple(flops))
        total = Flops(*(torch.cat(part) for part in zip(*costs, strict=True)))
        return Evaluation(models, found, total)

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
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self.free_memories()


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


_working: Loop | None = None


def _enter(loop: Loop | None) -> None:
    """Make a process ready: one thread, and the loop it serves."""
    global _working
    # The parent decides when work ends; a terminal's Ctrl-C reaches everybody.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _working = loop or _working
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone; a killed parent tells nobody."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _write(place: Tensor, value: Tensor) -> Tensor:
    # A copy would broadcast a smaller tensor over the place.
    if place.shape != value.shape:
        raise RuntimeError(f"{OTHER_SHAPES}: {list(place.shape)} and {list(value.shape)}")
    return place.copy_(value)


_seen: dict[Place, Memory] = {}
"""The memory that a process was told of last."""


def _do(call: tuple[Layout, Place, Place, str, Any, int], places: list[int]) -> Layout:
    """Do some clients' rounds in a process of their own; return how what they give is laid out."""
    assert _working is not None
    layout, given, wanted, kind, phase, number = call
    round = _working.context.round(kind, phase, number)
    for place in _seen.keys() - {given, wanted}:
        del _seen[place]
    for place in (given, wanted):
        _seen.setdefault(place, Memory(place))
    server, rows, clients, session, ids = _seen[given].view(layout)
    job = Job(server, rows, clients, session, ids, round, number)
    made: list[Layout] = []

    def room(done: Any) -> Any:
        made.append(Layout.of(done, len(job.ids)))
        return _seen[wanted].view(made[0])

    with numbers(_working.context.precision):
        _working._clients(job, places, room)
    return made[0]
