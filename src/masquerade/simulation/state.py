"""The state of a run: everything that changes from round to round, and how it is written down."""

import copy
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.tree import State
from masquerade.engine.base import Outcome, astuple
from masquerade.engine.store import Store
from masquerade.results import EvaluationRecord
from masquerade.simulation.clock import Clock
from masquerade.wire import session
from masquerade.wire.session import Session

COSTS = ("down", "up", "values_down", "values_up", "dense", "masked", "executed", "paper")
WAYS = ("dense", "masked", "executed")
SENT_UP = ("up", "values_up")

_stream: Callable[[], Any] = torch.cuda.Stream


@dataclass(frozen=True)
class StateFacts:
    """What a commit holds of a state beside its tensors."""

    costs: Mapping[str, Mapping[str, float]]
    layers: Mapping[str, Mapping[str, Mapping[str, float]]]
    history: tuple[EvaluationRecord, ...]
    seconds: Mapping[str, float]
    memory: Mapping[str, float]
    diverged: int | None
    refused: int


@dataclass
class RunState:
    """Everything that changes from round to round."""

    number: int
    """Rounds completed."""
    server: State
    rows: Store
    clients: Store
    session: Session
    """What every client and the server hold of each other: masks and versions that went over."""
    sampled: Tensor
    """[clients]: in how many rounds each client was asked."""
    answered: Tensor
    """[clients]: in how many of them its answer came back."""
    costs: dict[str, dict[str, float]] = field(
        default_factory=lambda: {"train": dict.fromkeys(COSTS, 0.0)}
    )
    """Sums over clients by kind of round ("train", "setup"): `COSTS`, and parts as "up/params"."""
    layers: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """FLOPs over clients, by phase and layer: dense, masked, executed."""
    history: list[EvaluationRecord] = field(default_factory=list)
    """Evaluations between rounds."""
    clock: Clock = field(default_factory=Clock)
    memory: dict[str, float] = field(default_factory=dict)
    """The most bytes held at a time, of the process and on a CUDA device."""
    diverged: int | None = None
    """The first round that left values which are not finite, counted from 0."""
    refused: int = 0
    """Updates that were not taken."""
    refused_novel: dict[int, str] = field(default_factory=dict)
    """Clients that came after training and were refused, and the code that says why."""
    set_up: bool = False
    """Whether clients have done what they do before their first round."""
    refused_setup: dict[str, str] = field(default_factory=dict)
    """Clients whose setup was refused, until the next line of metrics says so."""
    warned: set[str] = field(default_factory=set)
    """What this process has warned of already."""

    def keep(self, ids: Tensor, rows: Any, outcome: Outcome) -> None:
        """Store the new states of some clients, and the server's rows of them."""
        self.rows.put(ids, rows)
        self.clients.put(ids, outcome.clients)
        session.put(self.session, ids, outcome.session)

    def count(
        self, kind: str, phase: str, sent: Outcome, received: Outcome, layers: list[str]
    ) -> dict[str, float]:
        """Add what a cohort's rounds cost, in all and by layer; return it.

        What was lost had been sent down and computed; it was not received.
        """
        cost = totals(sent)
        _add(cost, sent.beside)
        if received is not sent:
            back = totals(received).items()
            cost |= {n: value for n, value in back if n in SENT_UP or n.startswith("up/")}
        done = self.layers.setdefault(phase, {})
        for layer, counts in by_layer(sent, layers).items():
            _add(done.setdefault(layer, dict.fromkeys(WAYS, 0.0)), counts)
        _add(self.costs.setdefault(kind, dict.fromkeys(COSTS, 0.0)), cost)
        return cost

    def snapshot(self) -> Callable[[], dict[str, Tensor]]:
        """Copy all tensors where they lie, and return what fetches the copies, by name.

        A thread may fetch them while rounds go on.
        """
        places = {
            "server": self.server,
            "rows": self.rows.state,
            "clients": self.clients.state,
            "session": self.session,
            "participation": {"sampled": self.sampled, "answered": self.answered},
        }
        copies = {name: value.detach().clone() for name, value in tree.named(places).items()}
        on_cuda = any(value.is_cuda for value in copies.values())
        ready = torch.cuda.current_stream().record_event() if on_cuda else None

        def fetch() -> dict[str, Tensor]:
            if ready is None:
                return {name: value.contiguous() for name, value in copies.items()}
            beside = _stream()
            beside.wait_event(ready)
            with torch.cuda.stream(beside):
                return {name: value.cpu().contiguous() for name, value in copies.items()}

        return fetch

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of all tensors, by name, in host memory."""
        return self.snapshot()()

    def facts(self) -> StateFacts:
        """Return a copy of the rest."""
        return StateFacts(
            costs=copy.deepcopy(self.costs),
            layers=copy.deepcopy(self.layers),
            history=tuple(self.history),
            seconds=dict(self.clock.seconds),
            memory=dict(self.memory),
            diverged=self.diverged,
            refused=self.refused,
        )

    def restore(self, number: int, tensors: Mapping[str, Tensor], facts: StateFacts) -> None:
        """Take over what a commit holds; this state is the one before round 0, on its devices."""
        device, place = self.rows.device, self.rows.place
        moved = {name: value.to(device) for name, value in tensors.items()}
        places = {"server": self.server, "rows": self.rows.state, "clients": self.clients.state}
        filled = tree.rebuild(places, moved)
        self.server = filled["server"]
        self.rows = Store.at(filled["rows"], device, place)
        self.clients = Store.at(filled["clients"], device, place)
        self.session = {
            name.removeprefix("session/"): value.to(place)
            for name, value in moved.items()
            if name.startswith("session/")
        }
        self.sampled = tensors["participation/sampled"].clone()
        self.answered = tensors["participation/answered"].clone()
        self.number = number
        self.costs = {kind: dict(sums) for kind, sums in facts.costs.items()}
        self.layers = {
            phase: {layer: dict(counts) for layer, counts in layers.items()}
            for phase, layers in facts.layers.items()
        }
        self.history, self.memory = list(facts.history), dict(facts.memory)
        self.diverged, self.refused = facts.diverged, facts.refused
        for part, seconds in facts.seconds.items():
            # This process has a start-up of its own.
            self.clock.seconds[part] += seconds


def totals(outcome: Outcome) -> dict[str, float]:
    """Add up what a cohort's rounds cost; bytes also by direction and part."""
    *sent, parts = astuple(outcome.traffic)
    columns = dict(zip(COSTS, (*sent, *astuple(outcome.flops)), strict=True)) | parts
    return {name: float(column.sum()) for name, column in columns.items()}


def by_layer(outcome: Outcome, layers: list[str]) -> dict[str, dict[str, float]]:
    """Add up a cohort's FLOPs by layer: weight name → dense, masked, executed."""
    sums = [getattr(outcome.flops, way).sum(0).expand(len(layers)).tolist() for way in WAYS]
    named = zip(layers, zip(*sums, strict=True), strict=True)
    return {layer: dict(zip(WAYS, counts, strict=True)) for layer, counts in named}


def phase_name(phase: Hashable) -> str:
    """Name a phase by its first word: ("dual", True) is a round of "dual"."""
    return str(phase[0] if isinstance(phase, tuple) else phase)


def _add(total: dict[str, float], cost: Mapping[str, float]) -> None:
    for name, value in cost.items():
        total[name] = total.get(name, 0.0) + value
