"""Commits and resume: a run's state goes to its directory beside the computation, and back.

How a commit lies on the disk is `storage/run_directory.py`, what it holds `simulation/state.py`.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from masquerade.config import toml
from masquerade.core.part import Part
from masquerade.engine.ranks import Ranks
from masquerade.errors import MasqueradeError, MasqueradeWarning, warn
from masquerade.experiments.callbacks import Callback, Run
from masquerade.results import RoundRecord
from masquerade.results.json_records import LONGEST, Json, from_json, to_json
from masquerade.simulation.build import Simulation
from masquerade.simulation.more_rounds import check_rounds
from masquerade.simulation.state import RunState, Snapshot, StateFacts, foreign
from masquerade.storage.manifest import fingerprint
from masquerade.storage.regular import read_regular
from masquerade.storage.run_directory import (
    CONFIG,
    HASHES,
    Commit,
    RunDirectory,
    Tensors,
    decode_tensors,
    encode_tensors,
)
from masquerade.storage.saved_folder import Folder
from masquerade.wire import digest

ROUNDS = "train.rounds"
SILENT = ("compute.processes",)
"""Settings that change nothing, and of which nothing is said."""
FREE_OF_SEVERAL = {
    "evaluate.bandwidth": "the page alone depends on it",
    "compute.processes": "it changes no bit",
    "compute.commit_every": "no number depends on it",
    "compute.store": "no number depends on it",
}
"""Settings that may be others when a comparison is resumed, and why."""
FREE = {ROUNDS: "where the rounds that are done would be the same", **FREE_OF_SEVERAL}
"""The same of a run."""
Changes = dict[str, tuple[Any, Any]]
"""By section.key: what a run began with, and what it goes on with."""


@dataclass(frozen=True)
class Origin:
    """The facts that have to be the same when a run is resumed."""

    config: str
    data: str
    initial: int
    torch: str

    @classmethod
    def of(cls, simulation: Simulation, config: str) -> "Origin":
        """Take them from a simulation, and the text of its `config.toml`."""
        initial = int(digest(Part(simulation.server.task.initial)))
        return cls(config, simulation.federation.fingerprint(), initial, torch.__version__)

    def check_alike(self, simulation: Simulation) -> None:
        """Refuse processes that were started with other settings or data than the first."""
        mine = hashlib.sha256(repr(self).encode()).hexdigest()
        first, *others = (each["origin"] for each in simulation.ranks.tell({"origin": mine}))
        if wrong := [number for number, each in enumerate(others, 1) if each != first]:
            text = f"process {wrong[0]} has other settings, data, initial weights or another torch"
            raise MasqueradeError("E506", f"{text} than process 0; start all with the same")

    def check(self, now: "Origin", free: Collection[str] = SILENT) -> None:
        """Refuse other settings or data than the run began with; warn of another torch.

        Settings that are `free` may be others.
        """
        differences(self.config, now.config, free)
        if self.data != now.data:
            text = "the data differ from those this run began with; restore them, or start anew"
            raise MasqueradeError("E402", text)
        if self.initial != now.initial:
            text = (
                "the initial weights differ from those this run began with; restore their file, or "
                "seed the network that a program makes (torch.manual_seed)"
            )
            raise MasqueradeError("E402", text)
        if self.torch != now.torch:
            warnings.warn(
                f"W402 this run began under torch {self.torch}, this is {now.torch}: "
                "the last bits may differ",
                MasqueradeWarning,
                stacklevel=2,
            )


def check_changes(changes: Collection[str], free: Mapping[str, str]) -> None:
    """Refuse to change settings on which results depend, and list those that may be others."""
    if wrong := [key for key in changes if key not in free]:
        text = f"{', '.join(wrong)} may not change: rounds that are done would have been others;"
        may = ", ".join(f"{key} ({why})" for key, why in free.items())
        raise MasqueradeError("E402", f"{text} start a new run. These may: {may}")


def check_text(directory: RunDirectory, text: str) -> None:
    """Refuse a directory whose `config.toml` says something else than would be written now."""
    differences(text_of(directory), text, SILENT)


def text_of(directory: RunDirectory) -> str:
    """Return the text of a directory's `config.toml`."""
    return (directory.path / CONFIG).read_text(encoding="utf-8")


def differences(began: str, now: str, free: Collection[str]) -> Changes:
    """Return what differs between the settings of a run and those of now, by section.key.

    What is not `free` to differ is refused.
    """
    old, new = _by_key(toml.read(began)), _by_key(toml.read(now))
    found = {
        key: (old.get(key, "nothing"), new.get(key, "nothing"))
        for key in dict.fromkeys((*old, *new))
        if old.get(key, "nothing") != new.get(key, "nothing")
    }
    if wrong := [f"{key} {found[key][0]} → {found[key][1]}" for key in found if key not in free]:
        text = f"settings differ from the run's: {', '.join(wrong)}"
        may = f"put them back, or start a new run; {', '.join(free)} may be others"
        raise MasqueradeError("E402", f"{text}; {may}")
    return found


def _by_key(tables: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        inner = isinstance(value, Mapping)
        found |= _by_key(value, f"{section}{key}.") if inner else {f"{section}{key}": value}
    return found


@dataclass(frozen=True)
class CommitFacts:
    """What a commit holds beside tensors."""

    state: StateFacts
    origin: Origin


def facts_of(commit: Commit) -> CommitFacts:
    """Return what a commit holds beside tensors; E401 says that it is something else."""
    try:
        return from_json(CommitFacts, commit.facts)
    except ValueError as fault:
        text = f"checkpoint {commit.number} is not of this run, though its hash fits: {fault}"
        text += ". Put an intact copy of it there, or start anew."
        raise MasqueradeError("E401", text) from None


def check_number(commit: Commit, rounds: int) -> None:
    """Refuse a commit of a round that its run never comes to."""
    if commit.number > rounds:
        raise foreign(f"it is of round {commit.number} of {rounds}")


def settings_are_sealed(path: Path) -> bool:
    """Tell whether `config.toml` is as it was when results were written, if they were."""
    try:
        known = Folder.open(path).files.get(CONFIG)
    except MasqueradeError:
        # There are none, or what is wrong with them is told by those who read them.
        return True
    try:
        return known in (None, fingerprint(read_regular(path / CONFIG, LONGEST)))
    except OSError:
        return False


def check_settings(path: Path) -> None:
    """Refuse settings that changed since results were written with them."""
    if not settings_are_sealed(path):
        text = f"{path / CONFIG} is not what the results were written with; it is not used."
        then = "Put the original back. Other settings are given by `resume --allow-change`."
        raise MasqueradeError("E401", f"{text} {then}")


def open_to_go_on(path: Path) -> RunDirectory:
    """Open a run to go on with it; its settings are written again where they are gone or changed.

    The last commit has them. Whoever wants others says so by an option, and is heard.
    """
    directory = RunDirectory.open(path, without_settings=True)
    try:
        _mend_settings(directory)
    except BaseException:
        directory.close()
        raise
    return directory


def _mend_settings(directory: RunDirectory) -> None:
    path = directory.path
    gone = not (path / CONFIG).exists()
    if not gone and settings_are_sealed(path):
        return
    commit = directory.latest()
    config = facts_of(commit).origin.config.encode() if commit is not None else b""
    if not gone and Folder.open(path).files[CONFIG] != fingerprint(config):
        check_settings(path)
    code, was = ("E401", "gone") if gone else ("W403", "not what the results were written with")
    text = f"{code} {path / CONFIG} was {was}; it is written again"
    warn(f"{text}, with the settings of checkpoint {directory.last}")
    directory.write_file(CONFIG, config)


def take_over(simulation: Simulation, directory: RunDirectory, now: Origin) -> Commit | None:
    """Return the newest commit of a directory, if that is one of the same run.

    The run may go on with other settings where they do not change what it has done.
    """
    commit = directory.latest()
    changes = differences(text_of(directory), now.config, FREE)
    before = rounds = simulation.server.rounds
    if commit is not None:
        origin = facts_of(commit).origin
        origin.check(now, FREE)
        since = differences(origin.config, now.config, FREE)
        before, _ = since.get(ROUNDS, (rounds, rounds))
        # Results that are there were written with the settings of now.
        if changes or not (directory.path / HASHES).is_file():
            changes |= since
    if commit is not None:
        check_number(commit, before)
    if commit is not None and before != rounds:
        check_rounds(simulation, commit.number, before)
    if told := [f"{key} {old} → {new}" for key, (old, new) in changes.items() if key not in SILENT]:
        warn(f"W403 the run goes on with other settings: {', '.join(told)}")
    if text_of(directory) != now.config:
        directory.change_settings(now.config)
    every = simulation.spec.evaluate.every
    # The last round of a run is not evaluated as those before it are.
    if commit and before != rounds and commit.number in (before, rounds) and every:
        directory.go_back()
        commit = directory.latest()
    return commit


def restore(
    simulation: Simulation, state: RunState, directory: RunDirectory | None, now: Origin
) -> None:
    """Put a state to the newest commit of its directory.

    Where several processes do the run, the first has the directory, and hands out what is there.
    """
    commit = take_over(simulation, directory, now) if directory is not None else None
    ranks = simulation.ranks
    if ranks.several:
        known = b"" if commit is None else json.dumps([commit.number, commit.facts]).encode()
        found = ranks.hand_out(known)
        tensors = ranks.hand_out(b"" if commit is None else encode_tensors(commit.tensors))
        if found:
            pieces = _handed_out(ranks, iter(commit.pieces) if commit else None)
            commit = (commit or handed_out(found, tensors))._replace(pieces=pieces)
    if commit is not None:
        facts = facts_of(commit)
        state.restore(commit.number, commit.tensors, facts.state, commit.pieces)


def _handed_out(ranks: Ranks, own: Iterator[Tensors] | None) -> Iterator[Tensors]:
    """Hand out clients' states piece by piece, or take those that the first process has."""
    while True:
        piece = None if own is None else next(own, None)
        data = ranks.hand_out(b"" if piece is None else encode_tensors(piece))
        if not data:
            return
        yield piece or decode_tensors(data, "what another process has")


def handed_out(found: bytes, tensors: bytes) -> Commit:
    """Return the commit that another process has."""
    number, facts = json.loads(found)
    return Commit(number, decode_tensors(tensors, "what another process has"), facts)


class Checkpoints(Callback):
    """Commits rounds to a run directory, every so many seconds, and the last one at once."""

    def __init__(
        self, directory: RunDirectory, every: float, origin: Origin, told: Callback
    ) -> None:
        """Take the directory, the seconds between commits, and who is `told` of them."""
        self._committer = Committer(directory, every)
        self._origin, self._told = origin, told
        self._lines: list[RoundRecord] = []

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Commit, if it is time to."""
        self._lines.append(record)
        state = run.state
        if state.number < run.rounds and not self._committer.due():
            return
        state.note_memory()
        number = state.number
        with state.clock.measure("commits"):
            self._committer.submit(
                number,
                state.snapshot(),
                to_json(CommitFacts(state.facts(), self._origin)),
                [to_json(line) for line in self._lines],
                lambda: self._told.on_commit(run, number),
            )
        self._lines.clear()

    def close(self, state: RunState) -> None:
        """Wait until all that was handed over is committed."""
        with state.clock.measure("commits"):
            self._committer.close()


class Committer:
    """Commits beside the computation: one at a time, in one background thread."""

    def __init__(self, directory: RunDirectory, every: float = 5.0) -> None:
        """Take the directory, and the seconds between commits (0: every round)."""
        self.directory = directory
        self.every = every
        self._since = time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._running: Future[None] | None = None
        self._then: Callable[[], None] = _nothing

    def due(self) -> bool:
        """Tell whether `every` seconds have passed and the last commit is written.

        Where a disk is slower than that, rounds do not wait for it.
        """
        idle = not self.every or self._running is None or self._running.done()
        return idle and time.monotonic() - self._since >= self.every

    def submit(
        self,
        number: int,
        snapshot: Snapshot,
        facts: Json,
        lines: Sequence[Json] = (),
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Hand over what nobody will change any more; wait for the previous, or raise its error.

        `then` is called here, not in the thread, once the commit is seen to be written.
        """
        self._settle()
        self._since, self._then = time.monotonic(), then

        def commit() -> None:
            tensors, *pieces = snapshot.fetch()
            self.directory.commit(number, tensors, facts, lines, pieces, snapshot.whole)

        self._running = self._thread.submit(commit)

    def close(self) -> None:
        """Wait until all that was handed over is committed, or raise why it is not."""
        self._thread.shutdown()
        self._settle()

    def _settle(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.result()
            self._then()


def _nothing() -> None:
    pass
