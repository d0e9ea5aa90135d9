"""The gate before a SuperLink: TLS, registered keys, and the calls of a fleet, nothing else.

A SuperLink serves its fleet, its runtime and its control on one port, and whoever reaches the
control may run code on every node. So it stays on the loopback, and this gate alone is reached
from elsewhere. Heads are read and written anew on both sides: what passes is what was understood.
"""

import asyncio
import base64
import binascii
import errno
import json
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import h11
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

FLEET = frozenset(
    f"/v1/fleet/{call}".encode()
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
"""What a SuperNode with a registered key calls. Nodes register at the server, not here."""
HELLO = b"/masquerade/hello"
"""The gate's own call: it says who it is to a client that it knows."""
KEY, SIGNATURE, SIGNED_AT = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"
"""Headers by which a SuperNode says who it is: its key, and a time that the key signed."""
PASSED = (b"content-type", b"content-encoding", b"accept", b"accept-encoding")
"""Headers that pass, beside those of Flower and the length."""
EARLY, LATE = -5.0, 305.0
"""How old a signed time may be, in seconds, as SuperLink has it."""
CHUNK = 1 << 16
JSON = "application/json"
BACKLOG = 256
BREATH = 0.5
"""Seconds after which it accepts again, when the machine had no room for a connection."""
BESIDE = 256
"""Open files that the process has beside connections."""
STARTING = "the server is starting"
"""With 503, as Flower's nodes know it: they come again."""


@dataclass(frozen=True)
class Limits:
    """What the gate takes at most."""

    connections: int = 1024
    of_one_address: int = 256
    """Many clients may come from behind one address."""
    head: int = 16 << 10
    """Bytes of a request's head."""
    body: int = 256 << 20
    """Bytes of a request's body. Flower cuts what is larger into pieces of 5 MB."""
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0
    idle_seconds: float = 120.0
    """Between two requests."""
    stall_seconds: float = 30.0
    """Between two pieces of a body, and until a byte is taken."""
    request_seconds: float = 900.0
    """From a request's head to its answer's end."""

    @property
    def files(self) -> int:
        """Return how many open files it takes to have all of the connections."""
        return 2 * self.connections + BESIDE

    def within(self, files: int) -> "Limits":
        """Return limits that so many open files are enough for."""
        room = max(1, (files - BESIDE) // 2)
        return replace(self, connections=min(self.connections, room))


@dataclass
class Listening:
    """The sockets at which a gate listens, and what accepts there."""

    sockets: Sequence[socket.socket]
    accepting: Sequence["asyncio.Task[None]"]

    def close(self) -> None:
        """Accept nobody any more."""
        for task in self.accepting:
            task.cancel()
        for each in self.sockets:
            each.close()


def listening_at(host: str | None, port: int) -> list[socket.socket]:
    """Return sockets that listen at all addresses of a host, or of this machine."""
    told = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(told):
            try:
                opened = socket.create_server(address, family=family, backlog=BACKLOG)
            except OSError as fault:
                # There is IPv6 by its name, and then no address of it.
                if fault.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or not found:
                    raise
                continue
            opened.setblocking(False)
            found.append(opened)
    except OSError:
        for each in found:
            each.close()
        raise
    return found


@dataclass
class Seen:
    """What came from one client, and went to it: HTTP, without what TLS adds."""

    requests: int = 0
    up: int = 0
    down: int = 0
    last: float = 0.0
    """When, in seconds of Unix time."""


@dataclass
class Gate:
    """Passes calls of clients on to a SuperLink."""

    upstream: tuple[str, int]
    upstream_tls: ssl.SSLContext
    client_of: Callable[[bytes], str | None]
    """Returns whose a public key is, as OpenSSH writes it; None where it is nobody's."""
    greeting: Callable[[str], Mapping[str, str]]
    """Returns what a client is told that says hello."""
    ready: Callable[[], bool]
    """Whether SuperLink is there, and knows all keys: it would turn a client away before."""
    limits: Limits = field(default_factory=Limits)
    seen: dict[str, Seen] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    """How often was refused what, by its reason."""
    _open: Counter[str] = field(default_factory=Counter)

    async def serve(self, host: str | None, port: int, tls: ssl.SSLContext) -> Listening:
        """Listen."""
        sockets = listening_at(host, port)
        return Listening(sockets, [asyncio.create_task(self._accept(s, tls)) for s in sockets])

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        """Accept connections, and count them from there: also who says nothing takes up room."""
        loop, served = asyncio.get_running_loop(), set()
        while True:
            try:
                peer, address = await loop.sock_accept(listening)
            except OSError as fault:
                self.refused[type(fault).__name__] += 1
                await asyncio.sleep(BREATH)
                continue
            origin = str(address[0])
            full = (
                self._open.total() >= self.limits.connections
                or self._open[origin] >= self.limits.of_one_address
            )
            if full:
                self.refused["too many connections"] += 1
                peer.close()
            else:
                self._open[origin] += 1
                task = asyncio.create_task(self._admitted(peer, origin, tls))
                served.add(task)
                task.add_done_callback(served.discard)
            # Who is served has a turn between two that come.
            await asyncio.sleep(0)

    async def _admitted(self, peer: socket.socket, origin: str, tls: ssl.SSLContext) -> None:
        """Serve whoever there is room for, from the handshake until it ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CHUNK)
        protocol, writer = asyncio.StreamReaderProtocol(reader), None
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                peer,
                ssl=tls,
                ssl_handshake_timeout=self.limits.handshake_seconds,
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            await self._connection(reader, writer)
        except EOFError:
            # It went away, as it may.
            pass
        except (OSError, TimeoutError, h11.ProtocolError) as fault:
            self.refused[type(fault).__name__] += 1
        finally:
            if writer is not None:
                await _close(writer)
            self._open[origin] -= 1
            self._open += Counter()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        side = _Side(h11.Connection(h11.SERVER, self.limits.head), reader, writer, self.limits)
        async with _Upstream(self).opened() as upstream:
            while await self._request(side, upstream):
                side.http.start_next_cycle()

    async def _request(self, side: "_Side", upstream: "_Upstream") -> bool:
        """Pass one request on, and its answer back; return whether another one may follow."""
        side.counted = [0, 0]
        try:
            head = await side.head()
        except h11.RemoteProtocolError as fault:
            await self._refuse(side, 431 if fault.error_status_hint == 431 else 400, "bad request")
            return False
        if head is None:
            return False
        async with asyncio.timeout(self.limits.request_seconds):
            client, refusal = self._admit(head)
            if client is None:
                await self._refuse(side, *refusal)
                return False
            if head.target == HELLO:
                await side.answer(200, json.dumps(self.greeting(client)).encode(), JSON)
                return False
            going_on = await self._pass_on(side, head, upstream)
        seen = self.seen.setdefault(client, Seen())
        seen.requests, seen.last = seen.requests + 1, time.time()
        seen.up, seen.down = seen.up + side.counted[0], seen.down + side.counted[1]
        return going_on

    def _admit(self, head: h11.Request) -> tuple[str | None, tuple[int, str]]:
        """Return whose request this is, or the status and reason with which it is refused."""
        if head.method != b"POST" or head.target not in (HELLO, *FLEET):
            return None, (404, "not a call of the fleet")
        headers = dict(head.headers)
        if b"content-length" in headers and FRAMING in headers:
            # Two ends could take the request's end to be in two places.
            return None, (400, "two lengths")
        if int(headers.get(b"content-length", b"0")) > self.limits.body:
            return None, (413, "too large")
        return self._who(headers)

    def _who(self, headers: Mapping[bytes, bytes]) -> tuple[str | None, tuple[int, str]]:
        try:
            key = load_pem_public_key(base64.b64decode(headers[KEY], validate=True))
            signature = base64.b64decode(headers[SIGNATURE], validate=True)
            signed = headers[SIGNED_AT]
            at = datetime.fromisoformat(signed.decode("ascii"))
            age = (datetime.now(UTC) - at).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error, UnsupportedAlgorithm):
            return None, (401, "no key")
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return None, (401, "no key")
        client = self.client_of(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        if client is None:
            return None, (
                401,
                "a key that is not registered: it was removed, or is of another federation",
            )
        try:
            key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return None, (401, "a wrong signature")
        if not EARLY < age < LATE:
            return None, (401, f"a clock that is off: that of {client}, by {-age:+.0f} s")
        if not self.ready():
            return None, (503, STARTING)
        return client, (200, "")

    async def _refuse(self, side: "_Side", status: int, reason: str) -> None:
        self.refused[reason.partition(":")[0]] += 1
        with suppress(h11.LocalProtocolError):
            await side.answer(status, f"{reason}\n".encode())

    async def _pass_on(self, side: "_Side", head: h11.Request, upstream: "_Upstream") -> bool:
        try:
            other = await upstream.side()
        except OSError:
            await self._refuse(side, 503, STARTING)
            return False
        await other.send(
            h11.Request(
                method=head.method, target=head.target, headers=_passed(head, upstream.host)
            )
        )
        if not await self._bodies(side, other):
            return False
        answer = await other.answer_head()
        await side.send(
            h11.Response(status_code=answer.status_code, headers=_passed(answer), reason=b"")
        )
        while isinstance(event := await other.event(self.limits.request_seconds), h11.Data):
            await side.send(h11.Data(bytes(event.data)))
        await side.send(h11.EndOfMessage())
        if other.http.our_state is other.http.their_state is h11.DONE:
            other.http.start_next_cycle()
        else:
            await upstream.drop()
        return side.http.our_state is side.http.their_state is h11.DONE

    async def _bodies(self, side: "_Side", other: "_Side") -> bool:
        """Pass a request's body on; return whether it was not too large."""
        size = 0
        while isinstance(event := await side.event(self.limits.stall_seconds), h11.Data):
            size += len(event.data)
            if size > self.limits.body:
                await self._refuse(side, 413, "too large")
                return False
            await other.send(h11.Data(bytes(event.data)))
        await other.send(h11.EndOfMessage())
        return True


def _passed(head: h11.Request | h11.Response, host: bytes = b"") -> list[tuple[bytes, bytes]]:
    """Return the headers of a request or an answer that pass."""
    passed = [
        (name, value)
        for name, value in head.headers
        if name in PASSED or name.startswith(b"flwr-") or name in (b"content-length", FRAMING)
    ]
    return [*([(b"host", host)] if host else []), *passed]


FRAMING = b"transfer-encoding"
"""h11 understood it, and writes pieces of its own."""


@dataclass
class _Side:
    """One side of a request: the client's, or that of SuperLink."""

    http: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    limits: Limits
    counted: list[int] = field(default_factory=lambda: [0, 0])

    async def event(self, seconds: float) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what comes next; wait at most so long for a byte of it."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(seconds):
                data = await self.reader.read(CHUNK)
            self.counted[0] += len(data)
            self.http.receive_data(data)
        if isinstance(event, h11.ConnectionClosed):
            raise EOFError
        return event

    async def head(self) -> h11.Request | None:
        """Return the head of the next request; None where there is none."""
        if not self.http.trailing_data[0]:
            # The first byte may take its time, the rest of a head may not.
            async with asyncio.timeout(self.limits.idle_seconds):
                data = await self.reader.read(CHUNK)
            self.counted[0] += len(data)
            self.http.receive_data(data)
        async with asyncio.timeout(self.limits.head_seconds):
            event = await self.event(self.limits.head_seconds)
        return event if isinstance(event, h11.Request) else None

    async def answer_head(self) -> h11.Response:
        """Return the head of an answer."""
        event = await self.event(self.limits.request_seconds)
        while not isinstance(event, h11.Response):
            event = await self.event(self.limits.request_seconds)
        return event

    async def send(self, event: h11.Event) -> None:
        """Send, as fast as it is taken."""
        data = self.http.send(event) or b""
        self.counted[1] += len(data)
        self.writer.write(data)
        async with asyncio.timeout(self.limits.stall_seconds):
            await self.writer.drain()

    async def answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        """Answer whole, and say that the connection ends."""
        headers = [
            ("content-type", kind),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        await self.send(h11.Response(status_code=status, headers=headers, reason=b""))
        await self.send(h11.Data(body))
        await self.send(h11.EndOfMessage())


@dataclass
class _Upstream:
    """The connection to SuperLink that belongs to one of a client; opened when it is needed."""

    gate: Gate
    _side: _Side | None = None

    @property
    def host(self) -> bytes:
        return ":".join(map(str, self.gate.upstream)).encode()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["_Upstream"]:
        try:
            yield self
        finally:
            await self.drop()

    async def side(self) -> _Side:
        if self._side is None or self._side.reader.at_eof():
            await self.drop()
            host, port = self.gate.upstream
            reader, writer = await asyncio.open_connection(
                host, port, ssl=self.gate.upstream_tls, limit=CHUNK
            )
            http = h11.Connection(h11.CLIENT, self.gate.limits.head)
            self._side = _Side(http, reader, writer, self.gate.limits)
        return self._side

    async def drop(self) -> None:
        if self._side is not None:
            await _close(self._side.writer)
            self._side = None


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError, ssl.SSLError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
