"""Hostile bundles and files: refused with a code, at once, and in little memory.

python -m pytest tests/export/test_hostile.py -m drill    # 400,000 mutated bundles and inputs
"""

import hashlib
import io
import json
import os
import random
import shutil
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attacks.make_files import FILES, FOLDER, TABLE
from masquerade.errors import MasqueradeError
from masquerade.export import predict, self_contained
from masquerade.storage.manifest import seal
from tests.export.hostile import (
    READERS,
    ROWS,
    manifest,
    of_images,
    of_rows,
    write_bundle,
)
from tests.fuzzing import Found, code_of, mutated, over_processes, timed, tried
from tests.reliability import publish
from tests.support import raises

KNOWN = json.loads(TABLE.read_text(encoding="utf-8"))
MEMORY = 32 << 20
"""Bytes that refusing a file may take: the files are of kilobytes."""


@pytest.mark.parametrize("name", KNOWN)
def test_every_hostile_file_is_refused_at_once_in_little_memory(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(FOLDER / name, tmp_path))

    def reading() -> str:
        with raises(KNOWN[name]["code"]):
            READERS[KNOWN[name]["reader"]](path)
        return "refused"

    tracemalloc.start()
    try:
        timed(reading)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_the_table_is_that_of_the_script() -> None:
    assert {name: (each["reader"], each["code"]) for name, each in KNOWN.items()} == {
        name: (reader, code) for name, (reader, code, _) in FILES.items()
    }
    assert KNOWN.keys() == {path.name for path in FOLDER.iterdir()}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize("name", [predict.MODEL, predict.MANIFEST])
@pytest.mark.parametrize("made", [fifo, link_to("/dev/zero"), link_to("../away"), Path.mkdir])
def test_files_of_a_bundle_are_regular(
    tmp_path: Path, name: str, made: Callable[[Path], object]
) -> None:
    path = write_bundle(tmp_path / "bundle")
    (path / name).rename(tmp_path / "away")
    made(path / name)

    def reading() -> str:
        return code_of(lambda: predict.open_bundle(path), ("E406", "E408"))

    assert timed(reading)[0] != "read"


@pytest.mark.parametrize(
    "name", ["../../../../etc/passwd", "/dev/zero", "weights.bin", "card.md/../../away", ""]
)
def test_a_manifest_names_no_file_but_those_of_a_bundle(tmp_path: Path, name: str) -> None:
    path = write_bundle(tmp_path / "bundle")
    told = predict.open_bundle(path).manifest
    told["files"][name] = {"size": 1, "sha256": "0" * 64}
    (path / predict.MANIFEST).write_bytes(seal(told))
    with raises("E406", predict.MANIFEST):
        predict.open_bundle(path)


def test_no_more_is_read_of_a_file_than_its_manifest_says(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "bundle")
    with (path / predict.MODEL).open("ab") as file:
        file.truncate(1 << 34)
    tracemalloc.start()
    with raises("E406", predict.MODEL):
        predict.open_bundle(path)
    assert tracemalloc.get_traced_memory()[1] < MEMORY
    tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".png", ".parquet"])
def test_an_input_that_is_no_regular_file_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"input{suffix}"
    os.mkfifo(path)

    def reading() -> str:
        with raises("E301", path):
            predict.read_samples(of_rows() if suffix == ".parquet" else of_images(), path)
        return "refused"

    timed(reading)


def test_answers_overwrite_nothing(tmp_path: Path) -> None:
    for name in ("answers.csv", "outputs.npy"):
        (tmp_path / name).write_text("mine")
        with raises("E407", tmp_path / name):
            predict.check_answers(tmp_path / name)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_outputs_that_answer_nothing_are_refused_with_their_places(
    tmp_path: Path, wrong: float
) -> None:
    bundle = of_images()
    (tmp_path / "x.csv").write_text("\n".join([",".join("0" * 64)] * 3))
    places = predict.read_samples(bundle, tmp_path / "x.csv").places
    found = np.zeros((3, 10))
    found[:, 0] = -np.inf
    predict.check_finite(bundle, found, places)
    found[1, 4] = wrong
    with raises("E302", places.numbers[1]):
        predict.check_finite(bundle, found, places)


def inputs() -> list[tuple[Callable[[], predict.Bundle], str, bytes]]:
    """Whose input it is, how its name ends, and its bytes."""
    from PIL import Image
    from pyarrow import parquet, table

    x = np.arange(128.0).reshape(2, 1, 8, 8) / 128
    found: list[tuple[Callable[[], predict.Bundle], str, bytes]] = []

    def add(whose: Callable[[], predict.Bundle], suffix: str, write: Callable[..., object]) -> None:
        stream = io.BytesIO()
        write(stream)
        found.append((whose, suffix, stream.getvalue()))

    image = Image.fromarray((x[0, 0] * 255).astype(np.uint8))
    rows = table({"age": [1.5, 2.0, 3.0], "job": ["a", "b", "a"]})
    add(of_images, ".npy", lambda stream: np.save(stream, x))
    add(of_images, ".npz", lambda stream: np.savez(stream, x=x))
    add(of_images, ".npz", lambda stream: np.savez_compressed(stream, x=x))
    add(of_images, ".csv", lambda stream: np.savetxt(stream, x.reshape(2, -1), "%.3g", ","))
    add(of_images, ".png", lambda stream: image.save(stream, "PNG"))
    add(of_images, ".jpg", lambda stream: image.save(stream, "JPEG"))
    add(of_rows, ".csv", lambda stream: stream.write(b'age,job\n1.5,a\n"2",b\n3,-\n'))
    add(of_rows, ".tsv", lambda stream: stream.write("age\tjob\n1,5\ta\n2\tb\n".encode("utf-16")))
    add(of_rows, ".parquet", lambda stream: parquet.write_table(rows, stream))
    return found


def sealed() -> list[bytes]:
    """Manifests as they are before they are sealed."""
    model = {predict.MODEL: b"model"}
    return [json.dumps(manifest(model, each)).encode() for each in (None, ROWS)]


def resealed(body: bytes) -> bytes:
    """Wrap any bytes as a manifest is wrapped."""
    empty = seal({})
    whole = empty[: -len(b"{}}\n")] + body + b"}\n"
    old, new = (hashlib.sha256(each).hexdigest().encode() for each in (b"{}", body))
    return whole.replace(old, new, 1)


def mutations(seed: int, count: int = 20_000) -> Found:
    """Read so many mutated bundles and inputs."""
    choices = random.Random(seed)
    folder = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp") / f"fuzz-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    bundle, known, manifests = write_bundle(folder), inputs(), sealed()
    model = (bundle / predict.MODEL).read_bytes()

    def one(number: int) -> Callable[[], str]:
        if number % 3:
            whose, suffix, data = known[number % len(known)]
            path = folder / f"x{suffix}"
            path.write_bytes(mutated(data, choices))
            allowed = ("E301", "E302", "E504")
            return lambda: code_of(lambda: predict.read_samples(whose(), path), allowed)
        if number % 2:
            given = mutated(model, choices)
            return lambda: code_of(lambda: checked(given), ("E406",))
        data = resealed(mutated(manifests[number // 6 % 2], choices))
        (folder / predict.MANIFEST).write_bytes(data)
        return lambda: code_of(lambda: predict.open_bundle(folder), ("E402", "E406"))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tried(one(number) for number in range(count))
    finally:
        shutil.rmtree(folder)


def checked(model: bytes) -> None:
    try:
        self_contained.check(model)
    except ValueError as fault:
        raise MasqueradeError("E406", str(fault)) from None


def test_mutated_bundles_and_inputs_are_refused_with_a_code_or_read() -> None:
    found, _ = mutations(1, 4000)
    assert found["E301"] > 500
    assert min(found["E302"], found["E406"], found["read"]) > 100


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_four_hundred_thousand_mutated_bundles_and_inputs_are_refused_with_a_code_or_read() -> None:
    found, longest = over_processes("bundles", mutations, range(2, 22))
    figures = {"inputs": found.total(), **found, "slowest, s of CPU": round(longest, 3)}
    publish("bundles", "pytest tests/export/test_hostile.py -m drill", figures)
    assert found.total() == 400_000
    assert min(found["E301"], found["E302"], found["E406"], found["read"]) > 10_000


@pytest.mark.parametrize("kind", ["BMP", "GIF", "PPM", "TIFF"])
def test_an_image_is_what_its_name_says(tmp_path: Path, kind: str) -> None:
    from PIL import Image

    Image.new("L", (8, 8)).save(tmp_path / "x.png", kind)
    with raises("E301", tmp_path / "x.png"):
        predict.read_samples(of_images(), tmp_path / "x.png")
