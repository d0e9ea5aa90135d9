"""The process of a client that stays: it has the data and the states, and answers over a socket.

So torch is imported once, and what a server ships reaches a socket, not the data. One call is
answered after the other; others wait in the socket's queue. Whoever keeps this process opened the
socket, so calls wait also while it starts anew.
"""

import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LENGTH = struct.Struct("<BQ")
"""Before what is said: whether it is an answer (0) or an error (1), and its length."""
LARGEST = 4 << 30
PATIENCE = 60.0
"""Seconds that either side waits for the other's next bytes, apart from the work itself."""
READY = "ready"
"""The line that a worker prints when it can answer."""
REFUSED = 3
"""The status it ends with where its owner has to mend something; the last line says what."""


def ask(path: str, data: bytes, seconds: float) -> bytes:
    """Ask the worker behind a socket, and return its answer."""
    with socket.socket(socket.AF_UNIX) as to:
        to.settimeout(seconds)
        to.connect(path)
        _send(to, 0, data)
        failed, answer = _receive(to)
    if failed:
        raise RuntimeError(answer.decode(errors="replace"))
    return answer


def serve(listening: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """Answer whoever asks, one after the other, for ever."""
    while True:
        peer, _ = listening.accept()
        # Whoever goes away before the answer does not need it.
        with peer, suppress(OSError, EOFError):
            peer.settimeout(PATIENCE)
            _, data = _receive(peer)
            try:
                failed, said = 0, answer(data)
            except Exception as error:
                failed, said = 1, f"{type(error).__name__}: {error}".encode()
                print(said.decode(), flush=True)
            _send(peer, failed, said)


def _send(to: socket.socket, failed: int, data: bytes) -> None:
    to.sendall(LENGTH.pack(failed, len(data)))
    # Whoever answers nothing may have answered already.
    if data:
        to.sendall(data)


def _receive(of: socket.socket) -> tuple[int, bytes]:
    failed, size = LENGTH.unpack(_take(of, LENGTH.size))
    if size > LARGEST:
        raise EOFError(f"{size} bytes are too many")
    return failed, _take(of, size)


def _take(of: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = of.recv(min(1 << 20, size - len(found)))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def main(folder: Path, descriptor: int) -> None:
    """Answer calls to the client of a folder over the socket that was opened for it."""
    from masquerade.deploy.member import open_member
    from masquerade.errors import MasqueradeError

    try:
        member = open_member(folder)
        # Now, while somebody looks: a server may ask much later, when its quorum is there.
        member.try_data()
    except MasqueradeError as error:
        print(error, flush=True)
        sys.exit(REFUSED)
    # A worker that was killed has left what it did then.
    member.note(doing="waiting")
    print(READY, flush=True)
    with socket.socket(fileno=descriptor) as listening:
        listening.setblocking(True)
        serve(listening, member.answer)


if __name__ == "__main__":
    os.umask(0o077)
    main(Path(sys.argv[1]), int(sys.argv[2]))
