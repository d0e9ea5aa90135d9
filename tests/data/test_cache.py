"""The cache: whole or not at all, compared before use, mapped instead of read."""

import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from masquerade.data import cache, from_arrays, load
from masquerade.data.fetch import add
from masquerade.data.readers.reading import Reading
from masquerade.data.registry import NAMED
from tests.data import originals
from tests.messages import Golden
from tests.support import raises, warns

X = np.random.default_rng(2).integers(0, 256, (30, 1, 28, 28), dtype=np.uint8)
Y = np.arange(30) % 4


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def reading(client: Any = Y % 3, **more: Any) -> Reading:
    dataset = from_arrays(X, Y, client, name="mine", **more)
    return Reading(replace(dataset, class_names=("a", "b", "c", "d")))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


def test_what_is_written_is_read(root: Path) -> None:
    manifest = cache.write("mine", reading(train=Y > 0, classes=9), origin="here", license="MIT")
    assert (manifest.samples, manifest.classes, manifest.clients) == (30, 9, 3)
    assert (manifest.shape, manifest.type) == ([1, 28, 28], "uint8")
    assert (manifest.origin, manifest.license, manifest.class_names[3]) == ("here", "MIT", "d")
    assert cache.describe("mine") == manifest
    assert cache.names() == ["mine"]
    loaded = load("mine")
    assert (loaded.name, loaded.classes) == ("mine", 9)
    assert np.array_equal(loaded.x, X)
    assert np.array_equal(loaded.y, Y)
    assert loaded.client is not None
    assert loaded.train is not None
    assert np.array_equal(loaded.client, Y % 3)
    assert np.array_equal(loaded.train, Y > 0)
    assert sorted(each.name for each in root.iterdir()) == ["mine"]


def test_names_of_clients_are_kept(root: Path) -> None:
    cache.write("mine", reading([f"p{each}" for each in Y % 3]))
    assert load("mine").names == ("p0", "p1", "p2")
    # A manifest that was written before names were kept has none.
    path = root / "mine" / "manifest.json"
    older = {k: v for k, v in json.loads(path.read_text()).items() if k != "client_names"}
    path.write_text(json.dumps(older))
    assert load("mine").names == ()


def test_samples_are_mapped_and_writing_to_them_leaves_the_file(root: Path) -> None:
    cache.write("mine", reading())
    before = tree(root)
    loaded = load("mine")
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(root / "mine" / "x.npy") in maps.read_text()
    loaded.x.zero_()
    assert tree(root) == before


@pytest.mark.parametrize("column", ["x", "y", "client"])
def test_a_changed_byte_is_found_before_use(root: Path, column: str) -> None:
    cache.write("mine", reading())
    path = root / "mine" / f"{column}.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with raises("E301", f"{column}.npy", "SHA-256", "masquerade data fetch mine"):
        load("mine")


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda folder: (folder / "x.npy").unlink(), "x.npy"),
        (lambda folder: os.truncate(folder / "x.npy", 100), "x.npy"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest"),
        (lambda folder: (folder / "manifest.json").write_text('{"a": 1}'), "manifest"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest"),
    ],
)
def test_damage_is_named_by_its_file(root: Path, damage: Any, file: str) -> None:
    cache.write("mine", reading())
    damage(root / "mine")
    with raises("E301", file):
        load("mine")


def test_another_format_is_refused(root: Path) -> None:
    cache.write("mine", reading())
    path = root / "mine" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with raises("E301", "99"):
        load("mine")


def test_what_is_there_is_replaced_only_on_demand(root: Path) -> None:
    cache.write("mine", reading())
    before = tree(root)
    with raises("E201", "--force"):
        cache.write("mine", reading(classes=7))
    assert tree(root) == before
    cache.write("mine", reading(classes=7), replace=True)
    assert load("mine").classes == 7
    assert sorted(each.name for each in root.iterdir()) == ["mine"]


@pytest.mark.parametrize("name", ["../mine", "a/b", "", ".hidden", "a b", "x" * 65, "/tmp/x"])
def test_names_that_lead_elsewhere_are_refused(root: Path, name: str) -> None:
    with raises("E203"):
        cache.write(name, reading())
    assert not root.exists()
    assert not cache.holds(name)


def test_a_disk_that_refuses_leaves_what_was_there(
    root: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    cache.write("mine", reading())
    before = tree(root)

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("masquerade.data.cache.np.save", "masquerade.storage.atomic.sync"):
        with monkeypatch.context() as patched:
            patched.setattr(name, full)
            with raises("E501") as refusal:
                cache.write("mine", reading(classes=7), replace=True)
            golden(refusal.value)
        assert tree(root) == before


@pytest.fixture
def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on a system that cannot exchange two names at once."""
    monkeypatch.setattr("ctypes.CDLL", lambda *_: None)


@pytest.mark.usefixtures("without_exchange")
def test_what_was_there_comes_back_when_the_new_cannot_take_its_place(
    root: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    cache.write("mine.v2", reading())
    before = tree(root)
    rename = os.rename

    def refusing(source: Path, target: Path) -> None:
        # The new dataset has a name of 32 digits at its end, and may not leave it.
        if len(source.name.rsplit("-")[-1]) == 32:
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr("masquerade.data.cache.os.rename", refusing)
    with raises("E502", "Input/output error") as refusal:
        cache.write("mine.v2", reading(classes=7), replace=True)
    golden(refusal.value)
    assert tree(root) == before


@pytest.mark.usefixtures("without_exchange")
def test_two_that_replace_a_dotted_name_do_not_share_a_place(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("mine.v2", reading())
    moved = []
    rename = os.rename

    def watched(source: Path, target: Path) -> None:
        moved.append(target.name)
        rename(source, target)

    monkeypatch.setattr("masquerade.data.cache.os.rename", watched)
    for _ in range(2):
        cache.write("mine.v2", reading(), replace=True)
    first, _, second, _ = moved
    assert first != second


def test_what_a_killed_writer_left_is_swept_away_after_a_day(root: Path) -> None:
    for name, age in (("lost", 2), ("lost.old", 2), ("busy", 0)):
        left = root / f".tmp-{name}"
        left.mkdir(parents=True)
        (left / "x.npy").touch()
        then = time.time() - age * 86_400
        os.utime(left, (then, then))
    cache.write("mine", reading())
    assert sorted(each.name for each in root.iterdir()) == [".tmp-busy", "mine"]


def test_bad_files_leave_the_cache_untouched(root: Path, tmp_path: Path) -> None:
    cache.write("mine", reading())
    before = tree(root)
    files = tmp_path / "files"
    files.mkdir()
    (files / "train-images-idx3-ubyte").write_bytes(originals.idx(X[:, 0])[:-1])
    (files / "train-labels-idx1-ubyte").write_bytes(originals.idx(Y.astype(np.uint8)))
    (tmp_path / "bad.csv").write_text("a,y\nnan,0\n")
    for path, code in ((files, "E301"), (tmp_path / "bad.csv", "E302"), (tmp_path / "no", "E301")):
        for name in ("mine", "other"):
            with raises(code):
                add(name, path, replace=True)
    assert tree(root) == before


def test_a_dataset_with_too_few_samples_does_not_get_a_known_name(
    root: Path, tmp_path: Path
) -> None:
    originals.write_idx(tmp_path / "files", "", "train", X[:, 0], Y.astype(np.uint8))
    with raises("E301", "30", "MNIST", "70000", "--format"):
        add("mnist", tmp_path / "files")
    assert not root.exists()
    manifest = add("few", tmp_path / "files")
    assert (manifest.samples, manifest.classes) == (30, 4)
    assert str(tmp_path / "files") in manifest.origin
    assert np.array_equal(load("few").x, X)


def test_a_known_name_brings_its_origin_and_license(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NAMED, "mnist", replace(NAMED["mnist"], samples=30))
    originals.write_idx(tmp_path / "files", "", "train", X[:, 0], Y.astype(np.uint8))
    named = NAMED["mnist"]
    with raises("E301", "-ubyte.gz"):
        add("mnist", tmp_path / "files")
    contents = {
        file.name: (tmp_path / "files" / file.name).read_bytes() for file in named.files[:2]
    }
    files = tuple(
        replace(file, known=f"sha256:{hashlib.sha256(contents[file.name]).hexdigest()}")
        for file in named.files[:2]
    )
    monkeypatch.setitem(NAMED, "mnist", replace(named, files=files))
    manifest = add("mnist", tmp_path / "files")
    assert (manifest.origin, manifest.citation) == (named.origin, named.citation)


def test_samples_are_compared_by_their_content_however_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    files = NAMED["mnist"].files[:2]
    named = replace(NAMED["mnist"], samples=30, classes=None, files=files)
    packed, plain, npz = tmp_path / "packed", tmp_path / "plain", tmp_path / "a.npz"
    for folder, is_packed in ((packed, True), (plain, False)):
        originals.write_idx(folder, "", "train", X[:, 0], Y.astype(np.uint8), packed=is_packed)
    np.savez(npz, x=X, y=Y)
    digest = hashlib.sha256(X.tobytes())
    digest.update(Y.astype("<i8").tobytes())

    def origin_of(path: Path, content: str) -> str:
        monkeypatch.setitem(NAMED, "mnist", replace(named, content=content))
        format = "npz" if path is npz else None
        return add("mnist", path, format, replace=True).origin

    ways = (packed, plain, npz)
    assert {origin_of(each, digest.hexdigest()) for each in ways} == {named.origin}
    # A file that is named as the published one has to be it; others say that they differ.
    with raises("E301", "-ubyte.gz", "--format idx"):
        origin_of(packed, "0")
    assert {origin_of(each, "0").partition(", ")[2] for each in (plain, npz)} == {
        "other than the published samples, or in another order"
    }
    # All files that differ are named: which of them has other samples is not known.
    with raises("E301", *(file.name for file in files)):
        origin_of(packed, "0")
    # Labels of another dataset would be put beside these samples.
    monkeypatch.setitem(NAMED, "mnist", replace(named, content=digest.hexdigest()))
    monkeypatch.setitem(
        NAMED, "fashion_mnist", replace(NAMED["fashion_mnist"], samples=30, classes=None)
    )
    for each in ways:
        with raises("E301", "MNIST", "add it as mnist"):
            add("fashion_mnist", each, "npz" if each is npz else None)
    # Nobody knows what is in them: they were read and counted, and that is all.
    with warns("W307") as heard:
        assert "not compared with a published hash" in origin_of(packed, "")
    golden(heard[0].message)
    assert origin_of(plain, "") == f"added from {plain}, not compared with a published hash"


def test_a_known_name_is_counted_in_every_format(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "few.npz"
    np.savez(path, x=X, y=Y)
    for name, named in (("cifar10", (30, "samples")), ("femnist", (4, "classes"))):
        with raises("E301", *named, "--format npz"):
            add(name, path, "npz")
    np.savez(path, x=np.zeros((10_299, 1)), y=np.arange(10_299) % 6)
    with raises("E301", "UCI HAR", "30"):
        add("har", path, "npz")
    assert not root.exists()


def test_a_known_dataset_that_is_not_here_says_how_to_get_it() -> None:
    with raises("E301", "data fetch cifar10`", "data add cifar10"):
        load("cifar10")


def test_an_unknown_name_lists_what_is_here_and_what_can_be_had() -> None:
    cache.write("mine", reading())
    with raises("E301", "`cifar11`", "digits", "mine", "mnist"):
        load("cifar11")


def test_without_a_named_folder_the_platforms_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASQUERADE_CACHE")
    assert cache.root().name == "masquerade"
    assert cache.root().is_absolute()


def test_a_dataset_of_the_cache_can_be_partitioned_and_trained(root: Path) -> None:
    import masquerade as mq

    cache.write("mine", reading())
    federation = mq.partition(load("mine"), None, mq.ByClient())
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 4))
    result = mq.run(mq.methods.FedAvg(local_epochs=1), model, federation, 1)
    assert result.summaries[0].data == "mine"
