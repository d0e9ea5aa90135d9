"""A disk that fails: the `os` module of whoever writes, with a fault at a chosen operation."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO

from masquerade.storage import atomic, run_directory

STEPS = {"open", "ftruncate", "write", "pwrite", "fsync", "close", "replace", "rename"}
STEPS |= {"mkdir", "makedirs", "listdir", "unlink", "rmdir"}
Fail = Callable[[str, Callable[[], Any]], None]


class Disk:
    """The `os` module, except that something happens at the n-th operation on the disk."""

    def __init__(self, fail: Fail, at: int):
        self.fail, self.at, self.count = fail, at, 0

    def __getattr__(self, name: str) -> Any:
        if name == "fdopen":
            return lambda *given: File(self, os.fdopen(*given))
        real = getattr(os, name)
        return self.counted(name, real) if name in STEPS else real

    def mount(self, patch: Callable[[Any, str, Any], None]) -> None:
        """Put this disk under all that writes; `patch` is `setattr`, or undoes itself."""
        for module in (atomic, run_directory):
            patch(module, "os", self)

    def counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.is_due():
                self.fail(name, partial(real, *args, **options))
            return real(*args, **options)

        return step

    def is_due(self) -> bool:
        return self.count == self.at


class File:
    """A file that is filled piece by piece, every piece of which is an operation on the disk."""

    def __init__(self, disk: Disk, file: BinaryIO):
        self.disk, self.file = disk, file

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *fault: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.file, name)
        return self.disk.counted("fill", real) if name in ("write", "flush") else real


class ShortDisk(Disk):
    """A disk whose n-th operation, if it is a write, takes half of it and says so."""

    def __init__(self, at: int):
        super().__init__(lambda name, real: None, at)

    def counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        if name == "pwrite" and self.count == self.at - 1:
            self.count += 1
            return lambda file, data, start: real(file, data[: -(-len(data) // 2)], start)
        return super().counted(name, real)


class Killed(BaseException):
    """The end of a process."""


class DeadDisk(Disk):
    """A disk on which nothing happens from the n-th operation on, as after a kill.

    The n-th itself is `half` done, if it is a write, or all `done`.
    """

    def __init__(self, at: int, half: bool = True, done: bool = False):
        super().__init__(kill if half and not done else end, at)
        self.done = done

    def is_due(self) -> bool:
        return self.count >= self.at

    def counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        if self.done and self.count == self.at - 1:
            self.count += 1
            return real
        return super().counted(name, real)


def end(name: str, real: Callable[[], Any]) -> None:
    # A process that ends closes its files, and so lets go of its locks.
    if name == "close":
        real()
    raise Killed


def kill(name: str, real: Callable[[], Any]) -> None:
    _half_done(name, real)
    raise Killed


def raising(number: int) -> Fail:
    """Fail as a disk does: with half of a write through, and with a file closed all the same."""

    def fail(name: str, real: Callable[[], Any]) -> None:
        _half_done(name, real)
        raise OSError(number, os.strerror(number))

    return fail


def _half_done(name: str, real: Callable[[], Any]) -> None:
    if name == "close":
        real()
    if name == "fill":
        assert isinstance(real, partial)
        real.func(*(data[: len(data) // 2] for data in real.args))
    if name == "pwrite":
        assert isinstance(real, partial)
        file, data, start = real.args
        os.pwrite(file, data[: len(data) // 2], start)
