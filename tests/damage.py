"""Damage to a folder, done on purpose, and who notices it."""

import json
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from masquerade.errors import MasqueradeError
from masquerade.storage import model_files
from masquerade.storage.results import read_results, read_sheets
from masquerade.storage.run_directory import RunDirectory
from masquerade.storage.saved_folder import Folder
from tests.experiments.test_resume import timeless
from tests.fuzzing import Found, code_of, over_processes

KINDS = ("flip", "cut", "zero", "swap", "delete", "version")
TOLD = ("E401", "E402", "E408", "E606", "E611")
COMMITTED = ("rounds", "states")
"""Folders that whoever opens a run clears of damage."""
UNREAD = ("lock", "report.html")
"""Files that no result depends on."""
LINES = ("metrics.jsonl", "damaged-metrics.jsonl", "hashes.json")
"""What differs where lines of metrics were lost, which nothing makes again."""
SOME = 20
"""Of so many damaged folders one is resumed."""
PIECE = 1000
"""Damages in a piece of a drill."""
Mutant = tuple[str, Path, bytes | None]
"""What was done, to which file, and its new content, which is not the old; None if it is gone."""


def mutants(
    whole: Path, other: Path, count: int, unread: Collection[str], seed: int
) -> Iterator[Mutant]:
    """Yield damages to one folder; `other` is a like one, of which whole files are taken."""
    chance = random.Random(seed)
    files = [
        file for file in sorted(whole.rglob("*")) if file.is_file() and file.name not in unread
    ]
    while count:
        file, kind = chance.choice(files), chance.choice(KINDS)
        data = file.read_bytes()
        found: bytes | None
        if kind == "flip" and data:
            changed, place = bytearray(data), chance.randrange(len(data))
            changed[place] ^= 1 << chance.randrange(8)
            found = bytes(changed)
        elif kind == "cut" and data:
            found = data[: chance.randrange(len(data))]
        elif kind == "zero" and data:
            start = chance.randrange(len(data))
            size = len(data[start : start + 64])
            found = data[:start] + b"\0" * size + data[start + size :]
        elif kind == "swap":
            found = chance.choice(files).read_bytes()
        elif kind == "delete":
            found = None
        else:
            twin = other / file.relative_to(whole)
            found = twin.read_bytes() if twin.is_file() else b""
        if found != data:
            yield kind, file.relative_to(whole), found
            count -= 1


def read_run(path: Path) -> None:
    """Read all that a run holds: results, models, and the state that it goes on from."""
    read_results(path)
    read_sheets(path)
    folder = Folder.open(path)
    for name in folder.files:
        if name.startswith("clients/"):
            model_files.decode(folder.read(name), name)
    with RunDirectory.open(path) as directory:
        commit = directory.latest()
        assert commit is not None
        assert all(commit.pieces)


def is_told(path: Path, read: Callable[[Path], None]) -> bool:
    """Tell whether somebody who reads all of a folder is told of damage."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            read(path)
        except MasqueradeError as error:
            return error.code in TOLD
    return any(str(each.message).startswith("E401") for each in said)


def resumed(path: Path, whole: Path, resume: Callable[[Path], object]) -> str:
    """Resume what is damaged; return what came of it, or fail where that is told by nobody.

    It is refused, or its results are those of the undisturbed one. Lines of metrics may be lost,
    which nothing makes again, if that is told.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        came = code_of(partial(resume, path), TOLD)
    if came != "read":
        return "resumed: refused"
    here, there = results_in(path), results_in(whole)
    differ = {name for name in {*here, *there} if here.get(name) != there.get(name)}
    if not differ:
        return "resumed: as if undisturbed"
    assert {name.name for name in differ} <= set(LINES), differ
    assert any(str(each.message).startswith("E401") for each in said), differ
    return "resumed: lines of metrics lost, and told"


def results_in(path: Path) -> dict[Path, Any]:
    """Return what files of results have, times left out.

    Commits may be others: a resume may have gone on from the one before a damaged one.
    """
    found: dict[Path, Any] = {}
    for file in path.rglob("*"):
        name = file.relative_to(path)
        if file.is_file() and file.name not in UNREAD and not {*COMMITTED} & {*name.parts}:
            data = file.read_bytes()
            found[name] = timeless(json.loads(data)) if file.suffix == ".json" else data
    return found


@dataclass
class Damaged:
    """What came of damages."""

    count: int = 0
    cleared: int = 0
    """Damage of what only an older commit has is not read, but cleared away."""
    silent: list[tuple[str, Path]] = field(default_factory=list)
    resumed: Counter[str] = field(default_factory=Counter)
    """What came of resuming some of the damaged."""

    @property
    def figures(self) -> dict[str, int]:
        """What a drill counts."""
        return {
            "damaged folders": self.count,
            "told": self.count - self.cleared - len(self.silent),
            "of an older commit, cleared away": self.cleared,
            "read in silence": len(self.silent),
            **self.resumed,
        }


def damaged(
    whole: Path,
    other: Path,
    copy: Path,
    count: int,
    read: Callable[[Path], None] = read_run,
    unread: Collection[str] = UNREAD,
    seed: int = 7,
    resume: Callable[[Path], object] | None = None,
) -> Damaged:
    """Damage copies of a folder in so many ways, read each, and count who was told.

    Of every `SOME` one is resumed, where that is asked for: it takes longer.
    """
    shutil.copytree(whole, copy)
    assert not is_told(copy, read)
    shutil.rmtree(copy)
    shutil.copytree(whole, copy)
    found = Damaged(count)
    for number, (kind, name, data) in enumerate(mutants(whole, other, count, unread, seed)):
        if resume is not None and number % SOME == 0:
            place = shutil.copytree(whole, copy.with_name("resumed"))
            (place / name).unlink() if data is None else (place / name).write_bytes(data)
            found.resumed[resumed(place, whole, resume)] += 1
            shutil.rmtree(place)
        (copy / name).unlink() if data is None else (copy / name).write_bytes(data)
        if not is_told(copy, read):
            cleared = is_intact(copy, whole, unread)
            found.cleared += cleared
            found.silent += [] if cleared else [(kind, name)]
        if set(COMMITTED) & set(name.parts):
            shutil.rmtree(copy)
            shutil.copytree(whole, copy)
        else:
            shutil.copy(whole / name, copy / name)
    return found


def is_intact(path: Path, whole: Path, unread: Collection[str]) -> bool:
    """Tell whether all files that are left are as they were."""
    files = [file for file in path.rglob("*") if file.is_file() and file.name not in unread]
    return all(file.read_bytes() == (whole / file.relative_to(path)).read_bytes() for file in files)


def drilled(
    name: str,
    whole: Path,
    other: Path,
    read: Callable[[Path], None] = read_run,
    unread: Collection[str] = UNREAD,
    resume: Callable[[Path], object] | None = None,
    thousands: int = 10,
) -> Counter[str]:
    """Damage a folder in thousands of ways, a piece each; none is read in silence."""
    task = partial(_piece, whole, other, read, unread, resume)
    return over_processes(name, task, range(thousands))[0]


def _piece(
    whole: Path,
    other: Path,
    read: Callable[[Path], None],
    unread: Collection[str],
    resume: Callable[[Path], object] | None,
    seed: int,
) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        found = damaged(whole, other, Path(folder) / "copy", PIECE, read, unread, seed, resume)
    assert found.silent == []
    return Counter(found.figures), 0.0
