"""What is written is there whole or not at all, whatever fails and whoever plants a link."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from masquerade.storage import atomic
from tests.storage.disk import DeadDisk, Disk, Killed, raising
from tests.support import raises

FILES = {"a": b"first", "b": b"", "c": bytes(range(256)) * 9}
Write = Callable[[Path], None]


def write_file(path: Path) -> None:
    atomic.write_file(path, b"the new")


def write_folder(path: Path) -> None:
    atomic.write_folder(path, FILES)


def content(path: Path) -> object:
    """Return all that is at a path: the bytes of a file, those of a folder by name, or None."""
    if path.is_dir():
        return {each.name: content(each) for each in path.iterdir()}
    return path.read_bytes() if path.exists() else None


def old_file(path: Path) -> None:
    path.write_bytes(b"what was there before")


def nothing(path: Path) -> None:
    pass


CASES = {
    "over a file": (old_file, write_file, b"the new"),
    "a new file": (nothing, write_file, b"the new"),
    "a new folder": (nothing, write_folder, FILES),
}
cases = pytest.mark.parametrize(("begin", "write", "new"), CASES.values(), ids=CASES)


def faults(
    folder: Path, begin: Write, write: Write, disk: Callable[[int], Disk]
) -> Iterator[tuple[Path, BaseException]]:
    """Write with a fault at every step in turn, each in a folder of its own, until none is left."""
    at, fault = 0, None
    while at == 0 or fault is not None:
        at, fault = at + 1, None
        path = folder / str(at) / "x"
        path.parent.mkdir()
        begin(path)
        with pytest.MonkeyPatch.context() as patch:
            disk(at).mount(patch.setattr)
            try:
                write(path)
            except (OSError, Killed) as met:
                fault = met
        if fault is not None:
            yield path, fault
    assert at > 8


@cases
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_every_failing_step_leaves_the_old_or_the_new_and_nothing_else(
    tmp_path: Path, begin: Write, write: Write, new: object, number: int
) -> None:
    begin(tmp_path / "old")
    old = content(tmp_path / "old")
    seen = []
    for path, fault in faults(tmp_path, begin, write, lambda at: Disk(raising(number), at)):
        assert isinstance(fault, OSError)
        assert fault.errno == number
        seen.append(content(path))
        assert set(os.listdir(path.parent)) <= {"x"}
    assert all(found in (old, new) for found in seen)
    # Only what comes after the name is there can fail with the new in its place.
    assert seen == sorted(seen, key=lambda found: found == new)
    assert old in seen
    assert new in seen


@cases
def test_a_kill_at_any_step_leaves_the_old_or_the_new_and_the_next_write_clears_up(
    tmp_path: Path, begin: Write, write: Write, new: object
) -> None:
    begin(tmp_path / "old")
    old = content(tmp_path / "old")
    for path, fault in faults(tmp_path, begin, write, DeadDisk):
        assert isinstance(fault, Killed)
        assert content(path) in (old, new)
        if write is write_folder and content(path) == new:
            continue
        write(path)
        assert content(path) == new
        assert os.listdir(path.parent) == ["x"]


@pytest.mark.parametrize("platform", ["linux", "another"])
def test_a_folder_is_replaced_by_the_new_one_or_stays_whatever_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)

    def begin(path: Path) -> None:
        atomic.write_folder(path, {"a": b"before"})

    def write(path: Path) -> None:
        with atomic.new_folder(path, "-token", replace=True) as folder:
            atomic.write_at(folder / "a", b"after")

    for path, _ in faults(tmp_path, begin, write, lambda at: Disk(raising(errno.EIO), at)):
        assert content(path) in ({"a": b"before"}, {"a": b"after"})
        write(path)
        assert content(path) == {"a": b"after"}


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that links lead to."""
    path = tmp_path / "elsewhere" / "precious"
    path.parent.mkdir()
    path.write_bytes(b"precious")
    return path


@pytest.mark.parametrize("write", [write_file, write_folder])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_the_place_of_what_is_written_is_refused(
    tmp_path: Path, precious: Path, write: Write, dangling: bool
) -> None:
    target = precious.with_name("none") if dangling else precious
    (tmp_path / "x").symlink_to(target)
    with raises("E405", "x"):
        write(tmp_path / "x")
    assert (tmp_path / "x").readlink() == target
    assert content(precious.parent) == {"precious": b"precious"}
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "x"]


def test_no_link_in_the_place_of_a_temporary_is_followed(tmp_path: Path, precious: Path) -> None:
    for target in (precious, precious.parent, precious.with_name("none")):
        (tmp_path / ".tmp-file").symlink_to(target)
        with pytest.raises(OSError, match="symbolic link"):
            write_file(tmp_path / "file")
        (tmp_path / ".tmp-folder").symlink_to(target)
        write_folder(tmp_path / "folder")
        assert content(tmp_path / "folder") == FILES
        atomic.remove(tmp_path / "folder")
    assert content(precious.parent) == {"precious": b"precious"}


def test_a_link_is_not_written_at(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "x").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        atomic.write_at(tmp_path / "x", b"new")
    assert precious.read_bytes() == b"precious"


def test_a_folder_may_be_reached_over_a_link(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "short").symlink_to(precious.parent)
    write_file(tmp_path / "short" / "x")
    assert content(precious.parent) == {"precious": b"precious", "x": b"the new"}


def test_a_folder_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    atomic.write_folder(tmp_path / "x", {"mine": b""})
    with pytest.raises(OSError, match="not empty"):
        write_folder(tmp_path / "x")
    assert content(tmp_path) == {"x": {"mine": b""}}


@pytest.mark.parametrize("start", range(7))
def test_writing_at_a_place_keeps_what_is_before_it_and_nothing_behind(
    tmp_path: Path, start: int
) -> None:
    for added in (b"", b"new", b"a longer text"):
        (tmp_path / "x").write_bytes(b"before")
        atomic.write_at(tmp_path / "x", added, start)
        assert (tmp_path / "x").read_bytes() == b"before"[:start] + added


def test_a_disk_that_takes_a_byte_at_a_time_gets_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:1], at))
    write_folder(tmp_path / "x")
    assert content(tmp_path / "x") == FILES


@pytest.mark.parametrize(
    ("write", "order"),
    [
        (write_file, ["fsync .tmp-x", "replace .tmp-x", "fsync here"]),
        (
            write_folder,
            ["fsync a", "fsync b", "fsync c", "fsync .tmp-x", "replace .tmp-x", "fsync here"],
        ),
    ],
)
def test_all_is_synced_before_it_gets_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, order: list[str]
) -> None:
    trace: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        trace.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        fsync(file)

    def replaced(source: Any, target: Any) -> None:
        trace.append(f"replace {Path(source).name}")
        replace(source, target)

    (tmp_path / "here").mkdir()
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write(tmp_path / "here" / "x")
    assert trace == order


def test_of_a_link_only_the_link_is_removed(tmp_path: Path, precious: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").touch()
    (folder / "there").symlink_to(precious.parent)
    (folder / "nowhere").symlink_to(tmp_path / "none")
    (tmp_path / "link").symlink_to(precious)
    for each in (folder, tmp_path / "link"):
        atomic.remove(each)
    assert os.listdir(tmp_path) == ["elsewhere"]
    assert content(precious.parent) == {"precious": b"precious"}


def test_what_is_not_there_is_discarded_but_not_removed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic.remove(tmp_path / "none")
    atomic.discard(tmp_path / "none")
