"""The small problem that a method is held to the laws on, and the exchanges that occur in it."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.round import Round, Stage, client_round
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.data import Federation
from masquerade.methods import METHODS, MethodEntry
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.state import RunState

ROUNDS = 8
"""How long the runs are whose phases are looked at."""
ONE_PHASE = 4
"""How long a run is whose rounds are all alike: clients come again, and rates have fallen."""
PARTICIPATION, LR_DECAY, SEED = 0.67, 0.97, 5

Kind = tuple[str, Hashable]
"""The kind and the phase of a round."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A method, and few clients with few samples that it trains a small network for."""

    method: Method
    task: Task
    """In double precision, where rounding is told from mistakes."""
    federation: Federation
    budgets: tuple[float, ...] = ()
    batch_size: int = 4
    name: str = ""
    """What the method's entry is called in METHODS; empty where it has none."""

    @property
    def entry(self) -> MethodEntry | None:
        """Return the method's entry."""
        return METHODS[self.name] if self.name else None

    @property
    def rounds(self) -> int:
        """Return how many rounds show every phase."""
        return ROUNDS if len(phases(self.method)) > 1 else ONE_PHASE

    def simulating(
        self, rounds: int, drop: float = 0.0, **compute: Any
    ) -> AbstractContextManager[Simulation]:
        """Build a simulation to be entered; `compute` says how it is run, by loop unless stated."""
        views = self.method.views
        spec = TrainingSpec(
            method=self.method,
            task=self.task,
            federation=self.federation,
            train=Train("", rounds, self.batch_size, PARTICIPATION, LR_DECAY, (SEED,), drop=drop),
            evaluate=Evaluate(every=0, degrees=(0, 50), draws=2),
            compute=Compute(**({"engine": "loop", "device": "cpu"} | compute)),
            seed=SEED,
            views=views,
            names=tuple((type(self.method).__name__, view) for view in views),
            budgets=self.budgets,
        )
        return simulating(spec)


@dataclass(frozen=True, eq=False)
class Exchange:
    """A client's round: what the server knows and sends, what the client holds and answers."""

    made: Simulation
    round: Round
    id: int
    server: State
    row: State
    client: State
    download: Message

    @property
    def place(self) -> dict[str, Any]:
        """Say where a breach would be."""
        return {"kind": self.round.kind, "phase": self.round.phase, "client": self.id}

    def batches(self, stage: Stage) -> Any:
        """Yield the client's batches of a stage."""
        loader = self.made.context.loader
        own = loader.shuffle(torch.tensor([self.id]), stage, self.round, int(self.round.number))
        return loader.batches(own, 0)

    def answer(
        self, observe: Callable[[Stage, State], None] = lambda stage, work: None
    ) -> tuple[Message, State]:
        """Do the client's round: its upload, and what it holds afterwards."""
        method, task = self.made.server.method, self.made.server.task
        given = (self.download, self.client, self.batches, self.round)
        return client_round(method, task, *given, observe)


def phases(method: Method) -> list[Hashable]:
    """List the phases of a method, in the order in which they come."""
    return list(dict.fromkeys(method.schedule(number, ROUNDS) for number in range(ROUNDS)))


def kinds(made: Simulation) -> list[Kind]:
    """List every kind and phase of rounds that a run of a method has."""
    method, server = made.server.method, made.server
    found: list[Kind] = [("setup", None)] * server.has_setup()
    found += [("train", phase) for phase in phases(method)]
    return found + [("adapt", (view, False)) for view in method.views]


def two_clients(made: Simulation) -> list[int]:
    """Choose the second client and the last but one."""
    count = len(made.server.clients)
    return sorted({min(1, count - 1), max(count - 2, 0)})


def exchanges(
    made: Simulation, state: RunState, ids: Iterable[int], number: int = 3
) -> Iterator[Exchange]:
    """Yield a round of every kind and phase with some clients, as a run's state has them."""
    method, task = made.server.method, made.server.task
    for kind, phase in kinds(made):
        round = made.context.round(kind, phase, number)
        for id in ids:
            row, client = (tree.take(held.state, id) for held in (state.rows, state.clients))
            download = method.download(task, state.server, row, round)
            yield Exchange(made, round, id, state.server, row, client, download)


def after(made: Simulation, rounds: int) -> RunState:
    """Return the state of a run after some rounds."""
    state = made.begin()
    for _ in range(rounds):
        made.advance(state)
    return state
