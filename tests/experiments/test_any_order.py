"""Rounds, kills, resumes, damage, copies, exports and cleaning up, in any order that comes to mind.

Whatever was done to a run: what can be read of it is a state that was committed, in every bit, or
is refused with a code; damage is told; what is finished equals what nobody disturbed.

Run as a program, this file is the part that forks, in a process of its own that has one thread:
`python -m tests.experiments.test_any_order FOLDER RUNS STEPS`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)

from masquerade.errors import MasqueradeError
from masquerade.experiments.callbacks import Callback, Run
from masquerade.export import formats, from_run
from masquerade.report import plots
from masquerade.results import RoundRecord
from masquerade.storage.manifest import unseal
from masquerade.storage.run_directory import Commit, RunDirectory
from masquerade.storage.saved_folder import Folder
from tests.damage import LINES, TOLD, UNREAD, is_intact, is_told, read_run
from tests.experiments.test_resume import (
    ROOT,
    ROUNDS,
    Halt,
    Telling,
    become_single,
    complete,
    contents,
    halted,
    problem,
    timeless,
    write_data,
)
from tests.fuzzing import code_of
from tests.reliability import publish

CLIENT = 1
COMMITTED = ("rounds/", "states/")
"""Where states are; files that hold the same may be others."""
COUNTED: Counter[str] = Counter()
"""What was done, and what came of it."""


@pytest.mark.parametrize(
    ("runs", "steps"), [(3, 12), pytest.param(200, 30, marks=pytest.mark.drill)]
)
def test_whatever_the_order_it_is_an_exact_state_or_a_refusal(
    runs: int, steps: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.experiments.test_any_order", tmp_path, runs, steps]
    # NumPy's library starts a thread for every core as it is imported, unless it is told.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, command)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["runs"] >= runs
    publish("any-order", "pytest -m drill tests/experiments/test_any_order.py", counted, runs > 3)


class HaltAfterSome(Callback):
    """Stops a run after so many further rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, run: Run, record: RoundRecord) -> None:
        self.left -= 1
        if not self.left:
            raise Halt


State = tuple[dict[str, Any], Any]
"""Tensors, those of clients by their numbers, as bytes; and facts."""


def state_of(commit: Commit) -> State:
    """Return what a commit holds, however it is divided among files."""
    found: dict[str, Any] = {name: of_tensor(each) for name, each in commit.tensors.items()}
    for piece in commit.pieces:
        for place, id in enumerate(piece["ids"].tolist()):
            others = {f"{name} of {id}": each[place] for name, each in piece.items()}
            found |= {name: of_tensor(each) for name, each in others.items()}
    return found, timeless(commit.facts)


def of_tensor(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, value.shape, value.contiguous().reshape(-1).view(torch.uint8).tolist()


class Undisturbed:
    """What a run is after each of its rounds, and at its end, if nobody disturbs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = problem(write_data(folder / "mine.npz"), "dmpfl", "dmpfl_plus")
        self.states: dict[int, State] = {}
        for number in range(1, ROUNDS + 1):
            if number < ROUNDS:
                halted(self.config, folder / "whole", number)
            else:
                complete(self.config, folder / "whole")
            with RunDirectory.open(folder / "whole") as directory:
                commit = directory.latest()
            assert commit is not None
            self.states[commit.number] = state_of(commit)
        assert [*self.states] == [*range(1, ROUNDS + 1)]
        self.files = readable(folder / "whole")
        exported(folder / "whole", folder / "model")
        self.model = (folder / "model").read_bytes()


def readable(path: Path) -> dict[str, Any]:
    """Return the files of a finished run without its commits."""
    return {n: data for n, data in contents(path).items() if not n.startswith(COMMITTED)}


def exported(run: Path, target: Path) -> None:
    formats.write(from_run.find(run, CLIENT), target, "dense")


class AnyOrder(RuleBasedStateMachine):
    """One run after another, and what is done to it.

    How far it came before a kill differs from time to time, so no rule is kept from being chosen by
    that: one that has nothing to do does nothing.
    """

    undisturbed: Undisturbed
    """Set before the first one is made."""

    def __init__(self) -> None:
        super().__init__()
        COUNTED["runs"] += 1
        self.place = self.undisturbed.folder / f"any-{COUNTED['runs']}"
        self.place.mkdir()
        self.run = self.place / "run"
        self.copies = 0
        self.damaged = False
        """Whether damage has been done that nothing has mended."""
        self.lines_lost = False
        self.original: tuple[Path, dict[str, bytes]] | None = None
        """The run of which this is a copy, and the files that it had then."""

    def teardown(self) -> None:
        self.check()
        shutil.rmtree(self.place)

    @rule(rounds=st.integers(1, 3))
    def do_rounds(self, rounds: int) -> None:
        self.begin_another()
        self.train("rounds, then a stop", [HaltAfterSome(rounds)])

    @rule()
    def resume(self) -> None:
        self.begin_another()
        self.train("resumes to the end", [])

    @rule(rounds=st.integers(0, 3), seconds=st.floats(0, 0.05))
    def kill(self, rounds: int, seconds: float) -> None:
        """Kill it so long after some rounds, or while it starts."""
        self.begin_another()
        COUNTED["kills"] += 1
        reading, writing = os.pipe()
        child = self.forked(
            partial(complete, self.undisturbed.config, self.run), [Telling(writing)]
        )
        os.close(writing)
        for _ in range(rounds):
            os.read(reading, 1)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.waitpid(child, 0)
        self.check()

    @rule(which=st.integers(0, 10_000), at=st.integers(0, 1_000_000))
    def flip(self, which: int, at: int) -> None:
        self.corrupt(which, "flip", at)

    @rule(which=st.integers(0, 10_000), at=st.integers(0, 1_000_000))
    def cut(self, which: int, at: int) -> None:
        self.corrupt(which, "cut", at)

    @rule(which=st.integers(0, 10_000))
    def delete(self, which: int) -> None:
        self.corrupt(which, "delete", 0)

    def corrupt(self, which: int, kind: str, at: int) -> None:
        """Damage a file; whoever reads the run is told, or it was of no use any more."""
        if not self.victims() or not (self.run / "config.toml").exists():
            return
        if not self.damaged:
            with RunDirectory.open(self.run):
                # What a kill left is cleared away.
                pass
        before = self.copied("before")
        victims = self.victims()
        if not victims:
            return
        COUNTED["damages"] += 1
        file = victims[which % len(victims)]
        data = bytearray(file.read_bytes())
        if kind == "delete":
            file.unlink()
        else:
            data[at % len(data)] ^= 1 << at % 8
            file.write_bytes(data[: at % len(data)] if kind == "cut" else data)
        here = self.copied("scratch")
        done = (before / "hashes.json").exists()
        if not self.damaged and not is_told(here, read_run if done else read_state):
            assert is_intact(here, before, UNREAD), (kind, file)
            COUNTED["damages of what was of no use any more"] += 1
        self.lines_lost |= file.name == "metrics.jsonl"
        self.damaged = True
        self.check()

    @rule()
    def copy(self) -> None:
        """Go on with a copy; the original is not touched by that."""
        if not self.run.exists():
            return
        COUNTED["copies"] += 1
        self.copies += 1
        copy = shutil.copytree(self.run, self.place / f"copy-{self.copies}")
        if self.original is not None:
            shutil.rmtree(self.original[0])
        self.original, self.run = (self.run, bytes_of(self.run)), copy
        self.check()

    @rule()
    def export(self) -> None:
        """Export a model; it is the one of the undisturbed run, or refused."""
        if not self.run.exists():
            return
        target = self.place / "model"
        target.unlink(missing_ok=True)
        done = (self.run / "hashes.json").exists()
        said = self.outcome(partial(exported, self.run, target))
        if said == "done":
            assert target.read_bytes() == self.undisturbed.model
            COUNTED["exports"] += 1
        else:
            assert said in TOLD
            assert self.damaged or not done, said
            COUNTED["exports refused"] += 1

    @rule()
    def clean_up(self) -> None:
        """Remove what only older commits have, as somebody may who needs the space."""
        if not self.commits():
            return
        COUNTED["cleanings"] += 1
        *older, newest = self.commits()
        for folder in older:
            shutil.rmtree(folder)
        sealed = newest / "manifest.json"
        held = unseal(sealed.read_bytes()) if sealed.is_file() else None
        for piece in (self.run / "states").glob("*") if held else ():
            if piece.name not in held["pieces"]:
                piece.unlink()
        self.check()

    @rule()
    def start_anew(self) -> None:
        """Do what a refusal advises."""
        if not self.damaged:
            return
        COUNTED["fresh starts"] += 1
        shutil.rmtree(self.run)
        self.damaged = self.lines_lost = False

    def begin_another(self) -> None:
        """Put a run away that is done."""
        if not self.damaged and (self.run / "hashes.json").exists():
            COUNTED["finished runs"] += 1
            shutil.rmtree(self.run)
            self.lines_lost = False

    def commits(self) -> list[Path]:
        return sorted((self.run / "rounds").glob("[0-9]*"))

    def victims(self) -> list[Path]:
        """List what can be damaged; settings are a person's to change."""
        spared = (*UNREAD, "config.toml", "damaged-metrics.jsonl")
        files = [each for each in sorted(self.run.rglob("*")) if each.is_file()]
        if not self.commits():
            # A kill left them before the first commit, which writes them anew.
            files = [each for each in files if each.parent.name != "states"]
        return [each for each in files if each.name not in spared and each.stat().st_size]

    def copied(self, name: str) -> Path:
        shutil.rmtree(self.place / name, ignore_errors=True)
        return shutil.copytree(self.run, self.place / name)

    def forked(self, work: Callable[..., object], callbacks: list[Callback]) -> int:
        """Work in a process of its own; in `said` is what came of it."""
        (self.place / "said").unlink(missing_ok=True)
        return os.fork() or work_and_exit(partial(work, callbacks), self.place / "said")

    def outcome(self, work: Callable[[], object]) -> str:
        """Return what came of work: done, halted or a code; anything else is a fault."""
        os.waitpid(self.forked(lambda callbacks: work(), []), 0)
        said = (self.place / "said").read_text()
        assert said in ("done", "halted", *TOLD), said
        return said

    def train(self, what: str, callbacks: list[Callback]) -> None:
        """Begin the run or resume it; it is refused only where it was damaged."""
        COUNTED[what] += 1
        said = self.outcome(partial(complete, self.undisturbed.config, self.run, callbacks))
        if said in TOLD:
            assert self.damaged, said
            COUNTED["refusals of a damaged run"] += 1
        if said == "done":
            self.damaged = False
        self.check()

    def check(self) -> None:
        """Read all that there is, of a copy: reading clears away what is of no use any more."""
        if self.original is not None:
            assert bytes_of(self.original[0]) == self.original[1]
        if not (self.run / "config.toml").exists():
            return
        here = self.copied("scratch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = code_of(lambda: self.check_state(here), TOLD)
        assert found == "read" or self.damaged, found
        if (here / "hashes.json").exists():
            self.check_results(here)

    def check_state(self, here: Path) -> None:
        with RunDirectory.open(here) as directory:
            commit = directory.latest()
        if commit is not None:
            COUNTED["states that were read"] += 1
            assert state_of(commit) == self.undisturbed.states[commit.number]

    def check_results(self, here: Path) -> None:
        """Hold what a run ended with against the undisturbed one."""
        files = self.undisturbed.files
        if not self.damaged:
            found = readable(here)
            lost = LINES if self.lines_lost else ()
            names = {*found, *files} - {*lost}
            assert [n for n in sorted(names) if found.get(n) != files.get(n)] == []
            COUNTED["finished runs that were read"] += 1
            return
        for name in files:
            if name.startswith("clients/"):
                found = code_of(partial(self.check_file, here, name), TOLD)
                COUNTED["models that were read, of a damaged run"] += found == "read"

    def check_file(self, here: Path, name: str) -> None:
        assert Folder.open(here).read(name) == self.undisturbed.files[name]


def read_state(path: Path) -> None:
    """Read the state that a run goes on from."""
    with RunDirectory.open(path) as directory:
        commit = directory.latest()
    if commit is not None:
        state_of(commit)


def bytes_of(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def work_and_exit(work: Callable[[], object], said: Path) -> NoReturn:
    """Work, write what came of it, and end this process."""
    try:
        warnings.simplefilter("ignore")
        work()
        found = "done"
    except Halt:
        found = "halted"
    except MasqueradeError as refusal:
        found = refusal.code
    except BaseException:
        found = traceback.format_exc()
    said.write_text(found)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Figures of pages take longer than all trainings.
    plots.figures = lambda *given: {}
    AnyOrder.undisturbed = Undisturbed(Path(sys.argv[1]))
    become_single()
    run_state_machine_as_test(
        AnyOrder,
        settings=settings(
            max_examples=int(sys.argv[2]),
            stateful_step_count=int(sys.argv[3]),
            deadline=None,
            database=None,
            derandomize=True,
            # The instant of a kill is another every time: what fails is not made smaller.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(json.dumps(COUNTED))
