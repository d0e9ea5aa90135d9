"""Power that fails: of what was not synced, any part may be on the disk, and nothing is lost.

The calls of a commit are recorded. After each of them the disk may have all that was synced, of
every file any of its other writes (the last one in part), and of every folder its first changes,
since a file system keeps these in order.
"""

import os
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from masquerade.storage import atomic, run_directory
from masquerade.storage.atomic import write_file
from masquerade.storage.run_directory import RunDirectory
from tests.fuzzing import Found, over_processes
from tests.reliability import publish
from tests.storage.test_run_directory import NEW, OLD, check, commit, results_of

pytestmark = pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning")


@dataclass(eq=False)
class File:
    """A file: what the disk has for sure, and writes that it may have."""

    safe: bytes = b""
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Where, and what; None cuts the file there."""

    def sync(self) -> None:
        self.safe, self.writes = self.after(self.writes), []

    def after(self, writes: list[tuple[int, bytes | None]]) -> bytes:
        data = bytearray(self.safe)
        for at, new in writes:
            if new is None:
                data[at:] = bytes(max(0, at - len(data)))
            else:
                data[len(data) :] = bytes(max(0, at - len(data)))
                data[at : at + len(new)] = new
        return bytes(data)

    def left(self, chance: random.Random, path: Path) -> None:
        """Write what is left of it when power fails."""
        kept = [each for each in self.writes if chance.random() < 0.5]
        if kept and kept[-1][1] and chance.random() < 0.5:
            at, new = kept[-1]
            kept[-1] = at, (new or b"")[: chance.randrange(len(new or b"") + 1)]
        path.write_bytes(self.after(kept))


@dataclass(eq=False)
class Folder:
    """A folder: the names that the disk has for sure, those now, and the changes in between."""

    safe: dict[str, "File | Folder"] = field(default_factory=dict)
    now: dict[str, "File | Folder"] = field(default_factory=dict)
    changes: list[dict[str, "File | Folder"]] = field(default_factory=list)

    def change(self, **entries: "File | Folder | None") -> None:
        """Put names in, or take them out; all at once."""
        for name, node in entries.items():
            if node is None:
                del self.now[name]
            else:
                self.now[name] = node
        self.changes.append(dict(self.now))

    def sync(self) -> None:
        self.safe, self.changes = dict(self.now), []

    def left(self, chance: random.Random, path: Path) -> None:
        path.mkdir()
        for name, node in chance.choice([self.safe, *self.changes]).items():
            node.left(chance, path / name)


def loaded(path: Path) -> Folder:
    """A folder that the disk has as it is."""
    found = Folder()
    for each in path.iterdir():
        found.now[each.name] = loaded(each) if each.is_dir() else File(each.read_bytes())
    found.sync()
    return found


class Recorder:
    """The `os` module, whose calls change the model of a folder too."""

    def __init__(self, root: Path, after: Callable[[], object]) -> None:
        self.root, self.disk, self.after = root, loaded(root), after
        self.open_files: dict[int, File | Folder] = {}

    def __getattr__(self, name: str) -> Any:
        real, mine = getattr(os, name), getattr(self, f"on_{name}", None)
        if mine is None:
            return real

        def call(*given: Any, **more: Any) -> Any:
            # What is removed is looked at before, what is opened after.
            found = real(*given, **more)
            mine(found, *given)
            self.after()
            return found

        return call

    def at(self, path: Any) -> tuple[Folder, str]:
        """Return the folder of a path, and the name in it."""
        here: Any = self.disk
        steps = Path(path).relative_to(self.root).parts
        for step in steps[:-1]:
            here = here.now[step]
        return here, steps[-1] if steps else ""

    def on_open(self, found: int, path: Any, *flags: Any) -> None:
        folder, name = self.at(path)
        if name and name not in folder.now:
            folder.change(**{name: File()})
        self.open_files[found] = folder.now[name] if name else folder

    def on_ftruncate(self, _: None, file: int, size: int) -> None:
        node = self.open_files[file]
        assert isinstance(node, File)
        node.writes.append((size, None))

    def on_pwrite(self, found: int, file: int, data: bytes, at: int) -> None:
        node = self.open_files[file]
        assert isinstance(node, File)
        node.writes.append((at, bytes(data[:found])))

    def on_fsync(self, _: None, file: int) -> None:
        self.open_files[file].sync()

    def on_mkdir(self, _: None, path: Any, *mode: Any) -> None:
        folder, name = self.at(path)
        folder.change(**{name: Folder()})

    def on_makedirs(self, _: None, path: Any, **more: Any) -> None:
        folder, name = self.at(path)
        if name and name not in folder.now:
            folder.change(**{name: Folder()})

    def on_rename(self, _: None, path: Any, target: Any) -> None:
        folder, old = self.at(path)
        _, new = self.at(target)
        folder.change(**{new: folder.now[old], old: None})

    on_replace = on_rename

    def on_unlink(self, _: None, path: Any) -> None:
        folder, name = self.at(path)
        folder.change(**{name: None})

    on_rmdir = on_unlink


def survived(path: Path, tmp_path: Path, work: Callable[[Path], object], often: int, seed: int):
    """Do work, and yield a folder of what is left of it if power fails: so often after each call.

    The last ones are those after all work.
    """
    chance, left = random.Random(seed), []

    def fail() -> None:
        for _ in range(often):
            left.append(tmp_path / f"left-{seed}-{len(left)}")
            recorder.disk.left(chance, left[-1])

    recorder = Recorder(path.resolve(), fail)
    with pytest.MonkeyPatch.context() as patch:
        for module in (atomic, run_directory):
            patch.setattr(module, "os", recorder)
        work(path)
    return left


def begin(path: Path) -> Path:
    """A run with two commits and results."""
    with RunDirectory.create(path, "rounds = 9\n") as run:
        commit(run, 1)
        commit(run, 2)
        run.write_results(OLD)
    return path


def go_on(path: Path) -> None:
    with RunDirectory.open(path) as run:
        commit(run, 3)
        run.write_results(NEW)


def power_fails(folder: Path, often: int, seed: int) -> Counter[str]:
    """Check what is left of a commit and of results; return what it was."""
    found: Counter[str] = Counter()
    left = survived(begin(folder / f"run-{seed}"), folder, go_on, often, seed)
    for place, path in enumerate(left):
        number = check(path, {2, 3})
        results = results_of(path)
        # A commit adds to the metrics, with which results are sealed: so the old ones are damaged.
        assert results in ((None, [b"old"] * 2) if number == 2 else (None, [], [b"new"] * 2))
        if place >= len(left) - often:
            # All is done: all is there.
            assert (number, results) == (3, [b"new"] * 2)
        found["old" if number == 2 else "new"] += 1
    return found


def test_power_that_fails_leaves_the_old_state_or_the_new(tmp_path: Path) -> None:
    found = power_fails(tmp_path, 2, 0)
    assert min(found["old"], found["new"]) > 30


def test_a_file_that_is_written_is_there(tmp_path: Path) -> None:
    (tmp_path / "at").mkdir()
    write_file(tmp_path / "at" / "x", b"old")
    left = survived(tmp_path / "at", tmp_path, lambda path: write_file(path / "x", b"new"), 20, 1)
    found = [(path / "x").read_bytes() for path in left]
    assert set(found) == {b"old", b"new"}
    assert set(found[-20:]) == {b"new"}


@pytest.mark.parametrize("forgotten", ["fsync", "fsync of folders"])
def test_without_syncs_something_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    real = Recorder.on_fsync

    def on_fsync(self: Recorder, found: None, file: int) -> None:
        if forgotten != "fsync" and isinstance(self.open_files[file], File):
            real(self, found, file)

    monkeypatch.setattr(Recorder, "on_fsync", on_fsync)
    with pytest.raises((AssertionError, OSError)):
        power_fails(tmp_path, 2, 0)


def piece(seed: int) -> Found:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return power_fails(Path(folder), 6, seed), 0.0


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_power_that_fails_five_thousand_times_leaves_the_old_state_or_the_new() -> None:
    found, _ = over_processes("power", piece, range(15))
    figures = {"failures": found.total(), **found}
    publish("power", "pytest tests/storage/test_power.py -m drill", figures)
    assert found.total() >= 5000
