"""Real federations on this machine: a server and clients as their own processes, over Flower."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.founding import found
from masquerade.deploy.layout import ClientFolder, ServerFolder
from masquerade.deploy.ports import free_ports
from masquerade.deploy.processes import running, stop
from masquerade.deploy.status import Status
from masquerade.deploy.trial import Trial


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other test has a federation of real processes: they take gigabytes."""
    path = Path(tempfile.gettempdir()) / "masquerade-test-federations.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Machines:
    """A server and its clients, which can be hurt."""

    def __init__(
        self,
        folder: Path,
        method: str,
        clients: int = 2,
        rounds: int = 2,
        fleet: Mapping[str, object] | None = None,
        privacy: Mapping[str, object] | None = None,
        **train: object,
    ) -> None:
        port, self.health = free_ports(2)
        names = [f"client-{number}" for number in range(1, clients + 1)]
        config = FederationConfig.parse(
            {
                "methods": [method],
                "data": {"name": "digits"},
                "train": {"rounds": rounds, **train},
                "method": {method: {"local_epochs": 1}},
                "privacy": privacy or {},
                "fleet": {"name": "trial", "clients": names, "port": port, **(fleet or {})},
            }
        )
        self.trial = Trial(folder, config, self.health, "digits", "dirichlet:0.5")
        self.folder, self.names = folder, names
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Machines":
        files = found(self.folder, self.trial.config)
        for number, path in enumerate(files):
            self.trial.prepare(path, number, len(files))
        self.serve()
        for name in self.names:
            self.join(name)
        return self

    def __exit__(self, *rest: object) -> None:
        for process in reversed(self.started.values()):
            process.terminate()
        for process in self.started.values():
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
        for folder in (*map(self.home, self.names), self.state):
            stop(folder)

    @property
    def state(self) -> Path:
        return ServerFolder(self.folder).state

    def home(self, name: str) -> Path:
        return self.trial.homes / name

    def serve(self) -> None:
        """Start the server."""
        words = ["server", str(self.folder), "--health-port", str(self.health)]
        self.start("server", words, self.folder / "server.log")

    def join(self, name: str) -> None:
        """Start a client."""
        home = self.home(name)
        self.start(name, ["join", str(home)], home / "join.log")

    def start(self, name: str, words: list[str], log: Path) -> None:
        """Start a command as the one that a machine runs."""
        self.started[name] = self.trial.start(words, log)

    def status(self) -> Status:
        return Status.read(self.folder) or Status(doing="nothing")

    def wait(self, claim: Callable[[Status], bool], seconds: float = 1500.0) -> Status:
        """Wait until something holds of how training is."""
        end = time.monotonic() + seconds
        while not claim(status := self.status()):
            assert time.monotonic() < end, self.told()
            for name, process in self.started.items():
                assert process.poll() is None, f"{name} has ended\n{self.told()}"
            time.sleep(0.1)
        return status

    def finish(self, seconds: float = 1500.0) -> None:
        """Wait until training is done."""
        self.wait(lambda status: status.doing == "finished", seconds)

    def round(self, number: int, seconds: float = 1500.0) -> None:
        """Wait until so many rounds are done, and clients work for the next one."""
        self.wait(lambda status: status.round >= number and bool(status.outstanding), seconds)

    def kill(self, folder: Path, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process that a folder records."""
        process = running(folder)[name]
        process.signal(number)

    def kill_client_app(self, name: str, seconds: float = 300.0) -> None:
        """Kill the app that Flower starts for a message, once it is there."""
        end = time.monotonic() + seconds
        port = self.node_port(name)
        while time.monotonic() < end:
            for number in filter(str.isdigit, os.listdir("/proc")):
                try:
                    line = Path(f"/proc/{number}/cmdline").read_bytes()
                except OSError:
                    continue
                if b"flwr-clientapp" in line and port in line:
                    os.kill(int(number), signal.SIGKILL)
                    return
            time.sleep(0.02)
        raise AssertionError("no client app was seen")

    def node_port(self, name: str) -> bytes:
        """Return the port at which a node's own processes find it."""
        process = running(self.home(name))["supernode"]
        words = Path(f"/proc/{process.number}/cmdline").read_bytes().split(b"\0")
        return b"127.0.0.1:" + words[words.index(b"--port") + 1]

    def rounds(self) -> list[dict[str, object]]:
        """Return the record of each round."""
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def member(self, name: str) -> Path:
        return ClientFolder(self.home(name)).member

    def told(self) -> str:
        """Return what all of them said, for a test that fails."""
        logs = [self.folder / "server.log", *sorted((self.state / "logs").glob("*.log"))]
        for name in self.names:
            home = self.home(name)
            logs += [home / "join.log", *sorted((home / "logs").glob("*.log"))]
        said = [f"{self.status()}"]
        for path in filter(Path.exists, logs):
            text = path.read_text(encoding="utf-8", errors="replace")
            said.append(f"--- {path.relative_to(self.folder)}\n{text[-1500:]}")
        return "\n".join(said)


def masquerade(*words: object) -> subprocess.CompletedProcess[str]:
    """Call the command."""
    return subprocess.run(
        [sys.executable, "-m", "masquerade", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
