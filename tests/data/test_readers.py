"""Readers: files as their publishers wrote them give what was in them; bad ones give a code."""

import gzip
import io
import json
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from masquerade.data.dataset import Dataset
from masquerade.data.readers import FORMATS, read
from masquerade.data.readers.cifar import BATCHES
from masquerade.data.readers.gutenberg import roles
from masquerade.data.readers.text import ALPHABET
from masquerade.data.registry import NAMED
from tests.data import originals
from tests.data.originals import Array
from tests.messages import Golden
from tests.support import raises

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 0, 9, 1, 2, 2, 7], dtype=np.uint8)
COLORS = RNG.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
CLASSES = np.arange(12) % 10
TRAINED = [True] * 5 + [False] * 2


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def tarred(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def of(path: Path, format: str | None = None, **options: Any) -> Dataset:
    return read(path, "mine", format, options).dataset


def refused(path: Path, code: str, value: str, format: str | None = None, **options: Any) -> None:
    with raises(code, value):
        read(path, "mine", format, options)


def flags(dataset: Dataset) -> list[bool]:
    assert dataset.train is not None
    return list(dataset.train.tolist())


def owners(dataset: Dataset) -> list[int]:
    assert dataset.client is not None
    return list(dataset.client.tolist())


def mnist(folder: Path, prefix: str = "", test: str = "t10k", packed: bool = True) -> Path:
    originals.write_idx(folder, prefix, "train", IMAGES[:5], LABELS[:5], packed)
    originals.write_idx(folder, prefix, test, IMAGES[5:], LABELS[5:], packed)
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_idx_gives_images_and_labels_of_both_parts(tmp_path: Path, packed: bool) -> None:
    dataset = of(mnist(tmp_path, packed=packed))
    assert dataset.x.dtype == torch.uint8
    assert np.array_equal(dataset.x[:, 0], IMAGES)
    assert np.array_equal(dataset.y, LABELS)
    assert flags(dataset) == TRAINED


@pytest.mark.parametrize("kind", ["int16", "int32", "float32", "float64"])
def test_idx_numbers_have_their_big_end_first(tmp_path: Path, kind: str) -> None:
    images = (IMAGES[:5].astype(np.float64) - 100).astype(kind)
    originals.write_idx(tmp_path, "", "train", images, LABELS[:5])
    assert np.array_equal(of(tmp_path).x[:, 0], images)


def test_emnist_images_are_stood_up_and_letters_count_from_zero(tmp_path: Path) -> None:
    for part, labels in {"balanced": LABELS, "letters": LABELS + 1}.items():
        originals.write_idx(tmp_path, f"emnist-{part}-", "train", IMAGES.swapaxes(1, 2), labels)
    refused(tmp_path, "E301", "emnist-letters-")
    for part in ("balanced", "letters"):
        dataset = of(tmp_path, "idx", **NAMED[f"emnist_{part}"].options)
        assert np.array_equal(dataset.x[:, 0], IMAGES)
        assert np.array_equal(dataset.y, LABELS)


def cifar_files(pickled: bool) -> dict[str, bytes]:
    def batch(rows: slice) -> bytes:
        make = originals.cifar_batch if pickled else originals.cifar_binary
        return make(COLORS[rows], CLASSES[rows])

    names = (
        {"batches.meta": originals.Pickle().table({"label_names": originals.CIFAR10})}
        if pickled
        else {"batches.meta.txt": "\n".join([*originals.CIFAR10, ""]).encode()}
    )
    end = "" if pickled else ".bin"
    # The archive has them in another order than their numbers.
    return {
        f"cifar/{name}": content
        for name, content in {
            f"data_batch_2{end}": batch(slice(5, 9)),
            f"test_batch{end}": batch(slice(9, 12)),
            **names,
            f"data_batch_1{end}": batch(slice(0, 5)),
        }.items()
    }


@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("pack", [write, lambda folder, files: tarred(folder / "a.tar.gz", files)])
def test_cifar_batches_give_their_images_in_order(
    tmp_path: Path, pickled: bool, pack: Callable[[Path, dict[str, bytes]], Path]
) -> None:
    reading = read(pack(tmp_path, cifar_files(pickled)), "mine")
    assert np.array_equal(reading.dataset.x, COLORS)
    assert np.array_equal(reading.dataset.y, CLASSES)
    assert reading.dataset.classes == 10
    assert flags(reading.dataset) == [True] * 9 + [False] * 3
    assert list(reading.dataset.class_names) == originals.CIFAR10


@pytest.mark.parametrize("pickled", [True, False])
def test_cifar100_has_its_fine_labels(tmp_path: Path, pickled: bool) -> None:
    fine, coarse = CLASSES * 9, CLASSES
    contents = (
        originals.cifar_batch(COLORS, fine, "fine_labels")
        if pickled
        else originals.cifar_binary(COLORS, coarse, fine)
    )
    end = "" if pickled else ".bin"
    dataset = of(write(tmp_path, {f"train{end}": contents, f"test{end}": contents}), "cifar")
    assert dataset.classes == 100
    assert np.array_equal(dataset.y, np.tile(fine, 2))


def test_a_batch_with_more_than_256_names_is_read() -> None:
    images = np.zeros((300, 3, 32, 32), dtype=np.uint8)
    batch = BATCHES.read(originals.cifar_batch(images, np.arange(300) % 10))
    assert batch["data"].shape == (300, 3072)
    assert batch["labels"][299] == 9
    assert batch["filenames"][299] == "image_s_000299.png"


HOSTILE = {
    "calls a program": b"\x80\x02cposix\nsystem\nU\x04true\x85R.",
    "names another class": b"\x80\x02cbuiltins\neval\n.",
    "makes an object": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "calls the array's class": b"\x80\x02cnumpy\nndarray\nK\x01\x85R.",
    "has a name instead of a class": b"\x80\x02U\x0bnumpy dtypeU\x02u1\x85R.",
    "changes a dict": b"\x80\x02}}b.",
    "uses names from the stack": b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
    "asks a registry": b"\x80\x02\x82\x01.",
    "has a persistent id": b"\x80\x02Q.",
    "wants other types": b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",
    "is cut off": originals.cifar_batch(COLORS, CLASSES)[:-4000],
    "has an empty stack": b"\x80\x02a.",
    "forgets its mark": b"\x80\x02t.",
    "reads what was not put": b"\x80\x02h\x07.",
    "is no pickle": b"setup",
    "is empty": b"",
    "has nothing": b"\x80\x02}.",
    "has a shape that takes forever to print": b"\x80\x02)q\x00"
    + b"h\x00h\x00\x86q\x00" * 99
    + b"cnumpy.core.multiarray\n_reconstruct\n)R"
    + b"(K\x01h\x00\x85cnumpy\ndtype\nU\x02u1\x85R\x89U\x00tb.",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_pickle_that_is_no_batch_is_refused_and_never_run(tmp_path: Path, what: str) -> None:
    events: list[str] = []
    watching = True

    def hook(event: str, arguments: Any) -> None:
        if watching and event.split(".")[0] in ("pickle", "os", "subprocess", "exec"):
            events.append(event)

    write(tmp_path, {"data_batch_1": HOSTILE[what]})
    sys.addaudithook(hook)
    try:
        refused(tmp_path, "E301", "cifar", "cifar")
    finally:
        # A hook stays for good.
        watching = False
    assert [event for event in events if event not in ("os.scandir", "os.listdir")] == []


def test_an_array_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    honest = originals.cifar_batch(COLORS, CLASSES)
    lying = honest.replace(b"K\x0cM\x00\x0c\x86", b"K\x0dM\x00\x0c\x86")
    assert lying != honest
    refused(write(tmp_path, {"data_batch_1": lying}), "E301", "(13, 3072)")


def npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_cifar10c_is_read_in_blocks_of_kind_and_severity(tmp_path: Path) -> None:
    labels = np.tile([4, 2], 5).astype(np.uint8)
    fog, snow = (RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8) for _ in range(2))
    files = {"fog.npy": npy(fog), "snow.npy": npy(snow), "labels.npy": npy(labels)}
    reading = read(tarred(tmp_path / "CIFAR-10-C.tar.gz", files), "mine")
    place = reading.blocks.index("fog:3")
    assert len(reading.blocks) == 10
    block = slice(place * 2, place * 2 + 2)
    assert np.array_equal(reading.dataset.x[block], fog[4:6].transpose(0, 3, 1, 2))
    assert reading.dataset.y[block].tolist() == [4, 2]
    assert not any(flags(reading.dataset))
    trap = np.array([print], dtype=object)
    refused(write(tmp_path, files | {"fog.npy": npy(trap)}), "E301", "plain numbers", "cifar10c")


def har(train: Array) -> tuple[dict[str, bytes], dict[str, Array]]:
    count = len(train)
    made = {
        "features": RNG.uniform(-1, 1, (count, 561)),
        "signals": RNG.normal(size=(count, 9, 128)),
        "y": np.arange(count) % 6 + 1,
        "subject": np.array([7, 7, 3, 1, 3]),
    }
    return originals.har_files(**made, train=train), made


def test_har_is_read_from_folder_and_zip_as_features_and_as_signals(tmp_path: Path) -> None:
    files, made = har(np.array([True, True, True, False, False]))
    twice = originals.zipped({"names.txt": b"", "UCI HAR.zip": originals.zipped(files)})
    write(tmp_path, {f"folder/{name}": content for name, content in files.items()})
    write(tmp_path, {"once.zip": originals.zipped(files), "twice.zip": twice})
    for path in (tmp_path / "folder", tmp_path / "once.zip", tmp_path / "twice.zip"):
        reading = read(path, "mine")
        assert np.allclose(reading.dataset.x, made["features"], atol=1e-6)
        assert reading.dataset.y.tolist() == [0, 1, 2, 3, 4]
        assert owners(reading.dataset) == [2, 2, 1, 0, 1]
        assert flags(reading.dataset) == [True, True, True, False, False]
        assert reading.dataset.class_names[:2] == ("WALKING", "UP")
        signals = of(path, "har", **NAMED["har_signals"].options)
        assert np.allclose(signals.x, made["signals"], atol=1e-6)


def test_har_without_features_says_that_there_are_signals(tmp_path: Path) -> None:
    files, _ = har(np.array([True, True, True, False, False]))
    only = {name: content for name, content in files.items() if "/X_" not in name}
    refused(write(tmp_path, only), "E301", "`har_signals`")


def test_leaf_images_become_the_bytes_they_were(tmp_path: Path) -> None:
    flat = (IMAGES / 255).reshape(7, -1).tolist()
    users = {"f2": (flat[:3], [61, 4, 10]), "f1": (flat[3:5], [9, 0])}
    files = {
        "train/all_data_0.json": originals.leaf(users),
        "test/all_data_0.json": originals.leaf({"f2": (flat[5:], [2, 36]), "f0": ([], [])}),
    }
    dataset = of(write(tmp_path, files), None, **NAMED["femnist"].options)
    assert dataset.x.dtype == torch.uint8
    assert np.array_equal(dataset.x[:, 0], IMAGES[[5, 6, 0, 1, 2, 3, 4]])
    assert owners(dataset) == [1, 1, 1, 1, 1, 0, 0]
    assert dataset.names == ("f1", "f2")
    assert flags(dataset) == [False] * 2 + [True] * 5
    assert dataset.classes == 62
    digits = of(tmp_path, None, **NAMED["femnist_digits"].options)
    assert (digits.y.tolist(), digits.classes) == ([2, 4, 9, 0], 10)


def test_a_leaf_user_without_digits_leaves_no_name_among_them(tmp_path: Path) -> None:
    flat = (IMAGES / 255).reshape(7, -1).tolist()
    users = {"b": (flat[:1], [61]), "c": (flat[1:3], [9, 40]), "a": (flat[3:4], [0])}
    path = write(tmp_path, {"all_data.json": originals.leaf(users)})
    digits = of(path, "leaf", **NAMED["femnist_digits"].options)
    assert (owners(digits), digits.names) == ([1, 0], ("a", "c"))


def test_a_label_out_of_range_is_not_taken_for_a_letter_that_is_left_out(tmp_path: Path) -> None:
    files = {"a.json": originals.leaf({"u": ([[0.0] * 784] * 2, [1, 62])})}
    options = NAMED["femnist_digits"].options
    refused(write(tmp_path, files), "E302", "label 62", "leaf", **options)
    stored = originals.fed_emnist({"u": (IMAGES[:2], [1, 62])})
    path = write(tmp_path, {"fed_emnist_train.h5": stored})
    refused(path, "E302", "_train.h5, user `u`: label 62", "leaf", **options)


def test_femnist_in_hdf5_is_read_by_writer_and_part(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    train = originals.fed_emnist({"f1": (images[:2], [3, 61]), "f0": (images[2:4], [1, 2])})
    test = originals.fed_emnist({"f0": (images[4:], [40, 9])})
    path = write(tmp_path, {"fed_emnist_train.h5": train, "fed_emnist_test.h5": test})
    dataset = of(path, None, **NAMED["femnist"].options)
    # Files in the order of their names, users in theirs.
    order = [4, 5, 2, 3, 0, 1]
    assert torch.equal(dataset.x, torch.from_numpy(images[order])[:, None])
    assert dataset.y.tolist() == [40, 9, 1, 2, 3, 61]
    assert dataset.client is not None
    assert dataset.client.tolist() == [0, 0, 0, 0, 1, 1]
    assert dataset.train is not None
    assert dataset.train.tolist() == [False, False, True, True, True, True]
    digits = of(path, None, **NAMED["femnist_digits"].options)
    assert digits.y.tolist() == [9, 1, 2, 3]


def test_of_leafs_stages_the_last_is_read_and_no_sample_twice(tmp_path: Path) -> None:
    flat = (IMAGES / 255).reshape(7, -1).tolist()
    stages = {
        "data/all_data/all_data_0.json": {
            "a": (flat[:4], [1, 2, 3, 4]),
            "b": (flat[4:], [5, 6, 7]),
        },
        "data/sampled_data/x.json": {"a": (flat[:4], [1, 2, 3, 4]), "b": (flat[4:6], [5, 6])},
        "data/rem_user_data/x_keep_3.json": {"a": (flat[:4], [1, 2, 3, 4])},
        "data/train/x_keep_3_train_5.json": {"a": (flat[:2], [1, 2])},
        "data/test/x_keep_3_test_5.json": {"a": (flat[2:4], [3, 4])},
    }
    write(tmp_path, {"data/raw_data/users_and_plays.json": b"{}"})
    expected = ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4], [1, 2], [3, 4, 1, 2])
    for (path, users), labels in zip(stages.items(), expected, strict=True):
        write(tmp_path, {path: originals.leaf(users)})
        dataset = of(tmp_path, "leaf")
        assert dataset.y.tolist() == labels
        assert (dataset.train is None) == ("keep_3_t" not in path)


def test_leaf_texts_become_places_in_its_alphabet(tmp_path: Path) -> None:
    text = "To be, or not to be: that is the question. " * 3
    windows = [text[place : place + 80] for place in range(3)]
    following = [text[place + 80] for place in range(3)]
    path = write(tmp_path, {"all_data.json": originals.leaf({"HAMLET": (windows, following)})})
    dataset = of(path)
    assert (dataset.x.dtype, dataset.classes) == (torch.int8, 80)
    assert ["".join(ALPHABET[place] for place in row) for row in dataset.x.tolist()] == windows
    assert [ALPHABET[place] for place in dataset.y.tolist()] == following
    strange = originals.leaf({"HAMLET": ([windows[0][:79] + "é"], ["a"])})
    refused(write(tmp_path, {"all_data.json": strange}), "E301", "'é'")


PLAYS = """\
header
  by William Shakespeare
  Nobody. Sonnets are spoken by nobody.



1604

A SAD PLAY

by William Shakespeare

DRAMATIS PERSONAE

ACT I
  KING. ClientInfo goes   there, in the dark
    so late at night?
    Speak!
  Queen. It is I, my
    lord, and
    no other; I could not sleep for all the noise of the wind upon the walls of the tower.
Exeunt
    She yawns.
  QUEEN. Good night.
  FOOL. Ha.
    Ha.

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1
not spoken
DUKE. Come
hither
now
<a stage direction>
silence
EGEON. No.
"""


def test_a_speech_goes_to_its_role_under_leafs_rules() -> None:
    spoken = roles(PLAYS)
    # Fewer than three lines are too few: the fool and Egeon are left out.
    assert list(spoken) == ["A_SAD_PLAY_KING", "A_SAD_PLAY_QUEEN", "THE_COMEDY_OF_ERRORS_DUKE"]
    assert (
        spoken["A_SAD_PLAY_KING"] == "ClientInfo goes there, in the dark so late at night? Speak! "
    )
    # A line that nothing is known of does not end a speech.
    assert spoken["A_SAD_PLAY_QUEEN"].endswith("walls of the tower. She yawns. Good night. ")
    assert spoken["THE_COMEDY_OF_ERRORS_DUKE"] == "Come hither now "


def test_gutenberg_text_becomes_windows_of_roles(tmp_path: Path) -> None:
    queen = roles(PLAYS)["A_SAD_PLAY_QUEEN"]
    dataset = of(write(tmp_path, {"100.txt": b"\xef\xbb\xbf" + PLAYS.encode()}))
    assert len(dataset.y) == len(queen) - 80
    assert "".join(ALPHABET[place] for place in dataset.x[3].tolist()) == queen[3:83]
    assert ALPHABET[int(dataset.y[3])] == queen[83]
    assert dataset.names == ("A_SAD_PLAY_QUEEN",)
    refused(write(tmp_path, {"100.txt": b"Hamlet"}), "E301", "#100")


def png(pixels: Array) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def deep_colors() -> bytes:
    """A PNG with 16 bits for each of three colors, which Pillow reads but does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", 32, 32, 16, 2, 0, 0, 0)
    rows = zlib.compress(bytes(32 * (1 + 32 * 6)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_images_have_the_class_of_their_folder(tmp_path: Path) -> None:
    color = COLORS[:4].transpose(0, 2, 3, 1).copy()
    files = {
        f"{part}/{animal}/1.png": png(color[place])
        for place, (part, animal) in enumerate(
            [("test", "cat"), ("test", "dog"), ("train", "cat"), ("train", "dog")]
        )
    }
    reading = read(write(tmp_path, files), "mine")
    assert np.array_equal(reading.dataset.x, COLORS[:4])
    assert (reading.dataset.y.tolist(), reading.dataset.class_names) == (
        [0, 1, 0, 1],
        ("cat", "dog"),
    )
    assert flags(reading.dataset) == [False, False, True, True]


def test_gray_images_have_one_channel_and_all_have_one_size(tmp_path: Path) -> None:
    write(tmp_path, {f"{place % 2}/{place}.PNG": png(IMAGES[place]) for place in range(4)})
    dataset = of(tmp_path)
    assert np.array_equal(dataset.x[:, 0], IMAGES[[0, 2, 1, 3]])
    assert dataset.train is None
    refused(write(tmp_path, {"0/odd.png": png(IMAGES[0][:20])}), "E301", "odd.png")


def test_all_faults_of_a_folder_of_images_are_named(tmp_path: Path, golden: Golden) -> None:
    files = {f"cat/{place}.png": png(IMAGES[place]) for place in range(4)}
    files |= {"dog/odd.png": png(IMAGES[0][:20]), "dog/note.png": b"a note", "dog/none.jpg": b""}
    with raises("E301", "3 of 7", "dog/odd.png", "dog/note.png", "dog/none.jpg") as refusal:
        of(write(tmp_path, files))
    golden(refusal.value)


def test_a_ppm_of_bytes_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, {"cat/b.ppm": b"P6 # small\n1 1\n255\n#9#"})
    assert of(path).x.flatten().tolist() == list(b"#9#")


def test_an_npz_with_other_names_says_which_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", X=COLORS, labels=CLASSES)
    with raises("E301", "X, labels"):
        of(tmp_path / "mine.npz")


def test_an_npz_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=COLORS, y=CLASSES, client=CLASSES % 3)
    dataset = of(tmp_path / "mine.npz")
    assert read(tmp_path / "mine.npz", "mine").format == "npz"
    assert np.array_equal(dataset.x, COLORS)
    assert owners(dataset) == (CLASSES % 3).tolist()


def lying_header() -> bytes:
    """An idx file that says it has 2^32 - 1 images."""
    return b"\0\0\x08\x03" + b"\xff\xff\xff\xff" + originals.idx(IMAGES)[8:]


def without_end(content: bytes) -> bytes:
    return content[: len(content) * 2 // 3]


FAULTS: dict[str, tuple[str, dict[str, bytes], str, str]] = {
    # Format, files, code, and a value that the message names.
    "idx cut off": (
        "idx",
        {
            "train-images-idx3-ubyte": without_end(originals.idx(IMAGES)),
            "train-labels-idx1-ubyte": originals.idx(LABELS),
        },
        "E301",
        "5504 bytes",
    ),
    "idx absurd": (
        "idx",
        {
            "train-images-idx3-ubyte": lying_header(),
            "train-labels-idx1-ubyte": originals.idx(LABELS),
        },
        "E301",
        "3367254359296 bytes",
    ),
    "idx other labels": (
        "idx",
        {
            "train-images-idx3-ubyte": originals.idx(IMAGES),
            "train-labels-idx1-ubyte": originals.idx(LABELS[:3]),
        },
        "E301",
        "(3,)",
    ),
    "idx no labels": (
        "idx",
        {"train-images-idx3-ubyte": originals.idx(IMAGES)},
        "E301",
        "train labels",
    ),
    "idx label": (
        "idx",
        {
            "train-images-idx3-ubyte": originals.idx(IMAGES),
            "train-labels-idx1-ubyte": originals.idx(LABELS + (LABELS == 9)),
        },
        "E302",
        "label 10",
    ),
    "idx cut off at the end": (
        "idx",
        {
            "train-images-idx3-ubyte.gz": gzip.compress(originals.idx(IMAGES))[:-1],
            "train-labels-idx1-ubyte.gz": gzip.compress(originals.idx(LABELS)),
        },
        "E301",
        "gzip",
    ),
    "idx of nothing": (
        "idx",
        {"train-images-idx3-ubyte": b"", "train-labels-idx1-ubyte": b""},
        "E301",
        "idx",
    ),
    "binary cut off": ("cifar", {"data_batch_1.bin": b"\0" * 3000}, "E301", "3000 bytes"),
    "binary label": (
        "cifar",
        {"data_batch_1.bin": b"\x0a" + b"\0" * 3072},
        "E302",
        "label 10",
    ),
    "pickled label": (
        "cifar",
        {"data_batch_1": originals.cifar_batch(COLORS, CLASSES + 3)},
        "E302",
        "label 10",
    ),
    "leaf label": (
        "leaf",
        {"a.json": originals.leaf({"u": ([[0.0] * 784], [62])})},
        "E302",
        "label 62",
    ),
    "leaf NaN": (
        "leaf",
        {"a.json": originals.leaf({"u": ([[float("nan")] * 784], [1])})},
        "E302",
        "a.json, user `u`",
    ),
    "leaf NaN without pixels": (
        "leaf",
        {"b.json": originals.leaf({"u": ([[0.5]], [1]), "v": ([[float("nan")]], [1])})},
        "E302",
        "b.json, user `v`",
    ),
    "leaf level": (
        "leaf",
        {"a.json": originals.leaf({"u": ([[0.5] * 784], [1])})},
        "E302",
        "a.json, user `u`",
    ),
    "leaf label between": (
        "leaf",
        {"a.json": originals.leaf({"u": ([[0.0] * 784] * 2, [1, 1.5])})},
        "E302",
        "a.json, user `u`: label 1.5",
    ),
    "leaf cut off": (
        "leaf",
        {"a.json": originals.leaf({"u": ([[0.0] * 784], [1])})[:-9]},
        "E301",
        "leaf",
    ),
    "leaf without users": ("leaf", {"a.json": json.dumps({"rows": []}).encode()}, "E301", "users"),
    "leaf short window": (
        "leaf",
        {"a.json": originals.leaf({"u": (["abc"], ["d"])})},
        "E301",
        "reshape",
    ),
    "image damaged": ("images", {"cat/a.png": without_end(png(IMAGES[0]))}, "E301", "images"),
    "image of 16 bits": (
        "images",
        {"cat/a.png": png(IMAGES[0].astype(np.uint16) * 257)},
        "E301",
        "cat/a.png",
    ),
    "image of 16 bits and colors": (
        "images",
        {"cat/a.png": deep_colors(), "cat/b.png": png(COLORS[0].transpose(1, 2, 0).copy())},
        "E301",
        "cat/a.png",
    ),
    "image in 16 bits of PPM": (
        "images",
        {"cat/a.ppm": b"P6 # wide\n1 1\n65535\n" + bytes(6), "cat/b.ppm": b"P6 1 1 255\n###"},
        "E301",
        "cat/a.ppm",
    ),
    "image without folder": ("images", {"a.png": png(IMAGES[0])}, "E301", "a.png"),
    "zip that leads out": (
        "images",
        {"a.zip": originals.zipped({"../../cat/a.png": png(IMAGES[0])})},
        "E301",
        "cat/a.png",
    ),
    "zip that leads up": (
        "images",
        {"a.zip": originals.zipped({"..\\cat\\a.png": png(IMAGES[0])})},
        "E301",
        "..",
    ),
    "zip at the root": (
        "images",
        {"a.zip": originals.zipped({"/cat/a.png": png(IMAGES[0])})},
        "E301",
        "/cat/a.png",
    ),
    "zip cut off": (
        "images",
        {"a.zip": without_end(originals.zipped({"cat/a.png": png(IMAGES[0])}))},
        "E301",
        "a.zip",
    ),
    "har cut off": (
        "har",
        {
            name: without_end(text) if "y_train" in name else text
            for name, text in har(np.array([True] * 3 + [False] * 2))[0].items()
        },
        "E302",
        "`y`",
    ),
    "har NaN": (
        "har",
        {
            name: text.replace(text.split()[0], b"NaN", 1) if "X_train" in name else text
            for name, text in har(np.array([True] * 3 + [False] * 2))[0].items()
        },
        "E302",
        "NaN",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_files_are_refused_with_a_code(tmp_path: Path, fault: str, golden: Golden) -> None:
    format, files, code, value = FAULTS[fault]
    write(tmp_path, files)
    single = "zip" in fault
    path = tmp_path / next(iter(files)) if single else tmp_path
    named = {"leaf": "femnist", "idx": "mnist"}.get(format)
    with raises(code, value) as refusal:
        read(path, "mine", format, NAMED[named].options if named else {})
    golden(refusal.value)


def test_an_idx_header_is_not_believed_even_when_packed(tmp_path: Path) -> None:
    # Three terabytes are announced; none of them may be asked for.
    content = gzip.compress(lying_header())
    files = {"train-images-idx3-ubyte.gz": content, "train-labels-idx1-ubyte.gz": content}
    refused(write(tmp_path, files), "E301", "3367254359296 bytes")


def test_a_tar_that_leads_out_or_is_cut_off_is_refused(tmp_path: Path) -> None:
    out = tarred(tmp_path / "out.tar.gz", {"../data_batch_1": b""})
    refused(out, "E301", "../data_batch_1")
    torn = tarred(tmp_path / "torn.tar.gz", cifar_files(pickled=True))
    torn.write_bytes(without_end(torn.read_bytes()))
    refused(torn, "E301", "torn.tar.gz")


def test_an_archive_with_a_giant_inside_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("masquerade.data.readers.files.LARGEST", 100)
    files = {"cat/a.png": bytes(101)}
    (tmp_path / "a.zip").write_bytes(originals.zipped(files))
    for path in (tmp_path / "a.zip", tarred(tmp_path / "a.tar.gz", files)):
        refused(path, "E301", "101 bytes")


def test_what_is_not_there_or_not_known_is_said(tmp_path: Path) -> None:
    refused(tmp_path / "no", "E301", "no")
    refused(write(tmp_path, {"a.doc": b""}), "E301", "--format")
    refused(tmp_path, "E201", "`parquet`", "parket")


def test_every_named_dataset_has_a_format_and_a_hash_or_a_count() -> None:
    for name, named in NAMED.items():
        assert named.format in FORMATS, name
        assert named.origin, name
        assert named.license, name
        assert named.citation, name
        assert named.files or named.advice, name
        for file in named.files:
            assert file.known.startswith(("md5:", "sha256:")) or named.samples, name
