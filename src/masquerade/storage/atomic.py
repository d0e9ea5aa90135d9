"""Changes to the disk that happen whole or not at all.

What is written is staged beside its place, synced and renamed, so that a crash at any instant
leaves the old or the new. No symbolic link is followed in the last part of a path. Processes
that write the same path have to keep out of each other's way.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from masquerade.errors import MasqueradeError

TEMPORARY = ".tmp-"
"""How the name of what is unfinished begins."""


def write_file(path: Path, data: bytes, private: bool = False) -> None:
    """Write a file that appears whole or not at all; only its owner can read a private one."""
    with _staged(path) as staged:
        write_at(staged, data, private=private)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder that appears with all its files, name → content, or not at all."""
    with new_folder(path) as staged:
        for name, data in files.items():
            write_at(staged / name, data)


@contextmanager
def new_folder(path: Path, token: str = "", replace: bool = False) -> Iterator[Path]:
    """Yield a folder to fill, which then appears with all that is in it, or not at all.

    Whoever fills it syncs the files. Writers of one path have different tokens, so that they do not
    share a place; with `replace` a folder that is there is given up for the new one.
    """
    with _staged(path, token, replace) as staged:
        # Left by a writer that was killed.
        if os.path.lexists(staged):
            remove(staged)
        os.mkdir(staged)
        yield staged
        sync(staged)


def write_at(path: Path, data: bytes, start: int = 0, private: bool = False) -> None:
    """Replace what lies behind byte `start` of a file, and wait until the disk has it."""
    # A pipe in its place would be waited for.
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
        refuse_second_name(file, path)
        os.ftruncate(file, start)
        if private:
            os.fchmod(file, 0o600)
        rest = memoryview(data)
        while len(rest) > 0:
            rest = rest[os.pwrite(file, rest, start + len(data) - len(rest)) :]
        os.fsync(file)


@contextmanager
def filling(path: Path, append: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write large things into, piece by piece; the disk has it at the end."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else os.O_TRUNC)
    with os.fdopen(os.open(path, flags, 0o644), "ab" if append else "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def move(path: Path, target: Path) -> None:
    """Give a file that is whole its name."""
    refuse_link(target)
    os.replace(path, target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    with _opened(path, os.O_RDONLY) as file:
        os.fsync(file)


def remove(path: Path) -> None:
    """Remove a file or a folder, but of a link only the link."""
    if path.is_symlink() or not path.is_dir():
        os.unlink(path)
        return
    for name in os.listdir(path):
        remove(path / name)
    os.rmdir(path)


def discard(path: Path) -> None:
    """Remove what nobody needs, if it is there and the disk lets us."""
    with suppress(OSError):
        remove(path)


def refuse_link(path: Path) -> None:
    """Refuse a path that is a symbolic link."""
    if path.is_symlink():
        raise linked(path)


def linked(path: Path) -> MasqueradeError:
    """Return the refusal of a path that is a symbolic link."""
    return MasqueradeError("E405", f"{path} leads over a symbolic link. Remove the link.")


def refuse_second_name(file: int, path: Path) -> None:
    """Refuse to write into an open file that has another name too, perhaps elsewhere."""
    if os.fstat(file).st_nlink > 1:
        text = f"{path} is a hard link: what is written into it would be in another file too."
        raise MasqueradeError("E405", f"{text} Put a copy in its place.")


@contextmanager
def _staged(path: Path, token: str = "", replace: bool = False) -> Iterator[Path]:
    """Yield a path beside another, and put what is written there in its place."""
    refuse_link(path)
    staged = path.with_name(TEMPORARY + path.name + token)
    try:
        yield staged
        if replace and path.is_dir():
            _exchange(staged, path)
        else:
            os.replace(staged, path)
    except BaseException:
        discard(staged)
        raise
    sync(path.parent)


def _exchange(staged: Path, path: Path) -> None:
    """Put a folder in the place of another, which comes back if that fails.

    Where the system cannot exchange two names, a crash between two renames leaves the old folder
    under the name of a temporary one.
    """
    if _exchanged(staged, path):
        discard(staged)
        return
    old = staged.with_name(f"{staged.name}.old")
    # Moving keeps a folder's time, by which it could be swept away while it is still needed.
    os.utime(path)
    os.rename(path, old)
    try:
        os.rename(staged, path)
    except OSError:
        os.rename(old, path)
        raise
    discard(old)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in an instant; tell whether the system could."""
    if sys.platform != "linux":
        return False
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2
    names = os.fsencode(one), os.fsencode(other)
    return rename is not None and rename(here, names[0], here, names[1], exchange) == 0


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags, 0o644)
    try:
        yield file
    finally:
        os.close(file)
