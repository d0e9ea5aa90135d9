"""Bundles made by hand, without torch and without a training, and who reads hostile files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.make_files import onnx
from masquerade.data.readers import read
from masquerade.export import predict
from masquerade.export.predict import Bundle, open_bundle, read_samples
from masquerade.storage.manifest import fingerprint, seal
from masquerade.tables.known import KnownColumn
from masquerade.tables.layout import Layout
from masquerade.tables.schema import Schema

AGE = KnownColumn("age", (), tuple(map(float, range(11))))
ROWS = Schema((AGE, KnownColumn("job", ("a", "b"))), False, Layout(missing=("-",), sep=","))


def manifest(files: dict[str, bytes], schema: Schema | None = None) -> dict[str, Any]:
    """The manifest of a model of images, or of rows."""
    return {
        "version": predict.VERSION,
        "title": "toy",
        "card": {},
        "input": {
            "shape": [1, 8, 8] if schema is None else [len(schema.columns)],
            "type": "float32",
            "meaning": "numbers",
            "divides_bytes": schema is None,
        },
        # Through JSON, as it is read.
        "table": None if schema is None else json.loads(json.dumps(schema.to_json())),
        "labels": list("0123456789") if schema is None else None,
        "files": {name: fingerprint(data) for name, data in files.items()},
    }


def write_bundle(path: Path, model: bytes = b"", schema: Schema | None = None) -> Path:
    """Write a bundle into a new folder."""
    files = {predict.MODEL: model or onnx(lambda given: None)}
    path.mkdir()
    (path / predict.MODEL).write_bytes(files[predict.MODEL])
    (path / predict.MANIFEST).write_bytes(seal(manifest(files, schema)))
    return path


def of_rows() -> Bundle:
    """A bundle whose model reads rows; it has no files."""
    return Bundle(Path(), manifest({}, ROWS))


def of_images() -> Bundle:
    """A bundle whose model reads images."""
    return Bundle(Path(), manifest({}))


def load_model(path: Path) -> object:
    """Use a file as the model of a bundle."""
    made = write_bundle(path.parent / "bundle", path.read_bytes())
    return predict.predict(open_bundle(made), read_samples(of_images(), _zeros(path.parent)).x)


def _zeros(folder: Path) -> Path:
    (folder / "zeros.csv").write_text(",".join("0" * 64))
    return folder / "zeros.csv"


def in_a_folder(name: str, format: str) -> Callable[[Path], object]:
    """Read a file under the name by which its format knows it."""

    def reading(path: Path) -> object:
        inside = path.parent / "data"
        inside.mkdir()
        path.rename(inside / name)
        return read(inside, "mine", format)

    return reading


READERS: dict[str, Callable[[Path], object]] = {
    "predict": lambda path: read_samples(of_images(), path),
    "rows": lambda path: read_samples(of_rows(), path),
    "bundle": load_model,
    "cifar": in_a_folder("data_batch_1", "cifar"),
    "cifar-meta": in_a_folder("batches.meta", "cifar"),
    "leaf": lambda path: read(path, "mine", "leaf"),
    "npz": lambda path: read(path, "mine", "npz"),
}
