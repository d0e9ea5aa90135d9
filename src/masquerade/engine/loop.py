"""One client after another, or spread over processes: the reference, and the debugger."""

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from masquerade.core import slice, tree
from masquerade.core.part import Message
from masquerade.core.random import fold
from masquerade.core.round import Stage, client_round
from masquerade.core.tree import State
from masquerade.cost import compute, traffic
from masquerade.cost.compute import Flops
from masquerade.cost.traffic import Traffic
from masquerade.data.batches import Orders
from masquerade.engine.precision import numbers
from masquerade.engine.setting import Job, Judgement, Outcome, Setting, astuple
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.wire.session import Seen

_used_cuda: Callable[[], bool] = torch.cuda.is_initialized

JUDGED = 1024
"""Samples that a model is judged on at a time."""


@dataclass
class _Diary:
    """Where a client's round stands, and what its stages cost."""

    stage: str = "start"
    step: int = 0
    flops: Flops = field(default_factory=lambda: compute.nothing(1))


@dataclass
class Loop:
    """Runs clients one after another in this process, or in `workers` processes."""

    setting: Setting
    workers: int = 1
    name: str = "loop"
    _pool: ProcessPoolExecutor | None = None

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds."""
        done = self._several(job) if self.workers == 1 else self._spread(job)
        uploads, states, sessions, traffics, flops = zip(*done, strict=True)
        return Outcome(
            tree.stack(uploads),
            tree.stack(states),
            tree.stack(sessions),
            Traffic(*tree.stack(traffics)),
            Flops(*(torch.cat(column) for column in zip(*flops, strict=True))),
        )

    def _several(self, job: Job) -> list[tuple[Any, ...]]:
        """Return (upload, client, session, traffic, flops) of every client."""
        method, task = self.setting.method, self.setting.task
        orders: dict[str, Orders] = {}
        seen: Seen = {}
        done = []
        for place in range(len(job.ids)):
            row, client, session = (
                tree.take(state, place) for state in (job.rows, job.clients, job.session)
            )
            id, sent = int(job.ids[place]), (job.round.kind, job.number)
            download = method.download(task, job.server, row, job.round)
            download = self.setting.wired(download, id, None)
            upload, client, flops = self._one(job, place, download, client, orders)
            upload = self.setting.wired(upload, id, sent)
            cost, after = traffic.measure(download, upload, session, 0, seen)
            done.append((upload, client, after, astuple(cost), astuple(flops)))
        return done

    def _one(
        self, job: Job, place: int, download: Message, client: State, orders: dict[str, Orders]
    ) -> tuple[Message, State, Flops]:
        """Do one client's round; `orders` are those of the whole job, made once for each stage."""
        setting, feed = self.setting, self.setting.feed
        id, round = int(job.ids[place]), job.round
        diary = _Diary()

        def batches(stage: Stage) -> Iterator[Any]:
            if stage.name not in orders:
                orders[stage.name] = feed.orders(job.ids, stage, round, job.number)
            diary.stage, diary.step = stage.name, 0
            return counted(feed.of_client(orders[stage.name], place))

        def counted(given: Iterator[Any]) -> Iterator[Any]:
            for diary.step, batch in enumerate(given):
                yield batch

        def observe(stage: Stage, work: State) -> None:
            x, y = feed.federation.x[:1], feed.federation.y[:1]
            per_sample = setting.meter.step(stage, work, x, y, round)
            drawn = orders[stage.name].drawn()[place : place + 1]
            seen = per_sample.samples(drawn) * stage.epochs
            keep = compute.shares(stage, work, lead=0)
            slices = compute.slices(stage, work)
            diary.flops += setting.meter.stage(stage, per_sample, seen, keep, x, slices=slices)

        # A user's module may draw from torch's generator (dropout): what it draws then depends
        # on the client and the round alone, not on who came before.
        torch.default_generator.manual_seed(fold(feed.seed, round.kind, job.number, id))
        given = tree.leaves([download, client])
        versions = [tensor._version for tensor in given]
        try:
            upload, client = client_round(
                setting.method, setting.task, download, client, batches, round, observe, slice.steps
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

    def _spread(self, job: Job, again: bool = True) -> list[tuple[Any, ...]]:
        """Do the same in processes, a piece of the cohort in each."""
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
        jobs = []
        for places in torch.arange(len(job.ids)).chunk(self.workers):
            part = job.take(places)
            states = (part.server, part.rows, part.clients, part.session, part.ids)
            jobs.append(_to_numpy((states, job.round.kind, job.round.phase, job.number)))
        try:
            pieces = list(self._pool.map(_do, jobs))
        except BrokenProcessPool:
            self.close()
            if not again:
                text = "a worker process died twice in one round; lower compute.workers"
                raise MasqueradeError("E505", text) from None
            warnings.warn(
                f"W505 a worker process died; round {job.number} is done again",
                MasqueradeWarning,
                stacklevel=2,
            )
            return self._spread(job, again=False)
        return [_to_torch(one) for piece in pieces for one in piece]

    def judge(self, job: Job, samples: list[Tensor]) -> Judgement:
        """Adapt every client on a copy and measure its samples."""
        method, task = self.setting.method, self.setting.task
        data, view = self.setting.feed.federation, job.round.phase[0]
        orders: dict[str, Orders] = {}
        models: list[Message] = []
        found: list[Tensor] = []
        costs = []
        for place, id in enumerate(job.ids.tolist()):
            row, client = tree.take(job.rows, place), tree.take(job.clients, place)
            download = method.download(task, job.server, row, job.round)
            download = self.setting.wired(download, id, None)
            _, client, flops = self._one(job, place, download, client, orders)
            try:
                personal = method.personalize(task, download, client, view)
                found += self.score([personal], [samples[place]], data.x, data.y)
            except Exception as error:
                error.add_note(f"in client {id}, using the view `{view}`")
                raise
            models.append(personal)
            costs.append(astuple(flops))
        total = Flops(*(torch.cat(part) for part in zip(*costs, strict=True)))
        return Judgement(models, found, total)

    def score(
        self, models: list[Message], samples: list[Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        """Measure models, each on some samples of `x` and `y`."""
        method, task = self.setting.method, self.setting.task
        found = []
        for model, own in zip(models, samples, strict=True):
            scores = [
                task.metric(method.predict(task, model, x[chosen]), y[chosen])
                for chosen in torch.split(own, JUDGED)
                if len(chosen)
            ]
            found.append(torch.cat(scores) if scores else torch.empty(0))
        return found

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


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


def _do(given: Any) -> Any:
    """Do some clients' rounds in a process of their own."""
    assert _working is not None
    (server, rows, clients, session, ids), kind, phase, number = _to_torch(given)
    round = _working.setting.round(kind, phase, number)
    job = Job(server, rows, clients, session, ids, round, number)
    with numbers(_working.setting.precision):
        return _to_numpy(_working._several(job))


def _to_numpy(state: Any) -> Any:
    # By value: torch's own way between processes passes a file descriptor for every tensor.
    return tree.transform(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, state)


def _to_torch(state: Any) -> Any:
    from numpy import ndarray

    return tree.transform(
        lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, ndarray) else leaf, state
    )
