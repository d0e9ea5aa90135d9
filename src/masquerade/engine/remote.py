"""Clients that are elsewhere: calls go out as bytes, and replies come back, or do not."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Reply:
    """What a client answered."""

    body: bytes
    """The upload."""
    flops: list[list[float]]
    """Its operations: the columns of `Flops`."""
    scores: tuple[float, ...] = ()
    """The metric of each of its test samples, in answer to "adapt"."""


class Transport(Protocol):
    """A way to reach clients."""

    def exchange(self, calls: Sequence[Call]) -> Mapping[int, Reply]:
        """Send calls; return the replies that came in time, by client."""
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
    _channels: dict[int, Channel] = field(default_factory=dict)

    def channel(self, id: int) -> Channel:
        """Return what the server and a client know of their messages."""
        if id not in self._channels:
            self._channels[id] = Channel(self.run, self.context, self.clients[id])
        return self._channels[id]

    def _calls(self, job: Job) -> Iterator[tuple[Call, Message, Session]]:
        """Yield what every client is asked, its download, and the session that it builds on."""
        view = job.round.phase[0] if job.round.kind == "adapt" else ""
        for place, download in downloads(self.context, job, range(len(job.ids))):
            id, held = int(job.ids[place]), tree.take(job.session, place)
            channel = self.channel(id)
            body = channel.write_download(job.number, download, held)
            base = channel.base(held)
            call = Call(self.run, id, job.round.kind, view, job.number, base, body)
            yield call, download, held

    def work(self, job: Job) -> Outcome:
        """Ask the clients; those whose answer does not come, or cannot be read, are lost."""
        asked = list(self._calls(job))
        replies = self.transport.exchange([call for call, _, _ in asked])
        back, done, lost = [], [], []
        for place, (call, download, held) in enumerate(asked):
            channel = self.channel(call.client)
            upload = self._read(job, call, replies.get(call.client), download, held)
            if upload is None:
                lost.append(measure_exchange(download, {}, held, 0)[0])
                continue
            cost, after = channel.finish(download, upload, held)
            flops = Flops(*torch.tensor(replies[call.client].flops, dtype=torch.float64))
            back.append(place)
            done.append((upload, after, astuple(cost), astuple(flops)))
        beside = _summed(lost)
        places = torch.tensor(back, dtype=torch.int64)
        if not done:
            return Outcome({}, {}, {}, _nothing, places, beside)
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
    ) -> Message | None:
        """Return a client's upload; None where there is none, or none that can be read."""
        if reply is None:
            return None
        channel = self.channel(call.client)
        try:
            return channel.read_upload(reply.body, job.round, job.number, download, held)
        except MasqueradeError as error:
            warnings.warn(
                f"W608 client {call.client}, {round_name(job.round.kind, job.number)}: an answer "
                f"that cannot be read counts as lost ({error})",
                MasqueradeWarning,
                stacklevel=2,
            )
            return None

    def evaluate(self, job: Job, samples: list[Tensor]) -> Evaluation:
        """Have every client adapt on a copy and measure its own test samples.

        Models stay where they are, and so do the samples: only figures come back. A client that
        does not answer has none.
        """
        replies = self.transport.exchange([call for call, _, _ in self._calls(job)])
        ids, layers = job.ids.tolist(), len(self.context.meter.forward(self.context.task.sample))
        scores, flops = [], []
        for id in ids:
            reply = replies.get(id)
            scores.append(torch.tensor(reply.scores if reply else (), dtype=torch.float64))
            flops.append(reply.flops if reply else [[0.0] * layers] * 4)
        columns = torch.tensor(flops, dtype=torch.float64).unbind(1)
        return Evaluation([], scores, Flops(*columns))

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


def _nothing() -> tuple[Traffic, Flops]:
    """Return what nobody cost."""
    none = torch.zeros(0, dtype=torch.float64)
    return Traffic(none, none, none, none), Flops(*[none[:, None]] * 4)


def _summed(costs: Sequence[Traffic]) -> dict[str, float]:
    """Add up what was sent down to clients that were lost, in all and by part."""
    total: dict[str, float] = {}
    for cost in costs:
        for name, value in (
            ("down", cost.down),
            ("values_down", cost.values_down),
            *cost.parts.items(),
        ):
            total[name] = total.get(name, 0.0) + float(value)
    return total
