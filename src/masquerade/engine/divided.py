"""A cohort divided among the processes of a run: each does its share, and all get what came of it.

On one machine they write it into one memory. Elsewhere they send it to one another.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zlib import crc32

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.round import Round
from masquerade.cost.flops import Flops
from masquerade.cost.traffic import Traffic
from masquerade.data import Federation
from masquerade.engine.base import Engine, EngineContext, Evaluation, Job, Outcome, astuple
from masquerade.engine.loop import OTHER_SHAPES
from masquerade.engine.ranks import Ranks
from masquerade.engine.shared_memory import Layout, Memory, Place, shared
from masquerade.errors import MasqueradeError
from masquerade.wire import digest

TOGETHER = 64
"""Models of each process whose outputs are held at a time."""
_TOLD = 600
"""Characters of an error that other processes are told, plain ones: they have room for few."""

Given = TypeVar("Given")


@dataclass
class Divided:
    """Has several processes do the clients' work, each with an engine of its own kind."""

    inner: Engine
    context: EngineContext
    ranks: Ranks
    memory: Memory | None = None
    """Where all write what their clients gave, if they are on one machine."""
    _open: ExitStack = field(default_factory=ExitStack)
    _apart: bool | None = None

    @property
    def name(self) -> str:
        """Name the way in which each does its share."""
        return self.inner.name

    @property
    def copies(self) -> bool:
        """Say that clients' states are copied: those of the share are."""
        return True

    @property
    def prepares(self) -> bool:
        """Tell whether the engine inside wants to know of the next round."""
        return self.inner.prepares

    @property
    def federation(self) -> Federation:
        """Return the data that it works on."""
        return self.inner.federation

    def prepare(self, ids: Tensor, round: Round, number: int) -> None:
        """Prepare the share of a round that is to come."""
        own = self.divide(ids)[self.ranks.number]
        if len(own):
            self.inner.prepare(ids[own], round, number)

    def divide(self, ids: Tensor) -> list[Tensor]:
        """Divide places in the cohort so that processes have about as many samples to train on.

        Clients that are stacked are also as many in every round: steps are recorded by that.
        """
        counts, processes = self.context.loader.counts(ids).tolist(), self.ranks.count
        most = -(-len(counts) // processes) if self.name == "batched" else len(counts)
        return shares(counts, processes, most)

    def work(self, job: Job) -> Outcome:
        """Do a share of the clients' rounds; return what all gave."""
        # What all hold has to be the same bits; it was computed by each for itself.
        holds = f"{job.number} {int(digest(Part(tree.named(job.server))))}"

        def do(places: Tensor) -> Any:
            done = self.inner.work(job.take(places))
            costs = astuple(done.traffic), astuple(done.flops)
            costs = tree.transform(lambda value: value.to(self.federation.x.device), costs)
            return done.uploads, done.clients, done.session, costs

        pieces = self.divide(job.ids)
        done = self._attempted(do, pieces, holds)
        uploads, clients, session, costs = self._joined(pieces, done)

        def count() -> tuple[Traffic, Flops]:
            traffic, flops = tree.transform(torch.Tensor.cpu, costs)
            return Traffic(*traffic).here(), Flops(*flops)

        return Outcome(uploads, clients, session, count)

    def evaluate(self, job: Job, samples: list[Tensor], models: bool = True) -> Evaluation:
        """Adapt a share of the clients on a copy and measure their samples; return all."""

        def do(places: Tensor) -> Evaluation:
            own = [samples[place] for place in places.tolist()]
            return self.inner.evaluate(job.take(places), own, models)

        pieces = self.divide(job.ids)
        found = self._attempted(do, pieces)
        apart, remade = self._parted(found.models)
        own = [score.to(self.federation.x.device, torch.float64) for score in found.scores]
        scores = _padded(own, max(map(len, samples)))
        apart, scores, flops = self._joined(pieces, (apart, scores, astuple(found.flops)))
        every = range(len(job.ids)) if models else ()
        return Evaluation([remade(apart, at) for at in every], _cut(scores, samples), Flops(*flops))

    def _parted(
        self, models: list[Message]
    ) -> tuple[list[Tensor], Callable[[list[Tensor], int], Message]]:
        """Stack what differs from model to model; return what makes one of them again.

        A global model, which all clients have, is neither sent nor held so many times.
        """
        if not models:
            return [], lambda apart, at: {}
        columns = list(zip(*map(tree.leaves, models), strict=True))
        facts = [_one_for_all(column) for column in columns]
        told = self.ranks.gather(torch.tensor(facts).view(torch.uint8).reshape(-1))
        # Digests are compared, for others may have one model each, and yet not the same.
        alike = [each.view(torch.int64).view(-1, 2).tolist() for each in told]
        common = [all(e[at] == facts[at] and e[at][0] for e in alike) for at in range(len(columns))]
        apart = [torch.stack(c) for c, one in zip(columns, common, strict=True) if not one]

        def remade(rows: list[Tensor], at: int) -> Message:
            own = iter(rows)
            leaves = [
                c[0] if one else next(own)[at] for c, one in zip(columns, common, strict=True)
            ]
            values = iter(leaves)
            model: Message = tree.transform(lambda _: next(values), models[0])
            return model

        return apart, remade

    def score(
        self, models: list[Message], samples: list[Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        """Measure a share of the models, each on some samples of `x` and `y`; return all."""

        def do(mine: list[Message], own: list[Tensor]) -> list[Tensor]:
            return [each.double() for each in self.inner.score(mine, own, x, y)]

        return self._answered(do, models, samples)

    def outputs(
        self, models: Sequence[Message], samples: Sequence[Tensor], x: Tensor
    ) -> Iterator[Tensor]:
        """Yield, model after model, all outputs for some samples of `x`."""

        def do(mine: list[Message], own: list[Tensor]) -> list[Tensor]:
            return list(self.inner.outputs(mine, own, x))

        width = TOGETHER * self.ranks.count
        for first in range(0, len(models), width):
            places = slice(first, first + width)
            yield from self._answered(do, models[places], samples[places])

    def _answered(
        self,
        do: Callable[[list[Message], list[Tensor]], list[Tensor]],
        models: Sequence[Message],
        samples: Sequence[Tensor],
    ) -> list[Tensor]:
        """Have each process answer for a share of the models; who has no samples, has no answer."""
        busy = [at for at, own in enumerate(samples) if len(own)]
        found = [torch.empty(0)] * len(samples)
        if not busy:
            return found
        most = max(map(len, samples))

        def answer(places: Tensor) -> Tensor:
            mine = [busy[at] for at in places.tolist()]
            return _padded(do([models[at] for at in mine], [samples[at] for at in mine]), most)

        pieces = shares([len(samples[at]) for at in busy], self.ranks.count)
        table = self._joined(pieces, self._attempted(answer, pieces))
        for row, at in zip(table, busy, strict=True):
            found[at] = row[: len(samples[at])]
        return found

    def close(self) -> None:
        """Let go of the memory."""
        self.inner.close()
        self._open.close()

    def _joined(self, pieces: list[Tensor], done: Any) -> Any:
        """Return what all did, stacked in the order of places; `done` is what this process did."""
        own = pieces[self.ranks.number]
        row, count = tree.take(done, 0), sum(map(len, pieces))
        layout = Layout.of(row, count)
        forms = crc32(repr(layout.forms).encode())
        said = self.ranks.tell({"forms": forms, "holds": self._holds()})
        if any(each["forms"] != forms for each in said):
            raise RuntimeError(OTHER_SHAPES)
        done = done if len(own) else tree.take(done, own)
        if self._one_machine(row):
            return self._shared(layout, own, done, any(each["holds"] for each in said))
        return self._sent(row, layout, pieces, done)

    def _attempted(
        self, do: Callable[[Tensor], Given], pieces: list[Tensor], holds: str = ""
    ) -> Given:
        """Do one's own piece; where somebody's failed, let the error be seen.

        Who has nothing to do does the first client too, for it has to know shapes. `holds` says
        what each process holds before, which has to be the same.
        """
        own = pieces[self.ranks.number]
        try:
            done = do(own if len(own) else pieces[0][:1])
        except Exception as error:
            fault = f"{type(error).__name__}: {error}".encode("ascii", "replace").decode()
            self.ranks.tell({"fault": fault[:_TOLD], "holds": holds})
            raise
        for rank, each in enumerate(self.ranks.tell({"fault": "", "holds": holds})):
            if each["fault"]:
                # It fails here as it did there, with its type, its notes and its place.
                if self.ranks.first:
                    do(pieces[rank])
                raise self.ranks.gone(f"process {rank} failed: {each['fault']}")
            if each["holds"] != holds:
                text = "the processes of the run have come to hold different models: their machines"
                text += " compute differently, or a callback changed the state; take machines of"
                raise MasqueradeError("E506", f"{text} one kind, and leave the state as it is")
        return done

    def _one_machine(self, row: Any) -> bool:
        """Tell whether all can write into one memory."""
        if any(leaf.device.type != "cpu" for leaf in tree.leaves(row)):
            return False
        if self._apart is None:
            memory = self._new_memory()
            seen = all(each["seen"] for each in self.ranks.tell({"seen": memory is not None}))
            self._apart, self.memory = not seen, memory if seen else None
        return not self._apart

    def _new_memory(self) -> Memory | None:
        """Open memory that the first process makes; None where it cannot be opened from here."""
        self._open.close()
        place = self._open.enter_context(shared()) if self.ranks.first else None
        path, identity = json.loads(self.ranks.hand_out(json.dumps(place).encode()))
        memory = Memory(Place(path, tuple(identity)))
        try:
            memory.view(Layout.of(torch.zeros(1)))
        except (OSError, RuntimeError):
            return None
        return memory

    def _holds(self) -> bool:
        """Tell whether somebody here still holds what came of an earlier round."""
        return self.memory is not None and self.memory.held()

    def _shared(self, layout: Layout, own: Tensor, done: Any, held: bool) -> Any:
        """Write what one's own clients gave where all read it.

        The memory is used again unless somebody holds what is in it: pages are dear to come by.
        """
        if held or self.memory is None:
            self.memory = self._new_memory()
        assert self.memory is not None
        table = self.memory.view(layout)
        _put(table, own, done)
        self.ranks.tell({})
        return table

    def _sent(self, row: Any, layout: Layout, pieces: list[Tensor], done: Any) -> Any:
        """Send what one's own clients gave to all, as bytes."""
        device = tree.leaves(row)[0].device
        layouts = [Layout.of(row, len(piece)) for piece in pieces]
        most = max(each.size for each in layouts)
        mine = torch.zeros(most, dtype=torch.uint8, device=device)
        packed = layouts[self.ranks.number].over(mine)
        tree.transform(lambda room, value: room.copy_(value), packed, done)
        table = layout.over(torch.empty(layout.size, dtype=torch.uint8, device=device))
        for piece, each, found in zip(pieces, layouts, self.ranks.gather(mine), strict=True):
            _put(table, piece.to(device), each.over(found))
        return table


def _put(table: Any, places: Tensor, rows: Any) -> None:
    tree.transform(lambda room, value: room.index_copy_(0, places, value), table, rows)


def _one_for_all(column: Sequence[Tensor]) -> tuple[int, int]:
    """Tell whether models have a tensor in common, and then its digest."""
    first = column[0]
    same = all(e.data_ptr() == first.data_ptr() and e.stride() == first.stride() for e in column)
    return int(same), int(digest(Part({"": first}))) if same else 0


def _padded(pieces: Sequence[Tensor], most: int) -> Tensor:
    """Stack tensors of different lengths, which are known."""
    filled = [*pieces, pieces[0].new_empty(most, *pieces[0].shape[1:])]
    return torch.nn.utils.rnn.pad_sequence(filled, batch_first=True)[:-1]


def _cut(table: Tensor, samples: Sequence[Tensor]) -> list[Tensor]:
    return [row[: len(own)] for row, own in zip(table, samples, strict=True)]


def shares(counts: Sequence[int], processes: int, most: int | None = None) -> list[Tensor]:
    """Divide places so that every process has about as many samples, and `most` places at most.

    They are ascending in each.
    """
    pieces: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for place in sorted(range(len(counts)), key=lambda place: -counts[place]):
        free = [each for each in range(processes) if most is None or len(pieces[each]) < most]
        lightest = min(free, key=loads.__getitem__)
        pieces[lightest].append(place)
        loads[lightest] += max(1, counts[place])
    return [torch.tensor(sorted(piece), dtype=torch.int64) for piece in pieces]
