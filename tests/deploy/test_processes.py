"""Processes are kept running, known by when they started, and ended with all that they started."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from masquerade.deploy import processes
from masquerade.deploy.processes import FOLDER, SUPERVISOR, Kept, Process
from masquerade.errors import MasqueradeError
from tests.messages import Golden
from tests.support import raises

SLEEP = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"


@contextmanager
def started(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of Python in a session of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(claim: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not claim() and time.monotonic() < end:
        time.sleep(0.02)
    return claim()


def test_a_process_that_was_given_the_same_number_is_another() -> None:
    with started(SLEEP) as child:
        process = Process.of("it", child.pid)
        assert process.alive()
        assert not Process("it", child.pid, "1").alive()
        Process("it", child.pid, "1").signal(signal.SIGKILL)
        assert process.alive()


def test_a_process_that_ended_is_not_alive_even_before_it_is_waited_for() -> None:
    with started("pass") as child:
        process = Process.of("it", child.pid)
        assert until(lambda: not process.alive())


def test_ending_ends_what_was_started_too() -> None:
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        f"{SLEEP!r}], start_new_session=True); print(child.pid, flush=True); child.wait()"
    )
    with started(code) as parent:
        assert parent.stdout is not None
        child = Process.of("child", int(parent.stdout.readline()))
        assert child.alive()
        assert processes.end([Process.of("parent", parent.pid)]) == []
        assert parent.wait(5) == -signal.SIGTERM
        assert not child.alive()


def test_who_does_not_end_when_asked_is_killed() -> None:
    with started(DEAF + "; time.sleep(60)") as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = Process.of("deaf", child.pid)
        assert processes.end([process], patience=0.2) == [process]
        assert child.wait(5) == -signal.SIGKILL


def test_stopping_ends_what_was_recorded_and_forgets_it(tmp_path: Path) -> None:
    with started(SLEEP) as one, started(SLEEP) as other:
        Process.of("one", one.pid).record(tmp_path)
        Process("old", other.pid, "1").record(tmp_path)
        (tmp_path / FOLDER / "broken.json").write_text("{")
        assert processes.stop(tmp_path) == ["one"]
        assert one.wait(5) == -signal.SIGTERM
        assert other.poll() is None
        assert processes.recorded(tmp_path) == {}
        assert processes.stop(tmp_path) == []


def test_a_folder_has_one_supervisor(tmp_path: Path) -> None:
    with started(SLEEP) as left:
        with started(SLEEP) as other:
            Process.of(SUPERVISOR, other.pid).record(tmp_path)
            with raises("E623", tmp_path, other.pid):
                processes.be_supervisor(tmp_path)
        Process.of("left", left.pid).record(tmp_path)
        processes.be_supervisor(tmp_path)
        assert left.wait(5) == -signal.SIGTERM
        assert processes.running(tmp_path)[SUPERVISOR].number == os.getpid()


def kept(folder: Path, code: str, **how: object) -> Kept:
    """Return a process of Python to be kept."""
    command = [sys.executable, "-c", code]
    return Kept("it", command, dict(os.environ), folder, **how)  # type: ignore[arg-type]


async def run_for(seconds: float, process: Kept) -> None:
    """Keep a process running for a while."""
    task = asyncio.create_task(process.keep())
    await asyncio.sleep(seconds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_what_ends_is_started_again_after_longer_and_longer_waits(tmp_path: Path) -> None:
    times: list[float] = []

    async def ended(status: int, lines: Sequence[str]) -> None:
        assert (status, lines[-1]) == (3, "last words")
        times.append(time.monotonic())

    code = "import sys; print('last words'); sys.exit(3)"
    process = kept(tmp_path, code, first_wait=0.1, longest_wait=0.4, ended=ended)
    asyncio.run(run_for(2.5, process))
    gaps = [b - a for a, b in pairwise(times)]
    assert len(times) >= 3
    assert gaps[0] >= 0.1
    assert all(gap >= 0.2 for gap in gaps[1:])
    # The last one may have been cancelled between its words and its end.
    said = (tmp_path / "logs" / "it.log").read_text().count("last words")
    assert said - len(times) in (0, 1)
    assert processes.recorded(tmp_path) == {}


def test_what_is_killed_is_started_again_though_its_child_holds_its_output(tmp_path: Path) -> None:
    """A SuperNode that is killed leaves a process behind, which tries to reach it for minutes."""
    told: list[tuple[int, float]] = []

    async def ended(status: int, lines: Sequence[str]) -> None:
        told.append((status, time.monotonic()))

    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', "
        f"{SLEEP!r}]); print(child.pid, flush=True); time.sleep(60)"
    )

    async def killed() -> tuple[Process, float]:
        task = asyncio.create_task(process.keep())
        while not process.lines:
            await asyncio.sleep(0.02)
        child = Process.of("child", int(process.lines[-1]))
        assert child.alive()
        now = time.monotonic()
        processes.running(tmp_path)["it"].signal(signal.SIGKILL)
        for _ in range(500):
            await asyncio.sleep(0.02 if process.starts < 2 else 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return child, now

    process = kept(tmp_path, code, first_wait=0.1, ended=ended)
    child, now = asyncio.run(killed())
    assert [status for status, _ in told] == [-signal.SIGKILL]
    assert told[0][1] - now < 5
    assert process.starts == 2
    assert not child.alive()


def test_what_runs_is_recorded_and_ends_with_its_keeper(tmp_path: Path) -> None:
    process = kept(tmp_path, SLEEP)
    seen: list[Process] = []

    async def started_it() -> None:
        seen.append(processes.running(tmp_path)["it"])

    process.started = started_it
    asyncio.run(run_for(0.5, process))
    assert len(seen) == 1
    assert not seen[0].alive()


def test_whoever_hears_of_an_end_may_give_up(tmp_path: Path) -> None:
    async def ended(status: int, lines: Sequence[str]) -> None:
        raise MasqueradeError("E301", lines[-1])

    with raises("E301", "no data"):
        asyncio.run(kept(tmp_path, "print('no data')", ended=ended).keep())


def test_a_log_leaves_out_what_is_not_worth_its_place_and_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 2000)
    code = "[print(word, n) for n in range(500) for word in ('worth', 'noise')]"
    quiet = kept(tmp_path, code, first_wait=30.0, quiet=lambda line: line.startswith("noise"))
    asyncio.run(run_for(1.0, quiet))
    logs = sorted((tmp_path / "logs").iterdir())
    assert [path.name for path in logs] == ["it.log", "it.log.1"]
    assert all(path.stat().st_size <= 2000 for path in logs)
    assert "worth 499" in logs[0].read_text()
    assert not any("noise" in path.read_text() for path in logs)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as others")
def test_another_user_has_none_of_its_keepers_groups(tmp_path: Path) -> None:
    process = kept(tmp_path, "", user="nobody")
    process.command = ["/usr/bin/id"]
    asyncio.run(run_for(0.5, process))
    (line,) = [line for line in process.lines if line.startswith("uid=")][-1:]
    assert "(nobody)" in line
    assert "root" not in line


def test_an_end_is_told(golden: Golden) -> None:
    golden(processes.again("superlink", 1))


def test_records_are_written_whole(tmp_path: Path) -> None:
    Process.here("it").record(tmp_path)
    (path,) = (tmp_path / FOLDER).iterdir()
    assert json.loads(path.read_text())["number"] == os.getpid()


def test_logs_are_for_their_owner_alone(tmp_path: Path) -> None:
    """A worker's log says what is wrong with data; a node's user may pass through the folder."""
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o755)
    processes.rotating(tmp_path, "worker").close()
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
