"""A folder of results, with the hash of every file in a sealed manifest, which is written last.

It is the directory of a run or a comparison, or a folder that was saved and appears whole.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from masquerade.errors import MasqueradeError
from masquerade.results.json_records import LONGEST, from_json
from masquerade.storage import atomic
from masquerade.storage.manifest import fingerprint, seal, unseal
from masquerade.storage.regular import read_regular
from masquerade.storage.run_directory import CONFIG, HASHES, METRICS, check_name, obstacle

FEDERATION = "federation.toml"
"""The file that tells the folder of a federation of real clients from others."""
SHOWS = "masquerade deploy status"

File = tuple[str, bytes]
"""The name of a file in its folder, and its content."""
Fingerprint = Mapping[str, int | str]


def sealed(files: Iterable[File]) -> Iterator[File]:
    """Yield files, and after them the manifest of their hashes."""
    hashes = {}
    for name, data in files:
        hashes[name] = fingerprint(data)
        yield name, data
    yield HASHES, seal({"files": hashes})


def write(path: Path, files: Iterable[File]) -> None:
    """Write a new folder that appears with all its files or not at all."""
    if os.path.lexists(path):
        raise MasqueradeError("E407", f"{path} is already there; choose another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.new_folder(path) as staged:
            folders = set()
            for name, data in files:
                _check_inside(name)
                folder = (staged / name).parent
                folder.mkdir(parents=True, exist_ok=True)
                folders.add(folder)
                atomic.write_at(staged / name, data)
            for folder in folders:
                atomic.sync(folder)
    except OSError as fault:
        text = f"{path} could not be written ({fault.strerror}); nothing is left of it"
        raise MasqueradeError("E502", text) from fault


def _check_inside(name: str) -> None:
    """Refuse the name of a file that could lead out of its folder."""
    for part in name.split("/"):
        check_name(part)


@dataclass(frozen=True)
class _Hashes:
    """What is sealed with a folder."""

    files: Mapping[str, Mapping[str, int | str]]


@dataclass(frozen=True)
class Folder:
    """A folder to read from: what is read is checked by its hash."""

    path: Path
    files: Mapping[str, Fingerprint]
    """Size and hash by name."""

    @classmethod
    def open(cls, path: Path) -> "Folder":
        """Read the manifest; without one there are no results, or not yet all."""
        if not (path / HASHES).is_file():
            begun = os.path.lexists(path / CONFIG) or (path / METRICS).exists()
            then = _advice(path, f"it has no {HASHES}, so") if begun else "check the path"
            if (path / FEDERATION).is_file():
                then = f"they come when training is done; how far it is: {SHOWS} {path}"
            raise MasqueradeError("E408", f"no results in {path}; {then}")
        try:
            found = unseal(read_regular(path / HASHES, LONGEST))
        except OSError as fault:
            raise damaged(path / HASHES, path, fault.strerror) from None
        if found is None:
            raise damaged(path / HASHES, path)
        try:
            files = from_json(_Hashes, found).files
            # Who made a folder may have named what is elsewhere.
            for name in files:
                _check_inside(name)
        except (ValueError, MasqueradeError) as fault:
            raise damaged(path / HASHES, path, str(fault)) from None
        return cls(path, files)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, checked as they are read."""
        told = self.files.get(name, {})
        size = told.get("size")
        try:
            data = read_regular(self.path / name, size if isinstance(size, int) else 0)
        except OSError as fault:
            why = None if fault.errno == errno.EFBIG else fault.strerror
            raise damaged(self.path / name, self.path, why) from None
        if told != fingerprint(data):
            raise damaged(self.path / name, self.path)
        return data

    def text(self, name: str) -> str:
        """Return what a file of words says."""
        try:
            return self.read(name).decode()
        except UnicodeDecodeError:
            raise damaged(self.path / name, self.path, "it is not UTF-8") from None

    def check(self) -> None:
        """Refuse files that are damaged; clients' models are many, and checked as they are read."""
        for name in self.files:
            if "/" not in name:
                self.read(name)

    def damages(self) -> list[str]:
        """Name all files that are damaged."""
        found = []
        for name in self.files:
            try:
                self.read(name)
            except MasqueradeError:
                found.append(name)
        return found


def damages(path: Path) -> list[str] | None:
    """Name what is damaged of the results in a directory; None where they are not complete."""
    if not (path / HASHES).is_file():
        return None
    try:
        return Folder.open(path).damages()
    except MasqueradeError:
        return [HASHES]


def is_done(path: Path) -> bool:
    """Tell whether a directory has results that are complete and intact."""
    return damages(path) == []


def damaged(path: Path, folder: Path, why: str | None = None) -> MasqueradeError:
    """Return the refusal of a file of a folder."""
    text = f"{path} is damaged ({why or 'its hash differs'}); it is not used"
    return MasqueradeError("E401", f"{text}. {_advice(folder)}")


def _advice(path: Path, begins: str = "To have it again") -> str:
    """Say how to have results again, or what is to be done before; a resume says the same."""
    run = os.path.lexists(path / METRICS) and not (path / FEDERATION).is_file()
    if run and (refusal := obstacle(path)):
        return str(refusal).removeprefix(f"{refusal.code} ")
    return f"{begins}: {again(path)}"


def again(path: Path) -> str:
    """Say how to have the results in a folder written again."""
    if (path / FEDERATION).is_file():
        return f"masquerade deploy server {path}"
    if not (path / "rounds").is_dir():
        return "save the result again"
    config = path / CONFIG
    program = config.is_file() and b"[python]" in config.read_bytes()
    return "call the program again" if program else f"masquerade resume {path}"
