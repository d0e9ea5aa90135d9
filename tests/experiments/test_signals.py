"""The command is stopped at random instants, by Ctrl-C or SIGTERM, and goes on to the same bits.

Run as a program, this file is the part that forks, in a process of its own that has one thread:
`python -m tests.experiments.test_signals FOLDER TIMES [PROCESSES ...]`. What is forked is the
command itself, from its arguments to its exit status.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from masquerade.config.toml import dump
from masquerade.experiments import run as experiment
from masquerade.experiments.callbacks import Callback
from masquerade.report import plots
from tests.experiments.test_resume import (
    ROOT,
    Telling,
    become_single,
    contents,
    problem,
    write_data,
)
from tests.reliability import publish

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli import app as cli

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 75}
"""What docs/errors.md says."""
SECONDS = 5.0
"""In which a process that was asked to end has ended."""
APART = 6
"""Rounds after which a run is stopped, at most."""
SAID = "said"
"""The file of what a process writes to its standard error."""


@pytest.mark.parametrize(
    ("times", "processes"),
    [(6, [1]), pytest.param(25, [1, 2], marks=pytest.mark.drill)],
    ids=["a few", "fifty"],
)
def test_stopped_at_random_instants_it_ends_in_the_same_bits(
    times: int, processes: list[int], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.experiments.test_signals", tmp_path, times, *processes]
    # NumPy's library starts a thread for every core as it is imported, unless it is told.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, command)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["stops"] == times * len(processes)
    assert counted["slowest end, s"] < SECONDS
    command = "pytest -m drill tests/experiments/test_signals.py"
    publish("signals", command, counted, when=len(processes) > 1)


def forked(folder: Path, out: int, *words: str) -> int:
    """Do a command in a folder, in a process of its own, which writes a byte per round."""
    child = os.fork()
    if child:
        return child

    status = 1
    try:
        # A terminal's Ctrl-C reaches all processes of a group.
        os.setpgid(0, 0)
        os.chdir(folder)
        said = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(said, sys.stderr.fileno())
        sys.argv = ["masquerade", *words]
        for name in ("start", "resume"):
            setattr(experiment, name, partial(telling, getattr(experiment, name), out))
        cli.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def telling(work: Any, out: int, *given: Any, **more: Any) -> Any:
    """Work, and write a byte now and with every round."""
    os.write(out, b".")
    *first, told = given
    callbacks: Sequence[Callback] = (*told, Telling(out))
    return work(*first, callbacks, **more)


def begun(folder: Path, out: int) -> int:
    """Begin the run of a folder in a process of its own, or resume it."""
    there = (folder / "run" / "config.toml").exists()
    words = ["resume", "run"] if there else ["run", "--config", "settings.toml", "--out", "run"]
    return forked(folder, out, *words, "--quiet")


def ended(folder: Path, child: int) -> tuple[int, str]:
    """Return with what status a process ended, and what it said."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, (folder / SAID).read_text()


def stop(folder: Path, number: signal.Signals, chance: random.Random) -> tuple[bool, float]:
    """Begin or resume a run, and send a signal at a random instant.

    Return whether it was faster, and how many seconds later it had ended.
    """
    reading, writing = os.pipe()
    child = begun(folder, writing)
    os.close(writing)
    for _ in range(1 + chance.randrange(APART)):
        os.read(reading, 1)
    time.sleep(chance.random() * 0.05)
    os.killpg(child, number)
    since = time.monotonic()
    if chance.random() < 0.5:
        # Whoever is in a hurry presses it again.
        time.sleep(chance.random() * 0.04)
        with suppress(ProcessLookupError):
            os.killpg(child, number)
    status, said = ended(folder, child)
    seconds = time.monotonic() - since
    os.close(reading)
    assert "Traceback" not in said, said
    assert "Exception ignored" not in said, said
    assert status in (0, STATUS[number]), (status, said)
    assert (status == 0) == ("Stopped at your request." not in said), (status, said)
    if status and (folder / "run" / "config.toml").exists():
        assert said.endswith("Resume with: masquerade resume run\n")
    return status == 0, seconds


def finish(folder: Path) -> None:
    """Do what is left of a run, undisturbed."""
    reading, writing = os.pipe()
    status, said = ended(folder, begun(folder, writing))
    assert status == 0, said
    os.close(reading)
    os.close(writing)


def drill(path: Path, times: int, processes: int) -> tuple[Counter[str], float]:
    """Stop runs so many times; each that is done must equal what nobody disturbed.

    Return what was counted, and the seconds that the slowest end took.
    """
    text = dump(problem(path / "mine.npz", "dmpfl", "dmpfl_plus", processes=processes))
    chance, counted, slowest, lives = random.Random(processes), Counter[str](), 0.0, 1
    whole = prepared(path / f"whole-{processes}", text)
    finish(whole)
    while counted["stops"] < times:
        folder = prepared(path / f"{processes}-{lives}", text)
        number = (signal.SIGINT, signal.SIGTERM)[counted["stops"] % 2]
        done, seconds = stop(folder, number, chance)
        if done:
            same(folder / "run", whole / "run")
            lives += 1
        else:
            counted["stops"] += 1
            counted[f"by {number.name}"] += 1
            slowest = max(slowest, seconds)
    finish(folder)
    same(folder / "run", whole / "run")
    counted["finished runs, each equal in every bit"] += lives
    return counted, slowest


def same(path: Path, other: Path) -> None:
    """Fail where a file of two runs differs, apart from the command that ended it."""
    one, two = contents(path), contents(other)
    for each in (one, two):
        del each["environment.json"]["command"]
    differ = [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]
    assert differ == []


def prepared(folder: Path, text: str) -> Path:
    """Make a folder with the settings of a run, if it is not there."""
    folder.mkdir(exist_ok=True)
    (folder / "settings.toml").write_text(text)
    return folder


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Figures of pages take longer than all trainings.
    plots.figures = lambda *given: {}
    path, times, *kinds = Path(sys.argv[1]), *map(int, sys.argv[2:])
    write_data(path / "mine.npz")
    become_single()
    all_counted, longest = Counter[str](), 0.0
    for kind in kinds:
        found, most = drill(path, times, kind)
        all_counted, longest = all_counted + found, max(longest, most)
    print(json.dumps(all_counted | {"slowest end, s": round(longest, 2)}))
