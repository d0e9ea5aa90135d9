"""Use a bundle where there is no torch: check its hashes, read inputs, answer.

A bundle is a folder. `manifest.json` holds what inputs look like, what the classes are called, and
the size and hash of every other file; it is wrapped with a hash of its own.
"""

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from masquerade.errors import MasqueradeError, require
from masquerade.storage import atomic
from masquerade.storage.manifest import fingerprint, unseal
from masquerade.tables.csv_text import parsed
from masquerade.tables.frame import table_of
from masquerade.tables.schema import Schema

Array = npt.NDArray[Any]

MANIFEST, MODEL, CARD = "manifest.json", "model.onnx", "card.md"
VERSION = 2
BATCH = 256
"""Samples that are answered at a time."""


@dataclass(frozen=True)
class Bundle:
    """A folder whose files are what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    def file(self, name: str) -> bytes:
        """Return the bytes of a file, checked as they are read."""
        data = _read(self.path, name)
        if self.manifest["files"].get(name) != fingerprint(data):
            raise _damaged(self.path, f"{name}: hash differs")
        return data

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return tuple(self.manifest["input"]["shape"])

    @property
    def schema(self) -> Schema | None:
        """Return what rows look like, where the model reads a table."""
        given = self.manifest.get("table")
        return None if given is None else Schema.from_json(given)

    @property
    def divides_bytes(self) -> bool:
        """Tell whether bytes stand for numbers from 0 to 1 where the model takes numbers."""
        return bool(self.manifest["input"].get("divides_bytes", True))

    @property
    def type(self) -> np.dtype[Any]:
        """Return the type of inputs."""
        found: np.dtype[Any] = np.dtype(self.manifest["input"]["type"])
        return found


def open_bundle(path: Path) -> Bundle:
    """Open a bundle, and refuse one of which any bit has changed."""
    if not (path / MANIFEST).is_file():
        text = f"no bundle at {path}: it has no {MANIFEST}; `masquerade export` writes one"
        raise MasqueradeError("E408", text)
    sealed = _read(path, MANIFEST)
    manifest = unseal(sealed)
    if manifest is None and _is_of_format_1(sealed):
        raise _of_another_format(path, 1)
    if manifest is None:
        raise _damaged(path, f"{MANIFEST}: hash differs")
    if isinstance(manifest, dict) and manifest.get("version", VERSION) != VERSION:
        raise _of_another_format(path, manifest["version"])
    if not _is_whole(manifest):
        raise _damaged(path, f"{MANIFEST}: it lacks what a manifest has")
    bundle = Bundle(path, manifest)
    for name in manifest["files"]:
        bundle.file(name)
    return bundle


def _is_of_format_1(sealed: bytes) -> bool:
    """Tell whether a manifest is a text within JSON, as it was in version 0.1."""
    try:
        return isinstance(json.loads(sealed)["manifest"], str)
    except (ValueError, KeyError, TypeError):
        return False


def _of_another_format(path: Path, version: object) -> MasqueradeError:
    text = f"{path} has format {version}, but {VERSION} is read here; export the model again"
    return MasqueradeError("E402", text)


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Tell whether a manifest says what answering needs; a hash does not tell who made it."""
    try:
        shape, labels = manifest["input"]["shape"], manifest["labels"]
        if manifest.get("table") is not None:
            Schema.from_json(manifest["table"])
        np.dtype(manifest["input"]["type"])
        return (
            "version" in manifest
            and MODEL in manifest["files"]
            and all(isinstance(size, int) and size > 0 for size in shape)
            and (labels is None or all(isinstance(label, str) for label in labels))
        )
    except (KeyError, TypeError, ValueError):
        return False


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as fault:
        raise _damaged(path, f"{name}: {fault.strerror}") from None


def _damaged(path: Path, what: str) -> MasqueradeError:
    text = f"the bundle {path} is damaged ({what}); it is not used. Export the model again"
    return MasqueradeError("E406", text)


def runtime() -> Any:
    """Import onnxruntime, or say how to get it."""
    try:
        import onnxruntime
    except ImportError:
        text = "onnxruntime is not installed; install `masquerade[predict]`"
        raise MasqueradeError("E202", text) from None
    return onnxruntime


def start(model: bytes, threads: int = 1) -> Any:
    """Make a session of onnxruntime on the CPU."""
    found = runtime()
    options = found.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Only what is an error is printed; a hint about a graph helps nobody here.
    options.log_severity_level = 3
    return found.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def outputs(session: Any, x: Array) -> Array:
    """Answer a batch of inputs of any size."""
    (given,) = session.get_inputs()
    # A model with weights of its own for every sample takes one at a time.
    step = 1 if given.shape[0] == 1 else BATCH
    pieces = [x[start : start + step] for start in range(0, len(x), step)]
    return np.concatenate([session.run(None, {given.name: piece})[0] for piece in pieces])


@contextmanager
def usable(bundle: Bundle, name: str) -> Iterator[None]:
    """Refuse a bundle whose model onnxruntime cannot use; what it raises has no common name."""
    try:
        yield
    except MasqueradeError:
        raise
    except Exception as fault:
        reason = str(fault).strip().partition("\n")[0]
        raise _damaged(bundle.path, f"{name}: {reason}") from None


def predict(bundle: Bundle, x: Array) -> Array:
    """Return the outputs of a bundle's model for inputs [samples, …]: logits, of a classifier."""
    with usable(bundle, MODEL):
        found = outputs(start(bundle.file(MODEL)), x)
    labels = bundle.manifest["labels"]
    if labels is not None and len(labels) != found.shape[-1]:
        text = f"{MANIFEST}: {len(labels)} labels for {found.shape[-1]} outputs"
        raise _damaged(bundle.path, text)
    return found


def answers(bundle: Bundle, found: Array) -> list[dict[str, Any]]:
    """Return for every output the class that it names with its probability, or its numbers."""
    labels = bundle.manifest["labels"]
    if labels is None:
        return [{"output": row.tolist()} for row in found]
    shifted = np.exp(found - found.max(-1, keepdims=True))
    shares = shifted / shifted.sum(-1, keepdims=True)
    return [
        {"class": int(best), "label": labels[best], "probability": float(row[best])}
        for best, row in zip(shares.argmax(-1), shares, strict=True)
    ]


def write_answers(path: Path, answers: list[dict[str, Any]], found: Array) -> None:
    """Write answers as CSV where a path ends so, and the model's outputs as an npy file if not."""
    if path.suffix.lower() == ".csv":
        rows = [
            {"label": each["label"], "probability": each["probability"]}
            if "label" in each
            else {f"output {place}": value for place, value in enumerate(each["output"])}
            for each in answers
        ]
        lines = io.StringIO(newline="")
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic.write_file(path, lines.getvalue().encode())
        return
    array = io.BytesIO()
    np.save(array, found, allow_pickle=False)
    # As numpy names its files.
    named = path if path.name.endswith(".npy") else path.with_name(f"{path.name}.npy")
    atomic.write_file(named, array.getvalue())


def read_inputs(bundle: Bundle, path: Path) -> Array:
    """Read samples from a file of arrays, a table or an image, shaped as the model takes them.

    Rows of a table are found by the names of its columns, and checked.
    """
    suffix = path.suffix.lower()
    readers = {".npz": _npz, ".npy": _npy, ".png": _image, ".jpg": _image}
    readers |= {".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
    if suffix not in readers:
        raise MasqueradeError("E301", f"{path}: give one of {', '.join(readers)}")
    try:
        read = readers[suffix](bundle, path)
    except (OSError, ValueError, KeyError) as fault:
        raise MasqueradeError("E301", f"{path} cannot be read: {fault}") from None
    if read.dtype == np.uint8 and np.issubdtype(bundle.type, np.floating) and bundle.divides_bytes:
        # Bytes are pixels, whatever file they come in; this model takes them from 0 to 1.
        read = read / 255
    x = _fitting(bundle, read, path)
    if bundle.schema is not None:
        bundle.schema.check(x, str(path))
    return x


def _npz(bundle: Bundle, path: Path) -> Array:
    with np.load(path, allow_pickle=False) as arrays:
        if "x" not in arrays:
            raise ValueError(f"it has {', '.join(arrays.files)}; name the samples `x`")
        found: Array = arrays["x"]
        return found


def _npy(bundle: Bundle, path: Path) -> Array:
    found: Array = np.load(path, allow_pickle=False)
    return found


def _csv(bundle: Bundle, path: Path) -> Array:
    """Read one sample per line: by column names, or numbers as in the flattened array."""
    schema = bundle.schema
    if schema is None:
        return np.loadtxt(path, delimiter=",", ndmin=2)
    data, further = path.read_bytes(), schema.missing
    read = parsed(data, str(path), encoding=None, drop=schema.ignored, missing=further)
    return schema.samples(read)


def _parquet(bundle: Bundle, path: Path) -> Array:
    """Read the rows of a table by column names."""
    if bundle.schema is None:
        raise ValueError("the model reads no table; give its samples as an npz or npy file")
    arrow = require("pyarrow.parquet", "parquet")
    return bundle.schema.samples(table_of(arrow.read_table(path), str(path), bundle.schema.missing))


def _image(bundle: Bundle, path: Path) -> Array:
    """Read the pixels of one image."""
    from PIL import Image

    channels = bundle.shape[0] if len(bundle.shape) == 3 else 0
    modes = {1: "L", 3: "RGB"}
    if channels not in modes:
        raise ValueError(f"the model takes inputs of shape {bundle.shape}, which are no images")
    with Image.open(path) as opened:
        pixels = np.asarray(opened.convert(modes[channels]))
    return pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)[None]


def _fitting(bundle: Bundle, x: Array, path: Path) -> Array:
    """Give samples the shape and type of the model, or say why they do not have it."""
    if x.shape == bundle.shape:
        x = x[None]
    if x.ndim == 2 and x.shape[1] == int(np.prod(bundle.shape)):
        x = x.reshape(-1, *bundle.shape)
    if x.shape[1:] != bundle.shape or not len(x):
        text = f"{path} has samples of shape {x.shape}; the model takes [samples, …] with "
        raise MasqueradeError("E302", f"{text}{bundle.shape} each")
    gaps = x.dtype.kind == "f" and bundle.schema is not None
    if x.dtype.kind not in "iufb" or not np.isfinite(x[~np.isnan(x)] if gaps else x).all():
        raise MasqueradeError("E302", f"{path} holds what is no finite number; correct it")
    whole = bundle.type.kind in "iu"
    limits = np.iinfo(bundle.type) if whole else np.finfo(bundle.type)
    low, high = (np.nanmin(x), np.nanmax(x)) if not np.isnan(x).all() else (0, 0)
    if low < limits.min or high > limits.max or (whole and (x != np.round(x)).any()):
        text = f"{path} holds numbers from {low:g} to {high:g}; the model takes {bundle.type}"
        raise MasqueradeError("E302", f"{text}, as its data did")
    return np.ascontiguousarray(x.astype(bundle.type))
