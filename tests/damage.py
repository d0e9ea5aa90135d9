"""Damage to a folder, done on purpose, and who notices it."""

import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from masquerade.errors import MasqueradeError
from masquerade.storage import model_files
from masquerade.storage.results import read_results, read_sheets
from masquerade.storage.run_directory import RunDirectory
from masquerade.storage.saved_folder import Folder
from tests.fuzzing import Found, over_processes

KINDS = ("flip", "cut", "zero", "swap", "delete", "version")
TOLD = ("E401", "E402", "E408", "E606", "E611")
COMMITTED = ("rounds", "states")
"""Folders that whoever opens a run clears of damage."""
UNREAD = ("lock", "report.html")
"""Files that no result depends on."""
PIECES, PIECE = 10, 1000
"""How many pieces a drill has, and damages a piece."""
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


@dataclass
class Damaged:
    """What came of damages."""

    count: int = 0
    cleared: int = 0
    """Damage of what only an older commit has is not read, but cleared away."""
    silent: list[tuple[str, Path]] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, int]:
        """What a drill counts."""
        return {
            "damaged folders": self.count,
            "told": self.count - self.cleared - len(self.silent),
            "of an older commit, cleared away": self.cleared,
            "read in silence": len(self.silent),
        }


def damaged(
    whole: Path,
    other: Path,
    copy: Path,
    count: int,
    read: Callable[[Path], None] = read_run,
    unread: Collection[str] = UNREAD,
    seed: int = 7,
) -> Damaged:
    """Damage copies of a folder in so many ways, read each, and count who was told."""
    shutil.copytree(whole, copy)
    assert not is_told(copy, read)
    shutil.rmtree(copy)
    shutil.copytree(whole, copy)
    found = Damaged(count)
    for kind, name, data in mutants(whole, other, count, unread, seed):
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
) -> Counter[str]:
    """Damage a folder in ten thousand ways, in pieces of a thousand; none is read in silence."""
    return over_processes(name, partial(_piece, whole, other, read, unread), range(PIECES))[0]


def _piece(
    whole: Path, other: Path, read: Callable[[Path], None], unread: Collection[str], seed: int
) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        found = damaged(whole, other, Path(folder) / "copy", PIECE, read, unread, seed)
    assert found.silent == []
    return Counter(found.figures), 0.0
