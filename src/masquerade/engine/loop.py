"""One client after another, or spread over processes: the reference, and the debugger."""

import multiprocessing
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.pool import Pool
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.core.random import fold
from masquerade.core.round import Round, Stage, client_round
from masquerade.core.tree import State
from masquerade.cost import compute, traffic
from masquerade.cost.compute import Flops
from masquerade.cost.traffic import Traffic
from masquerade.data.batches import Orders
from masquerade.engine.setting import Outcome, Setting

JUDGED = 1024
"""Samples that a model is judged on at a time."""


@dataclass
class _Diary:
    """Where a client's round stands, and what its stages cost."""

    client: int
    stage: str = "start"
    step: int = 0
    flops: Flops = field(default_factory=lambda: compute.nothing(1))


@dataclass
class Loop:
    """Runs clients one after another in this process, or in `workers` processes."""

    setting: Setting
    workers: int = 1
    name: str = "loop"
    _pool: Pool | None = None

    def work(
        self,
        server: State,
        rows: State,
        clients: State,
        known: dict[str, Tensor],
        ids: Tensor,
        round: Round,
        number: int,
    ) -> Outcome:
        """Do the rounds of the clients `ids`."""
        if self.workers == 1:
            done = self._several(server, rows, clients, known, ids, round, number)
        else:
            done = self._spread(server, rows, clients, known, ids, round, number)
        uploads, states, after, traffics, flops = zip(*done, strict=True)
        return Outcome(
            tree.stack(uploads),
            tree.stack(states),
            tree.stack(after),
            Traffic(*(torch.stack(column) for column in zip(*traffics, strict=True))),
            Flops(*(torch.cat(column) for column in zip(*flops, strict=True))),
        )

    def _several(
        self,
        server: State,
        rows: State,
        clients: State,
        known: dict[str, Tensor],
        ids: Tensor,
        round: Round,
        number: int,
    ) -> list[tuple[Any, ...]]:
        """Return (upload, client, known, traffic, flops) of every client."""
        orders: dict[str, Orders] = {}
        digests_seen: traffic.Seen = {}
        done = []
        for place, id in enumerate(ids.tolist()):
            row, client, digests = (tree.take(state, place) for state in (rows, clients, known))
            method, task = self.setting.method, self.setting.task
            download = method.download(task, server, row, round)
            upload, client, flops = self._one(
                download, client, ids, place, id, round, number, orders
            )
            cost, after = traffic.measure(download, upload, digests, 0, digests_seen)
            columns = (cost.down, cost.up, cost.values_down, cost.values_up)
            done.append((upload, client, after, columns, (flops.dense, flops.masked, flops.paper)))
        return done

    def _one(
        self,
        download: Message,
        client: State,
        ids: Tensor,
        place: int,
        id: int,
        round: Round,
        number: int,
        orders: dict[str, Orders],
    ) -> tuple[Message, State, Flops]:
        setting, feed, diary = self.setting, self.setting.feed, _Diary(id)

        def batches(stage: Stage) -> Iterator[Any]:
            if stage.name not in orders:
                orders[stage.name] = feed.orders(ids, stage, round, number)
            diary.stage, diary.step = stage.name, 0
            return counted(feed.of_client(orders[stage.name], place))

        def counted(given: Iterator[Any]) -> Iterator[Any]:
            for diary.step, batch in enumerate(given):
                yield batch

        def observe(stage: Stage, work: State) -> None:
            x, y = feed.federation.x[:1], feed.federation.y[:1]
            per_sample = setting.meter.step(stage, work, x, y, round)
            count = orders[stage.name].counts[place] * stage.epochs
            seen = torch.tensor([count], dtype=torch.float64)
            keep = compute.shares(stage, work, lead=0)
            diary.flops = diary.flops + setting.meter.stage(stage, per_sample, seen, keep, x)

        # A user's module may draw from torch's generator (dropout): what it draws then depends
        # on the client and the round alone, not on who came before.
        torch.default_generator.manual_seed(fold(feed.seed, round.kind, number, id))
        try:
            upload, client = client_round(
                setting.method, setting.task, download, client, batches, round, observe
            )
        except Exception as error:
            error.add_note(f"in client {id}, stage `{diary.stage}`, step {diary.step}")
            raise
        return upload, client, diary.flops

    def _spread(
        self,
        server: State,
        rows: State,
        clients: State,
        known: dict[str, Tensor],
        ids: Tensor,
        round: Round,
        number: int,
    ) -> list[tuple[Any, ...]]:
        global _working
        if self._pool is None:
            _working = self
            # Forked processes see the samples where they lie; nothing is copied to them.
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            context = multiprocessing.get_context(method)
            self._pool = context.Pool(self.workers, _enter, (None if method == "fork" else self,))
        jobs = []
        for places in torch.arange(len(ids)).chunk(self.workers):
            states = (tree.take(state, places) for state in (rows, clients, known))
            jobs.append(_to_numpy((server, *states, ids[places], round.kind, round.phase, number)))
        return [_to_torch(one) for chunk in self._pool.map(_do, jobs, chunksize=1) for one in chunk]

    def judge(
        self,
        server: State,
        rows: State,
        clients: State,
        ids: Tensor,
        round: Round,
        number: int,
        samples: list[Tensor],
    ) -> tuple[list[Message], list[Tensor], Flops]:
        """Adapt every client on a copy and measure its samples."""
        method, task = self.setting.method, self.setting.task
        data, view = self.setting.feed.federation, round.phase[0]
        orders: dict[str, Orders] = {}
        models, found, costs = [], [], []
        for place, id in enumerate(ids.tolist()):
            row, client = tree.take(rows, place), tree.take(clients, place)
            download = method.download(task, server, row, round)
            _, client, flops = self._one(download, client, ids, place, id, round, number, orders)
            try:
                personal = method.personalize(task, download, client, view)
                scores = [
                    task.metric(method.predict(task, personal, data.x[chosen]), data.y[chosen])
                    for chosen in torch.split(samples[place], JUDGED)
                    if len(chosen)
                ]
            except Exception as error:
                error.add_note(f"in client {id}, using the view `{view}`")
                raise
            models.append(personal)
            found.append(torch.cat(scores) if scores else torch.empty(0))
            costs.append((flops.dense, flops.masked, flops.paper))
        return models, found, Flops(*(torch.cat(part) for part in zip(*costs, strict=True)))

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
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


def _do(job: Any) -> Any:
    """Do some clients' rounds in a process of their own."""
    assert _working is not None
    server, rows, clients, known, ids, kind, phase, number = _to_torch(job)
    round = _working.setting.round(kind, phase, number)
    return _to_numpy(_working._several(server, rows, clients, known, ids, round, number))


def _to_numpy(state: Any) -> Any:
    # By value: torch's own way between processes passes a file descriptor for every tensor.
    return tree.transform(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, state)


def _to_torch(state: Any) -> Any:
    from numpy import ndarray

    return tree.transform(
        lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, ndarray) else leaf, state
    )
