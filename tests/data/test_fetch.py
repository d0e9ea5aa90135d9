"""Fetching: checked, resumed, and clear about a host that has gone; from a server on loopback."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from masquerade.data import cache, load
from masquerade.data.fetch import fetch
from masquerade.data.registry import NAMED, File, Named
from tests.data import originals
from tests.messages import Golden
from tests.support import raises

X = np.random.default_rng(2).integers(0, 256, (40, 28, 28), dtype=np.uint8)
Y = (np.arange(40) % 4).astype(np.uint8)
FILES = {
    "train-images-idx3-ubyte": originals.idx(X),
    "train-labels-idx1-ubyte": originals.idx(Y),
}


class Host(ThreadingHTTPServer):
    """A host with a few files, which can break off, and can refuse to go on in the middle."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {f"/{name}": content for name, content in FILES.items()}
        self.asked: list[tuple[str, str | None]] = []
        self.breaks_after: int | None = None
        self.ranges = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        most = self.server.breaks_after
        self.wfile.write(content[start : None if most is None else start + most])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


@pytest.fixture(autouse=True)
def toy(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Named:
    """A dataset named `toy` that the host has."""
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("masquerade.data.fetch.CHUNK", 1000)
    files = tuple(
        File(name, md5(content), (f"{host.address}/{name}",)) for name, content in FILES.items()
    )
    named = Named("Toy", "idx", "loopback", "none", "nobody", files, samples=40)
    monkeypatch.setitem(NAMED, "toy", named)
    return named


def test_a_dataset_is_fetched_checked_and_kept(host: Host, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    manifest = fetch("toy", watch=lambda *step: seen.append(step))
    assert (manifest.samples, manifest.origin, manifest.license) == (40, "loopback", "none")
    assert np.array_equal(load("toy").x[:, 0], X)
    assert [path for path, _ in host.asked] == [f"/{name}" for name in FILES]
    size = len(FILES["train-images-idx3-ubyte"])
    assert seen[0] == ("train-images-idx3-ubyte", 1000, size)
    assert (("train-images-idx3-ubyte", size, size)) in seen
    # What was downloaded is no longer needed.
    assert list((tmp_path / "cache" / ".downloads").iterdir()) == []


def test_a_download_that_broke_off_goes_on_where_it_was(host: Host, golden: Golden) -> None:
    host.breaks_after = 5000
    with raises("E601") as refusal:
        fetch("toy")
    golden(refusal.value)
    assert not cache.holds("toy")
    host.breaks_after = None
    fetch("toy")
    assert np.array_equal(load("toy").x[:, 0], X)
    images = [wanted for path, wanted in host.asked if "images" in path]
    assert images == [None, "bytes=5000-"]


def test_a_host_that_cannot_go_on_starts_again(host: Host) -> None:
    host.breaks_after = 5000
    with raises("E601"):
        fetch("toy")
    host.breaks_after, host.ranges = None, False
    fetch("toy")
    assert np.array_equal(load("toy").x[:, 0], X)


def test_a_file_that_had_come_whole_is_not_fetched_again(host: Host, tmp_path: Path) -> None:
    part = tmp_path / "cache" / ".downloads" / "toy" / "train-images-idx3-ubyte.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(FILES["train-images-idx3-ubyte"])
    fetch("toy")
    assert np.array_equal(load("toy").x[:, 0], X)


def test_a_file_with_another_hash_is_refused_and_not_kept(host: Host) -> None:
    host.files["/train-images-idx3-ubyte"] = originals.idx(X[::-1].copy())
    with raises("E301"):
        fetch("toy")
    assert not cache.holds("toy")
    host.files["/train-images-idx3-ubyte"] = FILES["train-images-idx3-ubyte"]
    fetch("toy")
    assert np.array_equal(load("toy").x[:, 0], X)


def test_a_second_host_is_asked_when_the_first_has_gone(
    host: Host, toy: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "http://127.0.0.1:1/nothing"
    files = tuple(replace(file, hosts=(gone, *file.hosts)) for file in toy.files)
    monkeypatch.setitem(NAMED, "toy", replace(toy, files=files))
    assert fetch("toy").samples == 40


@pytest.mark.parametrize("place", ["http://127.0.0.1:1/nothing", "{}/not-here"])
def test_a_host_that_has_gone_is_named_with_what_to_do(
    host: Host, toy: Named, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    address = place.format(host.address)
    files = (replace(toy.files[0], hosts=(address,)), toy.files[1])
    monkeypatch.setitem(NAMED, "toy", replace(toy, files=files))
    with raises("E601", address, "data add") as fault:
        fetch("toy")
    assert fault.value.exit_status == 6
    assert cache.names() == []


def test_too_few_samples_are_refused(toy: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMED, "toy", replace(toy, samples=41))
    with raises("E301", 40, "Toy", 41):
        fetch("toy")
    assert cache.names() == []


def test_a_bad_file_without_a_published_hash_is_asked_for_again(
    host: Host, toy: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = toy.files
    monkeypatch.setitem(NAMED, "toy", replace(toy, files=(replace(images, known=""), labels)))
    host.files["/train-images-idx3-ubyte"] = b"<html>come again later</html>"
    with raises("E301"):
        fetch("toy")
    host.files["/train-images-idx3-ubyte"] = FILES["train-images-idx3-ubyte"]
    assert fetch("toy").samples == 40
    # The labels were what was published, and are kept.
    assert [path for path, _ in host.asked].count("/train-labels-idx1-ubyte") == 1


@pytest.mark.parametrize("place", ["cache", "cache/.downloads"])
def test_a_cache_that_is_a_file_is_the_disks_refusal(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    with raises("E502", "Not a directory"):
        fetch("toy")


def test_a_disk_that_fills_up_during_a_download_is_named() -> None:
    def full(*step: object) -> None:
        raise OSError(28, "No space left on device")

    with raises("E501", "No space left"):
        fetch("toy", watch=full)
    assert fetch("toy").samples == 40


def test_nothing_is_fetched_twice_or_without_being_asked(host: Host) -> None:
    with raises("E301", "data fetch toy"):
        load("toy")
    assert host.asked == []
    fetch("toy")
    count = len(host.asked)
    with raises("E201", "--force"):
        fetch("toy")
    assert len(host.asked) == count
    fetch("toy", replace=True)
    assert len(host.asked) == 2 * count


def test_an_unknown_dataset_is_refused() -> None:
    with raises("E301", "`mnits`", "`mnist`"):
        fetch("mnits")


@pytest.mark.parametrize("name", ["femnist", "femnist_digits"])
def test_femnist_comes_as_an_archive_of_writers(
    name: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = NAMED[name].files
    images = np.random.default_rng(1).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:bz2") as archive:
        for part, chosen in (("train", [0, 1]), ("test", [2])):
            content = originals.fed_emnist({"f7": (images[chosen], chosen)})
            entry = tarfile.TarInfo(f"{file.name.removesuffix('.tar.bz2')}_{part}.h5")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    host.files[f"/{file.name}"] = packed.getvalue()
    here = File(file.name, md5(packed.getvalue()), (f"{host.address}/{file.name}",))
    monkeypatch.setitem(NAMED, name, replace(NAMED[name], files=(here,)))
    manifest = fetch(name)
    assert (manifest.samples, manifest.classes) == (3, NAMED[name].classes)
    found = load(name)
    assert found.train is not None
    assert found.train.tolist() == [True, True, False]
    assert np.array_equal(found.x[:, 0], images)
