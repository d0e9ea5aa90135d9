"""One client where its data are: it answers calls, and keeps its states on its own disk.

A state is a file that is named by the base of its session. A call names the base that it builds on.
The client goes on from that file, writes the next one, and keeps both: if its answer is lost or
refused, the next call names the old one again.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Message
from masquerade.core.round import ClientInfo, Round, round_name
from masquerade.core.tree import State
from masquerade.data import Federation
from masquerade.deploy.budget import Budget
from masquerade.deploy.measure import Adapted
from masquerade.engine.base import EngineContext, Job, astuple
from masquerade.engine.exchange import Channel
from masquerade.engine.loop import Loop
from masquerade.engine.precision import numbers
from masquerade.engine.remote import Call, Reply
from masquerade.errors import MasqueradeError
from masquerade.simulation.accountant import epochs
from masquerade.simulation.update_checks import refusals
from masquerade.storage import atomic, sealed
from masquerade.storage.run_directory import decode_tensors
from masquerade.wire import Session, decode, encode

KINDS = ("setup", "train")
"""The rounds that leave a state; a file has their place here."""


def alone(federation: Federation, id: int) -> Federation:
    """Return a federation of one client's samples, in which it has its id and others have none."""
    own = [getattr(federation, split)[id] for split in ("train", "validation", "test")]
    chosen = torch.cat(own)
    places = torch.split(torch.arange(len(chosen)), [len(part) for part in own])
    nothing = torch.empty(0, dtype=torch.int64)
    train, validation, test = ((nothing,) * id + (place,) for place in places)
    return replace(
        federation,
        x=federation.x[chosen],
        y=federation.y[chosen],
        train=train,
        validation=validation,
        test=test,
        names=(),
    )


@dataclass(frozen=True)
class HeldState:
    """What a client has kept of an exchange."""

    client: State
    session: Session
    last: Message | None
    """Its last download; None before the first."""


@dataclass(frozen=True)
class Client:
    """Answers the calls of one run."""

    run: str
    context: EngineContext
    """With its own data alone."""
    info: ClientInfo
    folder: Path
    """Where its states are."""
    measure: Callable[[Adapted], bytes] = lambda adapted: b""
    """What it tells of a view that is evaluated."""
    budget: Budget | None = None
    """What it may spend of its privacy; None where it adds no noise."""

    @cached_property
    def channel(self) -> Channel:
        """Return what it and the server know of their messages."""
        return Channel(self.run, self.context, self.info)

    @cached_property
    def _loop(self) -> Loop:
        return Loop(self.context)

    def answer(self, call: Call) -> Reply:
        """Do what is asked."""
        if (call.run, call.client) != (self.run, self.info.id):
            raise MasqueradeError(
                "E606",
                f"a call of run `{call.run}` to client {call.client}; this is client "
                f"{self.info.id} of run `{self.run}`",
            )
        with torch.random.fork_rng(devices=[]), numbers(self.context.precision):
            round = self._round(call.kind, call.number, (call.view, call.novel))
            budget = self.budget if call.kind in KINDS else None
            if budget is not None:
                # Whoever is asked the same again tells nothing new, and spends nothing.
                if (said := self._said_before(call)) is not None:
                    return said
                budget.check(self._steps(round))
            held = self.load(call.base)
            download = self.channel.read_download(
                call.body, round, call.number, held.session, held.last
            )
            job = Job({}, {}, {}, {}, torch.tensor([self.info.id]), round, call.number)
            upload, client, flops = self._loop.client(job, 0, download, held.client, {})
            columns = [column[0].tolist() for column in astuple(flops)]
            if call.kind == "adapt":
                adapted = Adapted(round, download, held.session, client, flops, call.final)
                return Reply(self.measure(adapted), columns)
            if refusals({}, [{}], tree.stack([client]), lambda: tree.stack([held.client])):
                raise MasqueradeError(
                    "E629",
                    f"client {self.info.id}, {round_name(call.kind, call.number)}: what it would "
                    "keep is not finite; it keeps what it had (lower method.lr?)",
                )
            upload = self.channel.rounded(upload, round, call.number)
            body = self.channel.write_upload(call.number, upload, download, held.session)
            _, after = self.channel.finish(download, upload, held.session)
            reply = Reply(body, columns)
            if budget is not None:
                budget.spend(self._steps(round))
            self._save(call, HeldState(client, after, download), reply if budget else None)
            return reply

    def _steps(self, round: Round) -> int:
        """Count the steps of DP-SGD in a round."""
        dp, samples = self.context.task.dp, torch.tensor(self.info.samples)
        assert dp is not None
        return int(dp.steps(samples)) * epochs(self.context.method, self.context.task, round)

    def _said_before(self, call: Call) -> Reply | None:
        """Return what it answered to the very same call, where it still has that."""
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                tensors = self._tensors(path)
            except MasqueradeError:
                continue
            if "asked" in tensors and torch.equal(tensors["asked"], _digest(call)):
                return Reply(tensors["reply"].numpy().tobytes(), tensors["flops"].tolist())
        return None

    def _round(self, kind: str, number: int, view: tuple[str, bool] = ("", False)) -> Round:
        method, rounds = self.context.method, self.context.rounds
        if kind not in (*KINDS, "adapt"):
            raise MasqueradeError("E606", f"a call to do `{kind}`, which no client knows")
        if kind == "adapt":
            return self.context.round(kind, view, number)
        phase = method.schedule(number, rounds) if kind == "train" else None
        return self.context.round(kind, phase, number)

    def load(self, base: int) -> HeldState:
        """Return what it holds under a base: that before the first message, or a file's."""
        first = self.channel.begin()
        begun = self.context.method.client_init(self.context.task, self.info)
        if base == self.channel.base(first):
            return HeldState(begun, first, None)
        path = self._file(base)
        try:
            tensors = self._tensors(path)
        except FileNotFoundError:
            text = f"client {self.info.id} holds no state {base:016x}; it has to begin anew"
            raise MasqueradeError("E606", text) from None
        client = tree.rebuild({"client": begun}, tensors)["client"]
        session = {
            name.removeprefix("session/"): value
            for name, value in tensors.items()
            if name.startswith("session/")
        }
        kind, number = tensors["round"].tolist()
        # What a download looks like may change from phase to phase.
        template, _ = self.channel.templates(self._round(KINDS[kind], number), number)
        return HeldState(client, session, decode(tensors["last"].numpy().tobytes(), template))

    def _file(self, base: int) -> Path:
        return self.folder / f"{base:016x}.safetensors"

    def _tensors(self, path: Path) -> dict[str, Tensor]:
        """Read a file of a state; E606 says that it is damaged."""
        try:
            then = "The client has to begin anew."
            data = sealed.checked(path.read_bytes(), self._whose(path), path.name, then)
        except MasqueradeError as damage:
            text = f"client {self.info.id}: {str(damage).removeprefix('E401 ')}"
            raise MasqueradeError("E606", text) from None
        return decode_tensors(data, path.name)

    def _whose(self, path: Path) -> str:
        """Say whose a state is: clients that have sent as much have one base."""
        return f"{self.run}/{self.info.id}/{path.stem}"

    def _save(self, call: Call, held: HeldState, reply: Reply | None) -> None:
        """Keep a state beside the one that it builds on, and drop all others.

        A reply that is not to be made again is kept with it.
        """
        tensors: dict[str, Tensor] = {
            **tree.named({"client": held.client, "session": held.session}),
            "last": _bytes(encode(held.last or {})),
            "round": torch.tensor([KINDS.index(call.kind), call.number]),
        }
        if reply is not None:
            flops = torch.tensor(reply.flops, dtype=torch.float64)
            tensors |= {"asked": _digest(call), "reply": _bytes(reply.body), "flops": flops}
        path = self._file(self.channel.base(held.session))
        atomic.write_file(path, sealed.encode(tensors, self._whose(path)))
        for other in self.folder.glob("*.safetensors"):
            if other not in (path, self._file(call.base)):
                atomic.discard(other)


def _bytes(data: bytes) -> Tensor:
    empty = torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else empty


def _digest(call: Call) -> Tensor:
    """Return what tells a call from all others that ask for something else."""
    about = f"{call.kind} {call.number} {call.base} ".encode()
    return _bytes(hashlib.sha256(about + call.body).digest())
