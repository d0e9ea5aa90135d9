"""The two ends of an exchange: what each writes and reads, and what both hold afterwards.

Server and client know from the method which parts their messages have. What they hold of each other
is a session, and its `base` is the session's name. The server says on which base a call builds, and
the client goes on from the state that it kept under that name. So both agree on what was taken
without another message: an answer that was lost or refused leaves the server at the old base.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.round import ClientInfo, Round, client_round
from masquerade.cost.traffic import Traffic, measure_exchange
from masquerade.engine.base import EngineContext
from masquerade.wire import Session, Stamp, count, decode, encode, session

TURN = "turn"
"""How many exchanges of a client were taken. A base never comes twice, even if nothing was sent."""


@dataclass(frozen=True)
class Channel:
    """What the server and one client know of their messages."""

    run: str
    """The name of the run."""
    context: EngineContext
    client: ClientInfo
    _templates: dict[tuple[str, object], tuple[Message, Message]] = field(default_factory=dict)

    def templates(self, round: Round, number: int) -> tuple[Message, Message]:
        """Return what the download and the upload of a round look like.

        They are kept, by a server for every client, and so have no values: else it would hold two
        models of every client, for every kind of round.
        """
        key = (round.kind, round.phase)
        if key not in self._templates:
            self._templates[key] = tree.transform(_shape, self.without_batch(round, number))
        return self._templates[key]

    def without_batch(self, round: Round, number: int) -> tuple[Message, Message]:
        """Return the download and the upload of a round in which no batch is seen."""
        method, task, info = self.context.method, self.context.task, self.client
        row, client = method.row_init(task, info), method.client_init(task, info)
        download = method.download(task, method.server_init(task), row, round)
        with torch.random.fork_rng(devices=[]):
            upload, _ = client_round(method, task, download, client, lambda stage: (), round)
        return self.rounded(download), self.rounded(upload, round, number)

    def rounded(self, message: Message, round: Round | None = None, number: int = 0) -> Message:
        """Return a message as it comes out at the other end; with a round, an upload."""
        sent = (round.label, number) if round else None
        return self.context.as_received(message, self.client.id, sent)

    def begin(self) -> Session:
        """Return what both hold of each other before the first message."""
        first = self.context.round("train", self.context.method.schedule(0, self.context.rounds), 0)
        download, _ = self.templates(first, 0)
        begun: Session = tree.take(session.begin(self.context.task.initial, 1, download), 0)
        return begun

    def first_held(self, template: Message) -> Message:
        """Return the versions that a client has before its first download: the initial model's."""
        initial = self.context.task.initial
        return {
            name: Part({tensor: initial[tensor] for tensor in part.values})
            for name, part in template.items()
            if part.values.keys() <= initial.keys()
        }

    def base(self, held: Session) -> int:
        """Return the name of a session."""
        return session.base(self.run, held)

    def _stamp(self, number: int, held: Session) -> Stamp:
        return Stamp(number, self.client.id, self.base(held))

    def write_download(self, number: int, message: Message, held: Session) -> bytes:
        """Write a download as the server sends it."""
        same = session.unchanged(held, message, session.versions(message, 0))
        return encode(message, self._stamp(number, held), held, same)

    def read_download(
        self, data: bytes, round: Round, number: int, held: Session, last: Message | None
    ) -> Message:
        """Read a download at the client, which got `last` before it."""
        template, _ = self.templates(round, number)
        versions = self.first_held(template) if last is None else last
        return decode(data, template, self._stamp(number, held), held, versions)

    def write_upload(
        self, number: int, message: Message, download: Message, held: Session
    ) -> bytes:
        """Write an upload as the client sends it, in answer to a download."""
        received = _received(download, held)
        return encode(message, self._stamp(number, received), received)

    def read_upload(
        self, data: bytes, round: Round, number: int, download: Message, held: Session
    ) -> Message:
        """Read an upload at the server."""
        _, template = self.templates(round, number)
        received = _received(download, held)
        return decode(data, template, self._stamp(number, received), received)

    def finish(self, download: Message, upload: Message, held: Session) -> tuple[Traffic, Session]:
        """Return what an exchange cost, and what both hold after it."""
        cost, after = measure_exchange(download, upload, held, 0)
        taken = held.get(TURN, torch.zeros((), dtype=torch.int64))
        return cost, after | {TURN: taken + 1}


def _shape(values: Tensor) -> Tensor:
    """Return zeros of the same shape and type, which take the room of one."""
    return values.new_zeros(()).expand(values.shape)


def _received(download: Message, held: Session) -> Session:
    """Return the session when a download was read; an upload may refer to it."""
    fresh = session.versions(download, 0)
    return session.moved(held | fresh, "down", count(download, held).masks)
