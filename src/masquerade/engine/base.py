"""What every engine is given, and what it gives back."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.random import Label, fold
from masquerade.core.round import Round
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.cost.flops import Flops, Meter
from masquerade.cost.traffic import Traffic
from masquerade.data import Federation
from masquerade.data.loader import BatchLoader
from masquerade.wire.session import Session


def astuple(record: Traffic | Flops) -> tuple[Any, ...]:
    """Return the columns of a record; `dataclasses.astuple` would copy them."""
    return tuple(getattr(record, each.name) for each in fields(record))


@dataclass(frozen=True)
class EngineContext:
    """The static facts of a run, as far as clients' work depends on them."""

    method: Method
    task: Task
    loader: BatchLoader
    meter: Meter
    rounds: int
    lr_decay: float = 1.0
    """Learning rates are multiplied by this once per round."""
    precision: str = "float32"
    """The precision of matrix products, where whoever does the work has to set it."""
    message_dtype: str = "same"
    """What floating-point values of messages are rounded to; "same" leaves them as they are."""
    _slices: dict[Hashable, bool] = field(default_factory=dict)

    def as_received(
        self, message: Message, clients: int | Tensor, sent: tuple[Label, int] | None
    ) -> Message:
        """Return a message as it comes out at the other end; stacked where `clients` are several.

        `sent` is the label and number of the round of an upload, None for a download. Downloads are
        always rounded with the same noise: a model that did not change is not sent again.
        """
        if self.message_dtype == "same":
            return message
        seed, lead = fold(self.loader.seed, Label.MESSAGE), int(isinstance(clients, Tensor))
        key = fold(seed, Label.UPLOAD, *sent, clients) if sent else fold(seed, Label.DOWNLOAD)
        return {
            name: part.to(self.message_dtype, fold(key, name), lead)
            for name, part in message.items()
        }

    def phases(self) -> list[tuple[str, Hashable]]:
        """List the kind and phase of every sort of round that a run has, in their order."""
        numbers = range(self.rounds)
        training = dict.fromkeys(self.method.schedule(each, self.rounds) for each in numbers)
        setup = self.method.stages(self.task, self.round("setup", None, 0))
        return [
            *([("setup", None)] if setup else []),
            *(("train", phase) for phase in training),
            *(("adapt", (view, False)) for view in self.method.views),
        ]

    def slices(self, round: Round) -> bool:
        """Tell whether some stage of a round may be trained on a smaller network."""
        key = (round.kind, round.phase)
        if key not in self._slices:
            stages = self.method.stages(self.task, round)
            self._slices[key] = any(stage.sliceable for stage in stages)
        return self._slices[key]

    def round(self, kind: str, phase: Hashable, number: int) -> Round:
        """Make the round that methods see."""
        device = self.loader.federation.x.device
        return Round.of(kind, phase, number, self.rounds, self.lr_decay, device)


@dataclass(frozen=True)
class Job:
    """What some clients are to do: rows, states and sessions stacked in the order of their ids."""

    server: State
    rows: State
    clients: State
    session: Session
    ids: Tensor
    round: Round
    number: int
    """The round's number, for random keys; methods see it as a tensor."""

    def take(self, places: Tensor) -> "Job":
        """Return the job of some of the clients."""
        rows, clients, session = (
            tree.take(state, places) for state in (self.rows, self.clients, self.session)
        )
        return replace(self, rows=rows, clients=clients, session=session, ids=self.ids[places])


@dataclass(frozen=True)
class Outcome:
    """What a cohort's rounds gave, stacked [clients, …] in the order of their ids."""

    uploads: Message
    clients: State
    session: Session
    count: Callable[[], tuple[Traffic, Flops]]
    """Returns what they cost, in host memory; a device has to be waited for then."""
    back: Tensor | None = None
    """Where not all clients answered: the places of those that did, of whom alone the rest is."""
    beside: Mapping[str, float] = field(default_factory=dict)
    """What was sent to those who did not."""

    @cached_property
    def costs(self) -> tuple[Traffic, Flops]:
        """Return bytes and operations; counted when they are first asked for."""
        return self.count()

    @property
    def traffic(self) -> Traffic:
        """Return the bytes of every client."""
        return self.costs[0]

    @property
    def flops(self) -> Flops:
        """Return the operations of every client."""
        return self.costs[1]

    def take(self, places: Tensor) -> "Outcome":
        """Return what some of the clients' rounds gave."""

        def count() -> tuple[Traffic, Flops]:
            columns = astuple(self.traffic), astuple(self.flops)
            traffic, flops = tree.take(columns, places)
            return Traffic(*traffic), Flops(*flops)

        uploads, clients, session = tree.take((self.uploads, self.clients, self.session), places)
        return Outcome(uploads, clients, session, count)


@dataclass(frozen=True)
class Evaluation:
    """Clients' models and their scores, in the order of the clients' ids."""

    models: list[Message]
    scores: list[Tensor]
    """For every client, the metric of each of its samples."""
    flops: Flops
    """Operations that adapting took."""

    @classmethod
    def joined(cls, pieces: "list[Evaluation]") -> "Evaluation":
        """Join what was evaluated a few clients at a time."""
        columns = zip(*(astuple(piece.flops) for piece in pieces), strict=True)
        return cls(
            [model for piece in pieces for model in piece.models],
            [score for piece in pieces for score in piece.scores],
            Flops(*(torch.cat(column) for column in columns)),
        )


class Engine(Protocol):
    """A way to run `client_round` over some clients."""

    @property
    def name(self) -> str:
        """Return what it is called in settings."""
        ...

    @property
    def copies(self) -> bool:
        """Tell whether clients' states are copied before anything is done with them."""
        ...

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds."""
        ...

    @property
    def prepares(self) -> bool:
        """Tell whether it wants to know of the next round while it works on one."""
        ...

    def prepare(self, ids: Tensor, round: Round, number: int) -> None:
        """Prepare a round that is to come, where something else is being waited for."""
        ...

    def evaluate(self, job: Job, samples: list[Tensor], models: bool = True) -> Evaluation:
        """Adapt every client on a copy and measure its samples; the phase is (view, novel).

        Models are returned where they are wanted afterwards.
        """
        ...

    def score(
        self, models: list[Message], samples: list[Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        """Measure models that were evaluated before, each on some samples of `x` and `y`."""
        ...

    def outputs(
        self, models: Sequence[Message], samples: Sequence[Tensor], x: Tensor
    ) -> Iterator[Tensor]:
        """Yield, model after model, all outputs for some samples of `x`; few are held at a time."""
        ...

    @property
    def federation(self) -> Federation:
        """Return the data that it works on."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...
