"""Use a bundle where there is no torch: check its hashes, read inputs, answer.

A bundle is a folder. `manifest.json` holds what inputs look like, what the classes are called, and
the size and hash of every other file; it is wrapped with a hash of its own.
"""

import csv
import io
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from masquerade.errors import MasqueradeError, listed
from masquerade.export import self_contained
from masquerade.results.json_records import parsed as parsed_json
from masquerade.storage import arrays, atomic, parquet
from masquerade.storage.manifest import fingerprint, unseal
from masquerade.storage.regular import read_regular
from masquerade.tables.columns import Table
from masquerade.tables.csv_text import check_text, parsed, ways
from masquerade.tables.faults import Places, rows_by_number
from masquerade.tables.frame import table_of
from masquerade.tables.schema import Schema

Array = npt.NDArray[Any]

MANIFEST, MODEL, CARD = "manifest.json", "model.onnx", "card.md"
REQUIREMENTS = "requirements.txt"
DENSE, MASKED = "dense.onnx", "masked.onnx"
FILES = (MODEL, CARD, REQUIREMENTS, DENSE, MASKED)
"""All that a bundle can hold beside its manifest."""
VERSION = 3
BATCH = 256
"""Samples that are answered at a time."""
TYPES = ("float32", "float64", "float16", "uint8", "int8", "int16", "int32", "int64", "bool")
"""What inputs can be."""
WIDEST = 1 << 26
"""Numbers of an input, at most."""
LONGEST = 16 << 20
"""Bytes of a manifest, at most."""
HEAVIEST = 2 << 30
"""Bytes of any other file of a bundle, at most; ONNX has no more."""
LARGEST = 1 << 29
"""Bytes of a file of samples, at most, and of what it is unpacked to."""


@dataclass(frozen=True)
class Bundle:
    """A folder whose files are what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    def file(self, name: str) -> bytes:
        """Return the bytes of a file, checked as they are read."""
        told = self.manifest["files"].get(name, {})
        # No more is read than there should be, and less is damaged.
        data = _read(self.path, name, min(told.get("size", 0), HEAVIEST))
        if told != fingerprint(data):
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
    sealed = _read(path, MANIFEST, LONGEST)
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
        return isinstance(parsed_json(sealed)["manifest"], str)
    except (ValueError, KeyError, TypeError):
        return False


def _of_another_format(path: Path, version: object) -> MasqueradeError:
    text = f"{path} has format {version}, but {VERSION} is read here; export the model again"
    return MasqueradeError("E402", text)


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Tell whether a manifest says what answering needs; a hash does not tell who made it."""
    try:
        shape, labels, files = manifest["input"]["shape"], manifest["labels"], manifest["files"]
        table = manifest.get("table")
        columns = len(Schema.from_json(table).columns) if table is not None else 0
        return (
            "version" in manifest
            and MODEL in files
            and set(files) <= set(FILES)
            and all(type(each["size"]) is int and each["size"] >= 0 for each in files.values())
            and manifest["input"]["type"] in TYPES
            and isinstance(shape, list)
            and all(type(size) is int and size > 0 for size in shape)
            and math.prod(shape) <= WIDEST
            and (not columns or shape == [columns])
            and (labels is None or _are_texts(labels))
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _are_texts(labels: object) -> bool:
    return isinstance(labels, list) and all(isinstance(label, str) for label in labels)


def _read(path: Path, name: str, most: int) -> bytes:
    try:
        return read_regular(path / name, most, links=False)
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
        text = "onnxruntime is not installed; pip install -r the requirements.txt of the bundle"
        raise MasqueradeError("E202", text) from None
    return onnxruntime


def start(model: bytes, threads: int = 1) -> Any:
    """Make a session of onnxruntime on the CPU."""
    self_contained.check(model)
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


def probabilities(found: Array) -> Array:
    """Return the probability of every class for logits [samples, classes]."""
    shifted = np.exp(found - found.max(-1, keepdims=True))
    shares: Array = shifted / shifted.sum(-1, keepdims=True)
    return shares


def check_finite(bundle: Bundle, found: Array, places: Places) -> None:
    """Refuse outputs that answer nothing: of NaNs the first would be taken for the largest."""
    flat = found.reshape(len(found), -1)
    silent = ~np.isfinite(flat).all(-1)
    if bundle.manifest["labels"] is not None:
        # A class may be impossible, but not all of them.
        silent = np.isnan(flat).any(-1) | ~np.isfinite(flat.max(-1))
    if silent.any():
        numbers = listed(places.numbers[silent].tolist(), 5)
        text = f"the model has no finite answer for {places.word} {numbers}"
        how = "its numbers are far from those of training; correct it, or leave it out"
        raise MasqueradeError("E302", f"{text}: {how}")


def answers(bundle: Bundle, found: Array) -> list[dict[str, Any]]:
    """Return for every output the class that it names with its probability, or its numbers."""
    labels = bundle.manifest["labels"]
    if labels is None:
        return [{"output": row.tolist()} for row in found]
    shares = probabilities(found)
    return [
        {"class": int(best), "label": labels[best], "probability": float(row[best])}
        for best, row in zip(shares.argmax(-1), shares, strict=True)
    ]


def check_answers(path: Path) -> None:
    """Refuse a name of which nobody knows what kind of file it means."""
    if path.suffix.lower() not in (".csv", ".npy"):
        text = f"`--out {path}`: answers are written as .csv, and outputs of the model as .npy"
        raise MasqueradeError("E201", text)
    if os.path.lexists(path):
        raise MasqueradeError("E407", f"{path} is already there; choose another --out")


def write_answers(bundle: Bundle, path: Path, samples: "Samples", found: Array) -> None:
    """Write answers as CSV, or the model's outputs as an npy file.

    A CSV file has where every sample stands in its file, columns of it that the model does not
    read, and what the model answers: label and probability, or outputs.
    """
    check_answers(path)
    if path.suffix.lower() == ".npy":
        array = io.BytesIO()
        np.save(array, found, allow_pickle=False)
        atomic.write_file(path, array.getvalue())
        return
    own = _answer_columns(bundle, found)
    # A column of the data may have the name of one of these.
    others = {f"{name} (input)" if name in own else name: v for name, v in samples.others.items()}
    columns = {samples.places.word: samples.places.numbers, **others, **own}
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    atomic.write_file(path, lines.getvalue().encode())


def _answer_columns(bundle: Bundle, found: Array) -> dict[str, Array]:
    labels = bundle.manifest["labels"]
    if labels is None:
        flat = found.reshape(len(found), -1)
        return {f"output {place}": values for place, values in enumerate(flat.T)}
    shares = probabilities(found)
    columns = {"label": np.array(labels)[shares.argmax(-1)], "probability": shares.max(-1)}
    named = zip(labels, shares.T, strict=True)
    return columns | {f"probability of {label}": values for label, values in named}


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a file, shaped as the model takes them, and where in it they stand."""

    x: Array
    places: Places
    others: dict[str, Array] = field(default_factory=dict)
    """Columns of a table that the model does not read, by name."""


@dataclass(frozen=True)
class Asked:
    """What a person says of a file of samples."""

    sep: str = ""
    """What separates the fields of a line; "" finds it, as it was in training where that fits."""
    encoding: str = ""
    """How a text file is encoded; "" finds it likewise."""
    own_rows: bool = False
    """Whether rows of other clients are left out."""

    def __post_init__(self) -> None:
        check_text(self.sep, self.encoding)


NOTHING = Asked()
"""The defaults."""


def read_samples(bundle: Bundle, path: Path, asked: Asked = NOTHING) -> Samples:
    """Read samples from a file of arrays, a table or an image.

    Rows of a table are found by the names of its columns, and checked.
    """
    suffix = path.suffix.lower()
    plain = {".npz": _npz, ".npy": _npy, ".png": _image, ".jpg": _image, ".jpeg": _image}
    tables = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
    others = {".csv": _numbers, ".tsv": _numbers}
    if suffix not in plain | tables:
        text = f"{path}: give one of {', '.join(plain | tables)}; unpack a .gz file"
        raise MasqueradeError("E301", f"{text}, and save a sheet as CSV")
    try:
        if bundle.schema is not None and suffix in tables:
            return _checked(bundle, path, *tables[suffix](bundle.schema, path, asked))
        if asked != NOTHING:
            text = f"{path} is no table by column names; leave out --sep, --encoding and --own-rows"
            raise MasqueradeError("E201", text)
        if suffix == ".parquet":
            raise ValueError("the model reads no table; give its samples as an npz or npy file")
        return _checked(bundle, path, (others if suffix in tables else plain)[suffix](bundle, path))
    except MasqueradeError:
        raise
    except ImportError as fault:
        text = f"{path} is read by `{fault.name}`, which is not installed; pip install it"
        raise MasqueradeError("E202", text) from None
    except MemoryError:
        text = f"{path} needs more memory than there is; give its samples in several files"
        raise MasqueradeError("E504", text) from None
    # Damaged files fail in many ways inside archives, parsers and numpy; all mean the same here.
    except Exception as fault:
        said = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
        raise MasqueradeError("E301", f"{path} cannot be read: {said}") from None


def _checked(bundle: Bundle, path: Path, read: Array, table: Table | None = None) -> Samples:
    """Shape samples, and check them as rows where they are such."""
    if read.dtype == np.uint8 and np.issubdtype(bundle.type, np.floating) and bundle.divides_bytes:
        # Bytes are pixels, whatever file they come in; this model takes them from 0 to 1.
        read = read / 255
    x = _fitting(bundle, read, path)
    schema, places = bundle.schema, table.places if table else rows_by_number(len(x))
    if schema is None:
        return Samples(x, places)
    schema.check(x, str(path), places)
    others = table.columns if table else ()
    kept = {each.name: each.texts for each in others if each.name in schema.layout.ignored}
    return Samples(x, places, kept)


def _npz(bundle: Bundle, path: Path) -> Array:
    file = io.BytesIO(read_regular(path, LARGEST))
    found = arrays.read_npz(file, ["x"], LARGEST)
    if "x" not in found:
        raise ValueError(f"it has {listed(arrays.names_in(file))}; name the samples `x`")
    return found["x"]


def _npy(bundle: Bundle, path: Path) -> Array:
    return arrays.parse_npy(read_regular(path, LARGEST))


def _numbers(bundle: Bundle, path: Path) -> Array:
    """Read numbers without names of columns."""
    lines = io.BytesIO(read_regular(path, LARGEST))
    with warnings.catch_warnings():
        # Of a file without a number it would say that this may be so.
        warnings.simplefilter("error")
        found: Array = np.loadtxt(lines, delimiter=_between(path), ndmin=2)
    return found


def _between(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _csv(schema: Schema, path: Path, asked: Asked) -> tuple[Array, Table]:
    """Read rows by column names: as told, or in the way of which the file has no faults."""
    data, faults = read_regular(path, LARGEST), []
    told = [(asked.sep, asked.encoding)]
    for sep, encoding in told if any(told[0]) else ways(data, schema.layout):
        try:
            table = parsed(
                data, str(path), sep=sep, encoding=encoding, missing=schema.layout.missing
            )
            return _rows(schema, table, asked)
        except MasqueradeError as fault:
            faults.append(fault)
    raise faults[0]


def _parquet(schema: Schema, path: Path, asked: Asked) -> tuple[Array, Table]:
    """Read the rows of a table by column names."""
    frame = parquet.read_table(read_regular(path, LARGEST), LARGEST)
    return _rows(schema, table_of(frame, str(path), schema.layout.missing), asked)


def _rows(schema: Schema, table: Table, asked: Asked) -> tuple[Array, Table]:
    if asked.own_rows:
        table = table.where(schema.is_own(table))
    return schema.samples(table), table


def _image(bundle: Bundle, path: Path) -> Array:
    """Read the pixels of one image."""
    from PIL import Image

    channels = bundle.shape[0] if len(bundle.shape) == 3 else 0
    modes = {1: "L", 3: "RGB"}
    if channels not in modes:
        raise ValueError(f"the model takes inputs of shape {bundle.shape}, which are no images")
    # Other formats may be read by starting another program.
    with Image.open(io.BytesIO(read_regular(path, LARGEST)), formats=["PNG", "JPEG"]) as opened:
        # Nothing is unpacked that does not fit.
        if opened.size != bundle.shape[:0:-1]:
            high, wide = bundle.shape[1:]
            text = f"it has {opened.size[0]} x {opened.size[1]} pixels, and the model takes"
            raise MasqueradeError("E302", f"{path}: {text} {wide} x {high}")
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
