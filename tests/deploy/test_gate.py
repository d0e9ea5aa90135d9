"""The gate passes calls of registered clients to the fleet, and nothing else."""

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from masquerade import __version__
from masquerade.deploy import keys
from masquerade.deploy.gate import HELLO, Gate, Limits
from masquerade.deploy.hello import Greeting, Unreachable, say_hello, signed_headers
from masquerade.deploy.private import write_private
from tests.messages import Golden
from tests.support import raises

pytest.importorskip("h11")

PULL = "/v1/fleet/pull-messages"
KEYS = {name: keys.new_client_key() for name in ("ann", "foreign")}
LIMITS = Limits(
    connections=8,
    of_one_address=6,
    head=2048,
    body=1 << 20,
)
IMPATIENT = replace(LIMITS, head_seconds=0.3, idle_seconds=0.6, stall_seconds=0.4)


@dataclass
class Link:
    """Stands for SuperLink: it keeps what comes, and answers with the body turned round."""

    came: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await self.body(reader, headers)
                self.came.append((first, headers, body))
                size = f"content-length: {len(body)}\r\nflwr-x: 1\r\nserver: secret\r\n\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n" + size.encode() + body[::-1])
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            writer.close()

    async def body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await reader.readexactly(int(headers["content-length"]))
        found = b""
        while size := int((await reader.readline()).strip(), 16):
            found += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return found


@dataclass
class Place:
    """A gate that listens, with what stands behind it."""

    gate: Gate
    link: Link
    port: int
    authority: Path

    async def talk(self, data: bytes, tls: bool = True, seconds: float = 10.0) -> bytes:
        """Say something, and return all that is answered until the connection ends."""
        context = ssl.create_default_context(cafile=str(self.authority)) if tls else None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        except ConnectionError:
            return b""
        writer.write(data)
        try:
            async with asyncio.timeout(seconds):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def call(self, path: str = PULL, body: bytes = b"abc", **more: str) -> bytes:
        """Call as a client whose key is registered."""
        return await self.talk(request(path, body, **more))


def request(path: str = PULL, body: bytes = b"abc", method: str = "POST", **more: str) -> bytes:
    """Write a request of ann, with further headers, or without those that are empty."""
    headers = {"host": "x", "content-length": str(len(body)), "connection": "close"}
    headers |= signed_headers(KEYS["ann"]) | {k.replace("_", "-"): v for k, v in more.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@asynccontextmanager
async def place(folder: Path, limits: Limits = LIMITS, ready: bool = True) -> AsyncIterator[Place]:
    """Open a gate before a stand-in for SuperLink."""
    authority = keys.new_authority("fed")
    made = keys.new_server(authority, keys.LOOPBACK)
    paths = [folder / name for name in ("ca.crt", "server.crt", "server.key")]
    for path, data in zip(paths, (authority.certificate, made.certificate, made.key), strict=True):
        write_private(path, data)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(paths[1], paths[2])
    link = Link()
    behind = await asyncio.start_server(link.connection, "127.0.0.1", 0, ssl=tls)
    known = {keys.public_key(KEYS["ann"]): "ann"}
    gate = Gate(
        ("127.0.0.1", behind.sockets[0].getsockname()[1]),
        ssl.create_default_context(cafile=str(paths[0])),
        known.get,
        lambda name: {"federation": "fed", "client": name, "version": __version__},
        lambda: ready,
        limits,
    )
    listening = await gate.serve("127.0.0.1", 0, tls)
    try:
        yield Place(gate, link, listening.sockets[0].getsockname()[1], paths[0])
    finally:
        listening.close()
        behind.close()


def status(answer: bytes) -> int:
    """Return the status of an answer; 0 where there is none."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


def played(folder: Path, play: Callable[[Place], Awaitable[None]], **how: object) -> None:
    """Play before a gate."""

    async def whole() -> None:
        async with place(folder, **how) as opened:  # type: ignore[arg-type]
            await play(opened)

    asyncio.run(whole())


def test_a_call_of_a_registered_client_passes_with_what_flower_needs(tmp_path: Path) -> None:
    async def play(at: Place) -> None:
        data = request(cookie="a=b", content_type="application/protobuf")
        answer = await at.talk(data)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert (status(answer), body) == (200, b"cba")
        assert b"flwr-x: 1" in head
        assert b"secret" not in head
        (came,) = at.link.came
        assert came[0] == f"POST {PULL} HTTP/1.1"
        assert came[1]["content-type"] == "application/protobuf"
        assert "flwr-signature" in came[1]
        assert "cookie" not in came[1]
        assert at.gate.seen["ann"].requests == 1
        assert at.gate.seen["ann"].up == len(data)
        assert at.gate.seen["ann"].down == len(answer)

    played(tmp_path, play)


def test_bodies_in_pieces_pass_whole(tmp_path: Path) -> None:
    async def play(at: Place) -> None:
        chunked = b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
        answer = await at.call(body=chunked, content_length="", transfer_encoding="chunked")
        assert at.link.came[0][2] == b"abcdefg"
        assert answer.endswith(b"gfedcba")

    played(tmp_path, play)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/pull-task-input",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/pull-messages?x=/v1/control/start-run",
        "/v1/fleet//pull-messages",
        "//v1/fleet/pull-messages",
        "/V1/FLEET/PULL-MESSAGES",
        "http://127.0.0.1/v1/control/start-run",
        "/docs",
        "/",
        "*",
    ],
)
def test_no_other_path_passes_even_with_a_registered_key(tmp_path: Path, path: str) -> None:
    async def play(at: Place) -> None:
        assert status(await at.call(path)) == 404
        assert at.link.came == []

    played(tmp_path, play)


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "CONNECT"])
def test_no_other_method_passes(tmp_path: Path, method: str) -> None:
    async def play(at: Place) -> None:
        assert status(await at.call(method=method)) in (400, 404)
        assert at.link.came == []

    played(tmp_path, play)


def shifted(seconds: float) -> dict[str, str]:
    """Return what ann signs with a clock that is off."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = keys.client_key(KEYS["ann"])
    at = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    signature = base64.b64encode(key.sign(at.encode(), ec.ECDSA(hashes.SHA256()))).decode()
    return signed_headers(KEYS["ann"]) | {"flwr-timestamp": at, "flwr-signature": signature}


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        (lambda: signed_headers(KEYS["foreign"]), b"not registered"),
        (lambda: dict.fromkeys(signed_headers(KEYS["ann"]), ""), b"no key"),
        (lambda: {"flwr-public-key": "!"}, b"no key"),
        (lambda: {"flwr-public-key": base64.b64encode(b"no PEM").decode()}, b"no key"),
        (lambda: {"flwr-timestamp": "yesterday"}, b"no key"),
        (lambda: {"flwr-timestamp": "2026-01-01T00:00:00"}, b"no key"),
        (lambda: {"flwr-timestamp": "2026-01-01T00:00:00+00:00"}, b"signature"),
        (
            lambda: {"flwr-signature": signed_headers(KEYS["foreign"])["flwr-signature"]},
            b"signature",
        ),
        (lambda: shifted(+60), b"clock"),
        (lambda: shifted(-400), b"clock"),
    ],
)
def test_who_does_not_prove_a_registered_key_is_refused(
    tmp_path: Path, headers: Callable[[], dict[str, str]], named: bytes
) -> None:
    async def play(at: Place) -> None:
        # Signed now, and not when tests were collected.
        said = headers()
        answer = await at.call(**{name.replace("-", "_"): each for name, each in said.items()})
        assert status(answer) == 401
        assert named in answer
        assert at.link.came == []
        assert at.gate.seen == {}

    played(tmp_path, play)


def test_plain_http_is_refused(tmp_path: Path) -> None:
    async def play(at: Place) -> None:
        assert await at.talk(request(), tls=False) == b""
        assert at.link.came == []
        assert status(await at.call()) == 200

    played(tmp_path, play)


@pytest.mark.parametrize(
    "body",
    [
        (b"x" * 100, {"content_length": str(LIMITS.body + 1)}),
        (
            b"".join(b"%x\r\n" % 65536 + b"x" * 65536 + b"\r\n" for _ in range(20)),
            {"content_length": "", "transfer_encoding": "chunked"},
        ),
    ],
)
def test_what_is_too_large_is_refused(tmp_path: Path, body: tuple[bytes, dict[str, str]]) -> None:
    async def play(at: Place) -> None:
        await at.call(body=body[0], **body[1])
        assert at.gate.refused["too large"] == 1
        assert at.link.came == []

    played(tmp_path, play)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 4000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2000,
        request(content_length="-1"),
        request(content_length="3", transfer_encoding="chunked"),
        b"POST " + PULL.encode() + b" HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        request().replace(b"\r\nhost", b"\r\n host"),
    ],
)
def test_malformed_heads_are_refused(tmp_path: Path, data: bytes) -> None:
    async def play(at: Place) -> None:
        assert status(await at.talk(data)) in (0, 400, 401, 404, 431)
        assert at.link.came == []

    played(tmp_path, play, limits=IMPATIENT)


def test_slow_clients_are_let_go(tmp_path: Path) -> None:
    async def play(at: Place) -> None:
        whole = request(body=b"x" * 50)
        for part in (b"", whole[:20], whole[:-10]):
            assert status(await at.talk(part)) == 0
        assert at.gate.refused["TimeoutError"] == 3
        assert status(await at.call()) == 200

    played(tmp_path, play, limits=IMPATIENT)


def test_no_more_connections_are_taken_than_the_limit_says(tmp_path: Path) -> None:
    async def play(at: Place) -> None:
        answers = await asyncio.gather(*(at.talk(b"") for _ in range(9)))
        assert answers == [b""] * 9
        assert at.gate.refused["too many connections"] == 3
        assert status(await at.call()) == 200

    played(tmp_path, play, limits=IMPATIENT)


@asynccontextmanager
async def silent(port: int, count: int) -> AsyncIterator[None]:
    """Have connections that say nothing, not even what TLS begins with."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        yield
    finally:
        for _, writer in opened:
            writer.close()


def test_who_says_nothing_takes_up_the_room_of_its_address_alone(tmp_path: Path) -> None:
    """It is counted before TLS begins, and let go when the time for that is over."""

    async def play(at: Place) -> None:
        async with silent(at.port, 20):
            assert await at.talk(request(), seconds=5.0) == b""
            assert at.gate.refused["too many connections"] >= 20 - LIMITS.of_one_address
            await asyncio.sleep(1.0)
            assert status(await at.call()) == 200

    played(tmp_path, play, limits=replace(LIMITS, handshake_seconds=0.8))


def test_descriptors_that_have_run_out_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(at: Place) -> None:
        loop, left = asyncio.get_running_loop(), [OSError(24, "Too many open files")]
        accept = loop.sock_accept

        async def accepting(listening: socket.socket) -> tuple[socket.socket, object]:
            if left:
                raise left.pop()
            return await accept(listening)

        monkeypatch.setattr(loop, "sock_accept", accepting)
        # The first accept is under way already, and takes the first.
        assert [status(await at.call()) for _ in range(3)] == [200] * 3
        assert at.gate.refused["OSError"] == 1

    played(tmp_path, play)


def test_limits_fit_the_open_files_that_there_are() -> None:
    limits = Limits()
    assert limits.within(limits.files) == limits
    assert limits.within(1024).files <= 1024
    assert limits.within(1024).connections < limits.connections


def test_a_client_is_told_to_come_again_while_the_server_starts(tmp_path: Path) -> None:
    async def play(at: Place) -> None:
        assert status(await at.call()) == 503

    played(tmp_path, play, ready=False)


def test_a_client_is_told_to_come_again_where_superlink_is_gone(tmp_path: Path) -> None:
    async def play(at: Place) -> None:
        at.gate.upstream = ("127.0.0.1", 9)
        assert status(await at.call()) == 503

    played(tmp_path, play)


def test_hello_is_answered_by_the_gate_itself(tmp_path: Path) -> None:
    async def play(at: Place) -> None:
        answer = await at.call(HELLO.decode(), body=b"")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["client"] == "ann"
        assert at.link.came == []
        address = f"127.0.0.1:{at.port}"
        found = await asyncio.to_thread(say_hello, address, at.authority, KEYS["ann"])
        assert found == Greeting("fed", "ann", __version__, found.ends)
        assert keys.days_until(found.ends) == pytest.approx(keys.SERVER_DAYS, abs=0.1)

    played(tmp_path, play)


def test_hello_says_why_it_was_refused(tmp_path: Path, golden: Golden) -> None:
    async def play(at: Place) -> None:
        address = f"127.0.0.1:{at.port}"
        other = tmp_path / "other.crt"
        other.write_bytes(keys.new_authority("other").certificate)
        with raises("E624", address) as foreign:
            await asyncio.to_thread(say_hello, address, at.authority, KEYS["foreign"])
        with raises("E624", address) as unproven:
            await asyncio.to_thread(say_hello, address, other, KEYS["ann"])
        at.gate.greeting = lambda name: {"federation": "f", "client": name, "version": "0.0.1"}
        with raises("E625", "0.0.1") as older:
            await asyncio.to_thread(say_hello, address, at.authority, KEYS["ann"])
        for refusal in (foreign, unproven, older):
            golden(refusal.value)
        at.gate.ready = lambda: False
        with pytest.raises(Unreachable):
            await asyncio.to_thread(say_hello, address, at.authority, KEYS["ann"])
        with pytest.raises(Unreachable):
            await asyncio.to_thread(say_hello, "127.0.0.1:9", at.authority, KEYS["ann"])

    played(tmp_path, play)
