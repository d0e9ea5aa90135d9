"""Three machines, each with a network of its own: what an operator has, without three computers.

As root, on Linux: `pytest -m drill tests/deploy/test_namespaces.py`. Every machine is a network
namespace with its own address and loopback, and a switch between them that can be unplugged.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from masquerade.deploy.layout import ServerFolder
from masquerade.deploy.processes import running
from masquerade.deploy.replay import replay
from tests.deploy.machines import Machines, alone

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(1700),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="only root makes network namespaces"
    ),
]

PORT = 8443
PLACES = ("server", "client-1", "client-2")
ADDRESSES = {name: f"10.77.0.{number}" for number, name in enumerate(PLACES, 1)}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@contextmanager
def networks() -> Iterator[dict[str, str]]:
    """Make a namespace for each machine, and one that joins them; by machine, their names."""
    prefix = f"mq{os.getpid()}"
    switch, spaces = f"{prefix}-switch", {name: f"{prefix}-{name}" for name in PLACES}
    made = []
    try:
        for space in (switch, *spaces.values()):
            ip("netns", "add", space)
            made.append(space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for name, space in spaces.items():
            ip("-n", space, "link", "add", "wire", "type", "veth", "peer", name, "netns", switch)
            ip("-n", switch, "link", "set", name, "master", "bridge", "up")
            ip("-n", space, "addr", "add", f"{ADDRESSES[name]}/24", "dev", "wire")
            ip("-n", space, "link", "set", "wire", "up")
        yield spaces
    finally:
        for space in made:
            ip("netns", "del", space)


class Apart(Machines):
    """A server and clients, each in a network of its own."""

    def __init__(self, folder: Path, spaces: dict[str, str], rounds: int) -> None:
        fleet = {"host": ADDRESSES["server"], "port": PORT, "quorum": 1, "deadline": 40.0}
        super().__init__(folder, "dmpfl", clients=2, rounds=rounds, fleet=fleet)
        self.spaces = spaces

    def start(self, name: str, words: list[str], log: Path) -> None:
        self.started[name] = self.trial.start(
            words, log, ["ip", "netns", "exec", self.spaces[name]]
        )

    def reaches(self, name: str, port: int) -> bool:
        """Tell whether a machine reaches a port of the server."""
        code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
        words = [sys.executable, "-c", code, ADDRESSES["server"], str(port)]
        done = subprocess.run(
            ["ip", "netns", "exec", self.spaces[name], *words],
            capture_output=True,
            timeout=60,
            check=False,
        )
        return done.returncode == 0

    def link_port(self) -> int:
        """Return the port at which SuperLink listens, on the server's loopback."""
        process = running(ServerFolder(self.folder).state)["superlink"]
        words = Path(f"/proc/{process.number}/cmdline").read_bytes().split(b"\0")
        return int(words[words.index(b"--port") + 1])


def test_three_machines_train_through_a_network_that_was_unplugged(tmp_path: Path) -> None:
    with alone(), networks() as spaces, Apart(tmp_path / "fed", spaces, 12) as machines:
        machines.round(1)
        assert machines.reaches("client-1", PORT)
        assert not machines.reaches("client-1", machines.health)
        assert not machines.reaches("client-1", machines.link_port())
        ip("-n", spaces["client-2"], "link", "set", "wire", "down")
        machines.wait(lambda status: status.lost > 0)
        ip("-n", spaces["client-2"], "link", "set", "wire", "up")
        unplugged = len(machines.rounds())
        machines.finish()
        back = [line["clients"] for line in machines.rounds()[unplugged:]]
        assert [0, 1] in back
        assert machines.status().lost >= 1
    found = replay(tmp_path / "fed")
    assert (found.rounds, found.differences) == (12, [])
