"""Clients that are elsewhere: calls go out as bytes, and replies come back, or do not."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.core.round import ClientInfo, Round, round_name
from masquerade.cost.flops import Flops
from masquerade.cost.traffic import Traffic, measure_exchange
from masquerade.data import Federation
from masquerade.engine.base import EngineContext, Evaluation, Job, Outcome, astuple
from masquerade.engine.exchange import Channel
from masquerade.engine.loop import downloads
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.wire import Session

WAYS = ("dense", "masked", "executed", "paper")
"""What the columns of `Flops` are called where costs are added up."""


@dataclass(frozen=True)
class Call:
    """What one client is asked to do."""

    run: str
    client: int
    kind: str
    """ "setup", "train" or "adapt": of the round."""
    view: str
    """The view that is evaluated, of "adapt" alone."""
    number: int
    """Of the round."""
    base: int
    """The session that it builds on."""
    body: bytes
    """The download."""
    novel: bool = False
    """Whether the client came after training; of "adapt" alone."""
    final: bool = False
    """Whether all is measured, and the model kept; of "adapt" alone."""


@dataclass(frozen=True)
class Reply:
    """What a client answered."""

    body: bytes
    """The upload; in answer to "adapt" what it measured, in a form that is not the engine's."""
    flops: Sequence[Sequence[float]]
    """Its operations: the columns of `Flops`, each by layer."""


@dataclass(frozen=True)
class Exchanged:
    """What came of some calls."""

    replies: Mapping[int, Reply]
    """Those that came in time, by client."""
    unused: Sequence[Reply] = ()
    """Those that came and are not taken, also in answer to earlier calls: they cost as well."""


class Transport(Protocol):
    """A way to reach clients."""

    def exchange(self, calls: Sequence[Call]) -> Exchanged:
        """Send calls, and wait for replies as long as it sees fit."""
        ...


@dataclass
class Remote:
    """Has clients do their work where they are."""

    context: EngineContext
    run: str
    clients: Sequence[ClientInfo]
    transport: Transport
    name: str = "remote"
    copies: ClassVar[bool] = False
    prepares: ClassVar[bool] = False
    unread: list[int] = field(default_factory=list)
    """Clients whose answers could not be read, in the order in which they came."""
    _channels: dict[int, Channel] = field(default_factory=dict)

    def channel(self, id: int) -> Channel:
        """Return what the server and a client know of their messages."""
        if id not in self._channels:
            self._channels[id] = Channel(self.run, self.context, self.clients[id])
        return self._channels[id]

    def update(self, clients: Sequence[ClientInfo]) -> None:
        """Take over what is known of clients now; some came, or have other samples."""
        old, self.clients = self.clients, clients
        for id, info in enumerate(clients):
            if id < len(old) and old[id] != info:
                self._channels.pop(id, None)

    def _calls(self, job: Job, final: bool = False) -> Iterator[tuple[Call, Message, Session]]:
        """Yield what every client is asked, its download, and the session that it builds on."""
        view, novel = job.round.phase if job.round.kind == "adapt" else ("", False)
        for place, download in downloads(self.context, job, range(len(job.ids))):
            id, held = int(job.ids[place]), tree.take(job.session, place)
            channel = self.channel(id)
            body = channel.write_download(job.number, download, held)
            about = (self.run, id, job.round.kind, view, job.number, channel.base(held))
            yield Call(*about, body, novel, final), download, held

    def work(self, job: Job) -> Outcome:
        """Ask the clients; those whose answer does not come, or cannot be read, are lost."""
        asked = list(self._calls(job))
        came = self.transport.exchange([call for call, _, _ in asked])
        back, done, lost = [], [], [self._spent(reply) for reply in came.unused]
        for place, (call, download, held) in enumerate(asked):
            channel, reply = self.channel(call.client), came.replies.get(call.client)
            read = self._read(job, call, reply, download, held)
            if read is None:
                lost.append(_sent_down(measure_exchange(download, {}, held, 0)[0]))
                lost.append(self._spent(reply))
                continue
            upload, flops = read
            cost, after = channel.finish(download, upload, held)
            back.append(place)
            done.append((upload, after, astuple(cost), astuple(flops)))
        beside = _summed(lost)
        places = torch.tensor(back, dtype=torch.int64)
        if not done:
            return Outcome({}, {}, {}, self._nothing, places, beside)
        uploads, sessions, traffic, flops = tree.stack(done)
        return Outcome(
            uploads,
            {},
            sessions,
            lambda: (Traffic(*traffic).here(), Flops(*flops)),
            places,
            beside,
        )

    def _read(
        self, job: Job, call: Call, reply: Reply | None, download: Message, held: Session
    ) -> tuple[Message, Flops] | None:
        """Return a client's upload and operations; None where none come that can be read."""
        if reply is None:
            return None
        channel = self.channel(call.client)
        try:
            upload = channel.read_upload(reply.body, job.round, job.number, download, held)
            return upload, self.flops(reply)
        except MasqueradeError as error:
            self.unread.append(call.client)
            warnings.warn(
                f"W608 client {call.client}, {round_name(job.round.kind, job.number)}: an answer "
                f"that cannot be read counts as lost ({error})",
                MasqueradeWarning,
                stacklevel=2,
            )
            return None

    @property
    def _layers(self) -> int:
        return len(self.context.meter.forward(self.context.task.sample))

    def flops(self, reply: Reply) -> Flops:
        """Return the operations that a client states; refuse what cannot be such."""
        lengths = {len(column) for column in reply.flops}
        stated = torch.tensor(reply.flops, dtype=torch.float64) if len(lengths) == 1 else None
        # Who takes no step has done nothing, in no layer.
        if stated is not None and stated.shape[1:] == (1,) and not stated.any():
            stated = stated.expand(-1, self._layers)
        if stated is None or stated.shape != (len(fields(Flops)), self._layers):
            raise MasqueradeError("E605", "operations are not stated by layer")
        if not bool((stated.isfinite() & (stated >= 0)).all()):
            raise MasqueradeError("E605", "operations are stated that nobody can have done")
        return Flops(*stated)

    def _spent(self, reply: Reply | None) -> dict[str, float]:
        """Return what an answer that is not taken cost: its bytes, and operations if it says so."""
        if reply is None:
            return {}
        try:
            columns = zip(WAYS, astuple(self.flops(reply)), strict=True)
        except MasqueradeError:
            return {"up": float(len(reply.body))}
        return {"up": float(len(reply.body))} | {n: float(each.sum()) for n, each in columns}

    def _nothing(self) -> tuple[Traffic, Flops]:
        """Return what nobody cost."""
        none = torch.zeros(0, dtype=torch.float64)
        return Traffic(none, none, none, none), Flops(*[none.new_zeros(0, self._layers)] * 4)

    def reports(self, job: Job, final: bool = False) -> dict[int, Reply]:
        """Have every client adapt on a copy and measure itself; return what those say that answer.

        Models stay where they are, and so do samples. With `final` a client keeps the model.
        """
        calls = [call for call, _, _ in self._calls(job, final)]
        return dict(self.transport.exchange(calls).replies)

    def evaluate(self, job: Job, samples: list[Tensor], models: bool = True) -> Evaluation:
        """Refuse: models and samples are at the clients, which report figures."""
        raise _not_here()

    def prepare(self, ids: Tensor, round: Round, number: int) -> None:
        """Prepare nothing: clients are asked when it is their turn."""

    def score(
        self, models: list[Message], samples: list[Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        """Refuse: models and samples are at the clients."""
        raise _not_here()

    def outputs(
        self, models: Sequence[Message], samples: Sequence[Tensor], x: Tensor
    ) -> Iterator[Tensor]:
        """Refuse: models and samples are at the clients."""
        raise _not_here()

    @property
    def federation(self) -> Federation:
        """Refuse: data are at the clients."""
        raise _not_here()

    def close(self) -> None:
        """Hold nothing."""


def _not_here() -> MasqueradeError:
    return MasqueradeError(
        "E608", "models and samples of remote clients stay with them; evaluate on own data"
    )


def _sent_down(cost: Traffic) -> dict[str, float]:
    """Return what was sent down to a client that was lost, in all and by part."""
    columns = {"down": cost.down, "values_down": cost.values_down, **cost.parts}
    return {name: float(value) for name, value in columns.items()}


def _summed(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for cost in costs:
        for name, value in cost.items():
            total[name] = total.get(name, 0.0) + value
    return total
