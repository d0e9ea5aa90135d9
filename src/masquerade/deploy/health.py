"""A page of the loopback that says how a server is, as `masquerade deploy status --json` does."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

from masquerade.deploy.layout import ServerFolder
from masquerade.deploy.overview import overview

SECONDS = 5.0
HEAD = 8 << 10


def answer(layout: ServerFolder) -> tuple[bool, bytes]:
    """Return whether all is well, and what is told."""
    found = overview(layout)
    return found.well, json.dumps(found.record(), indent=1).encode()


async def serve(port: int, told: Callable[[], tuple[bool, bytes]]) -> asyncio.Server:
    """Answer every GET on a port of the loopback: 200 where all is well, else 503."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            async with asyncio.timeout(SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_reply(head, told))
                await writer.drain()
        writer.close()

    return await asyncio.start_server(connection, "127.0.0.1", port, limit=HEAD)


def _reply(head: bytes, told: Callable[[], tuple[bool, bytes]]) -> bytes:
    if not head.startswith(b"GET "):
        return b"HTTP/1.1 405 \r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    well, body = told()
    status = b"200" if well else b"503"
    return (
        b"HTTP/1.1 %s \r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % (status, len(body))
    ) + body
