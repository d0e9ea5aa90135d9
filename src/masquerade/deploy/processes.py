"""Processes that are kept running: started, recorded, restarted after a wait, and ended for sure.

A process is known by its number and by when it started, so that no other one that was given the
same number is ever taken for it.
"""

import asyncio
import json
import logging
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import BinaryIO

from masquerade.deploy.private import private_folder
from masquerade.errors import MasqueradeError
from masquerade.storage import atomic

FOLDER = "processes"
"""In the folder of a server or a client: a file for every process that runs."""
PATIENCE = 15.0
"""Seconds that a process has to end when it is asked to."""
STEADY = 60.0
"""Whoever ran so many seconds is restarted without a longer wait."""
LOG_BYTES = 4 << 20


@dataclass(frozen=True)
class Process:
    """One process of this machine, now or once."""

    name: str
    number: int
    started: str
    """When it started, as the system tells it."""

    @staticmethod
    def here(name: str) -> "Process":
        """Return the process that calls."""
        return Process.of(name, os.getpid())

    @staticmethod
    def of(name: str, number: int) -> "Process":
        """Return the process that has a number now."""
        return Process(name, number, _started(number) or "")

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.started != "" and _started(self.number) == self.started

    def record(self, folder: Path) -> None:
        """Write it down, so that whoever comes later finds it."""
        (folder / FOLDER).mkdir(exist_ok=True)
        text = json.dumps({"number": self.number, "started": self.started})
        atomic.write_file(folder / FOLDER / f"{self.name}.json", text.encode())

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.number, number)


def forget(folder: Path, name: str) -> None:
    """Remove the record of a process."""
    atomic.discard(folder / FOLDER / f"{name}.json")


def recorded(folder: Path) -> dict[str, Process]:
    """Return the processes that a folder records, running or not, by their names."""
    found = {}
    for path in sorted((folder / FOLDER).glob("[!.]*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(path.read_text(encoding="utf-8"))
            found[path.stem] = Process(path.stem, int(record["number"]), str(record["started"]))
    return found


def running(folder: Path) -> dict[str, Process]:
    """Return the processes that a folder records and that run."""
    return {name: each for name, each in recorded(folder).items() if each.alive()}


def end(processes: Iterable[Process], patience: float = PATIENCE) -> list[Process]:
    """End processes and all that they started; return those that had to be killed."""
    first = [each for each in processes if each.alive()]
    all_of_them = [*first, *(child for each in first for child in _descendants(each))]
    for each in first:
        each.signal(signal.SIGTERM)
    _wait(first, patience)
    left = [each for each in all_of_them if each.alive()]
    for each in left:
        each.signal(signal.SIGTERM)
    _wait(left, 3.0)
    killed = [each for each in left if each.alive()]
    for each in killed:
        each.signal(signal.SIGKILL)
    _wait(killed, 3.0)
    return killed


def _wait(processes: Sequence[Process], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(each.alive() for each in processes):
        time.sleep(0.05)


def _descendants(process: Process) -> list[Process]:
    """Return the children of a process, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for number in _numbers():
        parent = _stat(number)[1:2]
        if parent:
            children.setdefault(int(parent[0]), []).append(number)
    found, waiting = [], [process.number]
    while waiting:
        for number in children.get(waiting.pop(), ()):
            found.append(Process.of(process.name, number))
            waiting.append(number)
    return found


def _session(name: str, number: int) -> list[Process]:
    """Return what is left of the session that a process began: what it started, and theirs."""
    return [Process.of(name, each) for each in _numbers() if _stat(each)[3:4] == [str(number)]]


def _numbers() -> list[int]:
    with suppress(FileNotFoundError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _stat(number: int) -> list[str]:
    """Return what Linux tells of a process from its state on; nothing where there is none."""
    try:
        text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name stands in parentheses, and may hold any.
    fields = text.rpartition(")")[2].split()
    return [] if fields[0] == "Z" else fields


def _started(number: int) -> str | None:
    """Return when a process started; None where there is none."""
    if sys.platform == "linux":
        fields = _stat(number)
        return fields[19] if fields else None
    told = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(number)], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or None


@dataclass
class Kept:
    """A process that is started again whenever it ends."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    """Of the server or the client; its record and its log are there."""
    first_wait: float = 1.0
    longest_wait: float = 30.0
    descriptors: Sequence[int] = ()
    """Open files that it is given."""
    user: str | None = None
    started: Callable[[], Awaitable[None]] | None = None
    """Called after every start."""
    ended: Callable[[int, Sequence[str]], Awaitable[None]] | None = None
    """Called with the status and the last lines after every end; it may raise to give up."""
    quiet: Callable[[str], bool] | None = None
    """Which lines are not worth a place in the log."""
    heard: Callable[[str], None] | None = None
    """Called with every other line."""
    starts: int = 0
    lines: list[str] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None
    _reading: "asyncio.Task[None] | None" = None

    async def keep(self) -> None:
        """Run it until this is canceled, which ends it."""
        wait = self.first_wait
        try:
            while True:
                begun = time.monotonic()
                status = await self._run()
                if self.ended is not None:
                    await self.ended(status, self.lines[-20:])
                wait = self.first_wait if time.monotonic() - begun > STEADY else wait
                await asyncio.sleep(wait)
                wait = min(2 * wait, self.longest_wait)
        finally:
            await asyncio.shield(self.stop())

    async def _run(self) -> int:
        self.lines = []
        process, output = await self._start()
        self._process = process
        self.starts += 1
        Process.of(self.name, process.pid).record(self.folder)
        self._reading = asyncio.create_task(self._log(output))
        if self.started is not None:
            await self.started()
        status = await process.wait()
        # What it started would keep its sockets, and its output open.
        await asyncio.to_thread(end, _session(self.name, process.pid))
        await self._read()
        forget(self.folder, self.name)
        return status

    async def _start(self) -> tuple[asyncio.subprocess.Process, BinaryIO]:
        """Start it; return it, and what it writes."""
        # With asyncio's own pipe it would count as ended only when all that it started has ended.
        read, write = os.pipe()
        output = os.fdopen(read, "rb", buffering=0)
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                env=self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                pass_fds=self.descriptors,
                user=self.user,
                group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
                extra_groups=None if self.user is None else [],
                start_new_session=True,
            )
        except BaseException:
            output.close()
            raise
        finally:
            os.close(write)
        return process, output

    async def _read(self) -> None:
        """Read the rest of its output; what it started may hold that open for longer."""
        if self._reading is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reading, 1.0)

    async def _log(self, output: BinaryIO) -> None:
        stream = asyncio.StreamReader(limit=1 << 20)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), output
        )
        log = rotating(self.folder, self.name)
        try:
            while True:
                try:
                    data = await stream.readline()
                except ValueError:
                    continue
                if not data:
                    return
                line = data.decode(errors="replace").rstrip()
                if self.quiet is None or not self.quiet(line):
                    log.emit(logging.LogRecord("", 0, "", 0, line, None, None))
                    self.lines = [*self.lines[-99:], line]
                    if self.heard is not None:
                        self.heard(line)
        finally:
            pipe.close()
            log.close()

    async def stop(self) -> None:
        """End it and what it started."""
        if self._process is not None and self._process.returncode is None:
            process = Process.of(self.name, self._process.pid)
            await asyncio.to_thread(end, [process])
            await self._process.wait()
            await self._read()
        forget(self.folder, self.name)


def rotating(folder: Path, name: str) -> RotatingFileHandler:
    """Return the log of a process: 4 MB at most, and one that is older.

    A worker's has what is wrong with data, values too: it is not for the node's user, who runs what
    a server ships and may pass through the folder.
    """
    path = private_folder(folder / "logs") / f"{name}.log"
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    return handler


def stop(folder: Path) -> list[str]:
    """End all that was started for a server or a client; return the names of what was ended."""
    found = recorded(folder)
    if not found:
        return []
    alive = {name: each for name, each in found.items() if each.alive()}
    # The supervisor ends the others in their order, and would start them again.
    for names in ({SUPERVISOR}, alive.keys() - {SUPERVISOR}):
        end([alive[name] for name in names if name in alive])
    for name in found:
        forget(folder, name)
    return sorted(alive)


SUPERVISOR = "supervisor"


def again(name: str, status: int) -> str:
    """Say that a process has ended, and is started again."""
    return f"W620 {name} ended with status {status}; it is started again"


def be_supervisor(folder: Path) -> None:
    """Record the process that calls as the one that keeps the others; there is only one."""
    found = running(folder)
    if SUPERVISOR in found:
        text = f"{folder} is run already, by process {found[SUPERVISOR].number}"
        raise MasqueradeError("E623", f"{text}; `masquerade deploy stop {folder}` ends it")
    # Left by one that was killed.
    stop(folder)
    Process.here(SUPERVISOR).record(folder)
