"""Files that are nearly right, of data, settings, results and a federation: read, or a code.

python -m pytest tests/test_mutations.py -m drill    # a million of them
"""

import io
import json
import os
import random
import shutil
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from masquerade.config import toml
from masquerade.config.settings import Config
from masquerade.core.part import Axis, Part
from masquerade.data.readers import TABLES, read
from masquerade.data.readers.options import TableOptions
from masquerade.deploy import messages
from masquerade.deploy.facts import Facts, Form
from masquerade.errors import MasqueradeError
from masquerade.experiments.data_facts import DataFacts
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.storage import model_files
from masquerade.storage.manifest import fingerprint, seal
from masquerade.storage.results import read_results, read_sheets
from tests.data import originals
from tests.fuzzing import Found, code_of, mutated, over_processes, tried
from tests.reliability import publish
from tests.support import summary

# One says that samples will be given to clients that are made up.
pytestmark = pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning")
DATA = ("E201", "E301", "E302", "E504")
RNG = np.random.default_rng(3)


@dataclass(frozen=True)
class Kind:
    """Some files that are in order, of which one is mutated, and who reads them."""

    files: Mapping[str, bytes]
    mutated: str
    read: Callable[[Path], object]
    codes: tuple[str, ...]
    seal: Callable[[bytes], bytes] = lambda data: data
    """Makes a checksum fit again."""


def stream(write: Callable[[Any], object]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def datasets() -> list[Kind]:
    import pyarrow
    from pyarrow import parquet

    x, y = RNG.random((8, 3)), np.arange(8) % 2
    table = pyarrow.table({"age": x[:, 0], "job": [*"abababab"], "y": y})
    csv = "age;job;y;client\n" + "".join(f"{n},5;{'ab'[n % 2]};{n % 2};{n % 3}\n" for n in range(8))
    pixels = RNG.integers(0, 256, (4, 28, 28), dtype=np.uint8)
    batch = originals.cifar_batch(RNG.integers(0, 9, (2, 3072), dtype=np.uint8), y[:2])
    part = "data-00000-of-00001.arrow"
    kinds = {"age": {"dtype": "float64", "_type": "Value"}}
    saved = {
        "state.json": json.dumps({"_data_files": [{"filename": part}]}).encode(),
        "dataset_info.json": json.dumps({"features": kinds}).encode(),
        part: stream(lambda out: written(pyarrow, out, table)),
    }

    def kind(format: str, name: str, content: bytes, rest: Mapping[str, bytes] = {}) -> Kind:
        options = TableOptions(categorical=("job",) if format in TABLES else ())

        def reading(path: Path) -> object:
            alone = format in (*TABLES, "npz") and not rest
            return read(path / name if alone else path, "mine", format, table=options)

        return Kind({**rest, name: content}, name, reading, DATA)

    images = {
        "train-images-idx3-ubyte": originals.idx(pixels),
        "train-labels-idx1-ubyte": originals.idx(y[:4].astype(np.uint8)),
    }
    return [
        kind("npz", "x.npz", stream(lambda out: np.savez(out, x=x, y=y))),
        kind("npz", "x.npz", stream(lambda out: np.savez_compressed(out, x=x, y=y))),
        kind("csv", "x.csv", csv.encode()),
        kind("parquet", "x.parquet", stream(lambda out: parquet.write_table(table, out))),
        *(kind("huggingface", name, saved[name], rest=saved) for name in saved),
        *(kind("idx", name, images[name], rest=images) for name in images),
        kind("leaf", "all_data.json", originals.leaf({"a": ([[1.0] * 784] * 2, [1, 2])})),
        kind("leaf", "fed_train.h5", originals.fed_emnist({"a": (np.ones((2, 28, 28)), [1, 2])})),
        kind("cifar", "data_batch_1", batch),
    ]


def written(arrow: Any, out: Any, table: Any) -> None:
    with arrow.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)


def settings() -> Kind:
    text = toml.dump(Config()).encode()
    return Kind({"x.toml": text}, "x.toml", lambda path: load(path / "x.toml"), ("E201", "E202"))


def load(path: Path) -> object:
    return toml.parse(toml.read_file(path))


def results() -> list[Kind]:
    """What a folder of results has; hashes fit, so that what is behind them is read."""
    facts = DataFacts(3, (4,), "float32", "scale", 7, classes=2, class_names=("a", "b"))
    part = Part({"w": torch.ones(2, 3)}, {"w": torch.tensor([True, False])}, {"w": Axis(0)})
    model = model_files.encode({"params": part, "gate": Part({"b": torch.ones(2)})})
    summaries = json.dumps([summary().to_json()]).encode()

    def folder(path: Path) -> None:
        (name,) = (each.name for each in path.iterdir())
        data = (path / name).read_bytes()
        (path / "hashes.json").write_bytes(seal({"files": {name: fingerprint(data)}}))
        read_results(path)
        read_sheets(path)

    def whole(name: str, data: bytes, decode: Callable[[bytes], object]) -> Kind:
        return Kind({name: data}, name, lambda p: decode((p / name).read_bytes()), ("E401", "E403"))

    return [
        Kind({"summary.json": summaries}, "summary.json", folder, ("E401",)),
        whole("data.json", facts.to_bytes(), DataFacts.from_bytes),
        whole("1.safetensors", model, lambda data: model_files.decode(data, "1.safetensors")),
    ]


def federation() -> list[Kind]:
    """What the server and clients tell one another."""
    asked = messages.Question(run="r", client="c", nonce="n", kind="train", body=b"body")
    said = messages.Answer(run="r", client="c", nonce="n", body=b"body", flops=((1.0,), (2.0, 3.0)))
    facts = Facts(Form((6,), "float32", classes=3), 13, 5, 5, "0" * 64)

    def checked(data: bytes) -> bytes:
        return data[:4] + struct.pack("<I", zlib.crc32(data[12:])) + data[8:]

    def message(cls: Any, data: bytes) -> Kind:
        def reading(path: Path) -> object:
            return messages.read(cls, (path / "x").read_bytes())

        return Kind({"x": data}, "x", reading, ("E610",), checked)

    def facts_of(path: Path) -> None:
        try:
            found = from_json(Facts, parsed((path / "x").read_bytes()))
        except ValueError as error:
            # As the server does.
            raise MasqueradeError("E610", str(error)) from None
        found.check()

    return [
        message(messages.Question, messages.write(asked)),
        message(messages.Answer, messages.write(said)),
        Kind({"x": json.dumps(to_json(facts)).encode()}, "x", facts_of, ("E610",)),
    ]


def every_kind() -> list[Kind]:
    return [*datasets(), *results(), *federation(), settings()]


def mutations(seed: int, count: int = 20_000) -> Found:
    """Read so many mutated files."""
    choices = random.Random(seed)
    kinds = every_kind()
    folder = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp") / f"files-{os.getpid()}"

    def one(number: int) -> Callable[[], str]:
        kind = kinds[number % len(kinds)]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in kind.files.items():
            if name == kind.mutated:
                data = kind.seal(mutated(data, choices))
            (folder / name).write_bytes(data)
        return lambda: code_of(lambda: kind.read(folder), kind.codes)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tried(one(number) for number in range(count))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_mutated_files_are_refused_with_a_code_or_read(tmp_path: Path) -> None:
    for kind in every_kind():
        for name, data in kind.files.items():
            (tmp_path / name).write_bytes(data)
        kind.read(tmp_path)
        for each in tmp_path.iterdir():
            each.unlink()
    found, _ = mutations(1, 1000)
    assert min(found["E301"], found["E401"], found["E610"], found["read"]) > 10


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_six_hundred_thousand_mutated_files_are_refused_with_a_code_or_read() -> None:
    found, longest = over_processes("files", mutations, range(2, 32))
    figures = {"inputs": found.total(), **found, "slowest, s of CPU": round(longest, 3)}
    publish("files", "pytest tests/test_mutations.py -m drill", figures)
    assert found.total() == 600_000
    assert min(found["E301"], found["E401"], found["E610"], found["read"]) > 1000
