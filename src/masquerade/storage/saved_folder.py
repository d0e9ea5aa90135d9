"""A folder of results that appears whole, with the hash of every file in a sealed manifest.

The directory of a run has no such manifest, and its files are read as they are.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from masquerade.errors import MasqueradeError
from masquerade.storage import atomic
from masquerade.storage.manifest import fingerprint, seal, unseal

MANIFEST = "manifest.json"
File = tuple[str, bytes]
"""The name of a file in its folder, and its content."""


def sealed(files: Iterable[File]) -> Iterator[File]:
    """Yield files, and after them the manifest of their hashes."""
    hashes = {}
    for name, data in files:
        hashes[name] = fingerprint(data)
        yield name, data
    yield MANIFEST, seal({"files": hashes})


def write(path: Path, files: Iterable[File]) -> None:
    """Write a new folder that appears with all its files or not at all."""
    if os.path.lexists(path):
        raise MasqueradeError("E407", f"{path} is already there; choose another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.new_folder(path) as staged:
            folders = set()
            for name, data in files:
                folder = (staged / name).parent
                folder.mkdir(parents=True, exist_ok=True)
                folders.add(folder)
                atomic.write_at(staged / name, data)
            for folder in folders:
                atomic.sync(folder)
    except OSError as fault:
        text = f"{path} could not be written ({fault.strerror}); nothing is left of it"
        raise MasqueradeError("E502", text) from fault


@dataclass(frozen=True)
class Folder:
    """A folder to read from; files are checked where it was saved with their hashes."""

    path: Path
    files: Mapping[str, Any] | None
    """Size and hash by name; None in the directory of a run."""

    @classmethod
    def open(cls, path: Path) -> "Folder":
        """Read the manifest, if there is one."""
        if not (path / MANIFEST).is_file():
            return cls(path, None)
        found = unseal((path / MANIFEST).read_bytes())
        if not isinstance(found, dict) or not isinstance(found.get("files"), dict):
            raise _damaged(path / MANIFEST)
        return cls(path, found["files"])

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, checked as they are read."""
        data = (self.path / name).read_bytes()
        if self.files is not None and self.files.get(name) != fingerprint(data):
            raise _damaged(self.path / name)
        return data


def _damaged(path: Path) -> MasqueradeError:
    text = f"{path} is damaged (its hash differs); it is not used. Save the result again"
    return MasqueradeError("E401", text)
