"""The files of a folder or an archive, read by name; nothing is ever unpacked to the disk."""

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from masquerade.errors import MasqueradeError
from masquerade.storage.regular import LARGEST, read_regular


@dataclass(frozen=True)
class Files:
    """The names of files, in order, and how to read each."""

    path: Path
    names: tuple[str, ...]
    _read: Callable[[str], bytes]

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return self._read(name)

    def named(self, *bases: str) -> dict[str, str]:
        """Find files by their names without folders: base -> full name."""
        found = {PurePosixPath(name).name: name for name in self.names}
        return {base: found[base] for base in bases if base in found}


@contextmanager
def opened(path: Path) -> Iterator[Files]:
    """Open a folder, a zip or tar archive, or a single file."""
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.is_file())
        names = tuple(each.relative_to(path).as_posix() for each in inside)
        yield Files(path, names, lambda name: read_regular(path / name))
    elif not path.is_file():
        raise MasqueradeError("E301", f"{path} is no regular file or folder; check the path")
    elif path.suffix == ".zip":
        with path.open("rb") as file, _zipped(path, file) as files:
            yield files
    elif ".tar" in path.suffixes or path.suffix == ".tgz":
        with tarfile.open(path) as archive:
            yield _tarred(path, archive)
    else:
        yield Files(path, (path.name,), lambda name: read_regular(path))


@contextmanager
def _zipped(path: Path, file: IO[bytes]) -> Iterator[Files]:
    with zipfile.ZipFile(file) as archive:
        sizes = {each.filename: each.file_size for each in archive.infolist() if not each.is_dir()}
        names = _checked(path, sizes)
        inner = [name for name in names if name.endswith(".zip")]
        if len(inner) == 1:
            # The host of UCI HAR packs its archive once more.
            with _zipped(path, io.BytesIO(archive.read(inner[0]))) as files:
                yield files
        else:
            yield Files(path, names, archive.read)


def _tarred(path: Path, archive: tarfile.TarFile) -> Files:
    members = {each.name: each for each in archive.getmembers() if each.isfile()}
    names = _checked(path, {name: each.size for name, each in members.items()})

    def read(name: str) -> bytes:
        file = archive.extractfile(members[name])
        assert file is not None
        return file.read()

    return Files(path, names, read)


def _checked(path: Path, sizes: dict[str, int]) -> tuple[str, ...]:
    """Refuse names that lead out of the archive, and sizes that no dataset has."""
    for name, size in sizes.items():
        steps = PurePosixPath(name.replace("\\", "/"))
        if steps.is_absolute() or ".." in steps.parts:
            text = f"{path} holds `{name}`, a name that leads out of it; do not use this archive"
            raise MasqueradeError("E301", text)
        if size > LARGEST:
            text = f"{path} holds `{name}`, which says it has {size} bytes; that cannot be right"
            raise MasqueradeError("E301", text)
    return tuple(sizes)
