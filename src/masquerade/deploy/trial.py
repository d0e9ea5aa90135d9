"""A federation on one machine, for trying out: a server and clients, as their own processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from masquerade.config.settings import TABLE_OPTIONS
from masquerade.deploy import joining
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.founding import found
from masquerade.deploy.join_file import JoinFile
from masquerade.deploy.layout import ClientFolder, ServerFolder
from masquerade.deploy.private import write_private
from masquerade.deploy.processes import stop
from masquerade.deploy.status import Status
from masquerade.errors import MasqueradeError
from masquerade.results import Summary
from masquerade.storage.results import read_results

LOOK = 0.3


@dataclass
class Trial:
    """A federation on one machine: its server's folder, and one for each of its clients."""

    folder: Path
    config: FederationConfig
    health: int
    data: str
    """The data that are shared out among the clients."""
    partition: str
    """How they are."""

    @property
    def homes(self) -> Path:
        """Where clients' folders are."""
        return self.folder / "machines"

    def run(self, watch: Callable[[Status | None], None]) -> None:
        """Have all of it run until training is done, then end all of it."""
        files = found(self.folder, self.config)
        started: list[subprocess.Popen[bytes]] = []
        try:
            words = ["server", str(self.folder), "--health-port", str(self.health)]
            started.append(self.start(words, self.folder / "server.log"))
            for number, path in enumerate(files):
                home = self.prepare(path, number, len(files))
                started.append(self.start(["join", str(home)], home / "join.log"))
            self._follow(started, watch)
        finally:
            # The server last: clients take their leave of it.
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait(timeout=60)
            for folder in (*self.homes.glob("*"), ServerFolder(self.folder).state):
                stop(folder)

    def results(self) -> Sequence[Summary]:
        """Return what training came to."""
        return read_results(self.folder)

    def prepare(self, path: Path, number: int, count: int) -> Path:
        """Lay out a client's folder, with its share of the data; return the folder."""
        layout, data = ClientFolder(self.homes / path.stem), self.config.config.data
        joining.prepare(layout, JoinFile.read(path), joining.Users())
        share = {"clients": count, "partition": self.partition, "seed": data.seed, "client": number}
        columns = {key: getattr(data, key) for key in TABLE_OPTIONS.values() if getattr(data, key)}
        record = {
            "data": {"name": self.data, **columns, **share},
            "code": {"paths": [*self.config.fleet.code]},
        }
        write_private(layout.data, tomli_w.dumps(record).encode())
        members = self.folder / "members"
        members.mkdir(exist_ok=True)
        # Where a replay looks for them.
        (members / path.stem).symlink_to(layout.member)
        return layout.path

    def start(
        self, words: list[str], log: Path, within: Sequence[str] = ()
    ) -> "subprocess.Popen[bytes]":
        """Start a command of `masquerade deploy`, as its own process; `within` another program."""
        with log.open("wb") as output:
            return subprocess.Popen(
                [*within, sys.executable, "-m", "masquerade", "deploy", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def _follow(
        self,
        started: Sequence["subprocess.Popen[bytes]"],
        watch: Callable[[Status | None], None],
    ) -> None:
        while True:
            status = Status.read(self.folder)
            watch(status)
            if status is not None and status.doing == "finished":
                return
            for process in started:
                if process.poll() is not None:
                    raise self.why_ended(started.index(process))
            time.sleep(LOOK)

    def why_ended(self, place: int) -> MasqueradeError:
        """Return why a process of the trial ended early."""
        homes = sorted(self.homes.glob("*"))
        log = self.folder / "server.log" if place == 0 else homes[place - 1] / "join.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = lines[-1] if lines else "it said nothing"
        code, _, text = last.partition(" ")
        if code[:1] == "E" and code[1:].isdigit():
            return MasqueradeError(code, text)
        return MasqueradeError("E627", f"a process of the trial ended early: {last}")
