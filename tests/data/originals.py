"""Write small files as the publishers of the datasets wrote theirs."""

import gzip
import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Array = np.ndarray


def idx(array: Array) -> bytes:
    """MNIST's format: two zeros, a type, the number of axes, their lengths, the values."""
    types = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
    head = bytes([0, 0, types[array.dtype.name], array.ndim])
    return (
        head
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def write_idx(
    folder: Path, prefix: str, part: str, images: Array, labels: Array, packed: bool = True
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in {"images-idx3": images, "labels-idx1": labels}.items():
        content = idx(array)
        path = folder / f"{prefix}{part}-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content, 1, mtime=0) if packed else content)


class Pickle:
    """Pickles as Python 2 and its numpy wrote them, protocol 2."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.places = 0

    def put(self) -> None:
        self.places += 1
        short = self.places < 256
        self.out += b"q" + bytes([self.places]) if short else b"r" + struct.pack("<I", self.places)

    def text(self, value: bytes) -> None:
        short = len(value) < 256
        self.out += b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))
        self.out += value
        self.put()

    def number(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        else:
            self.out += b"J" + struct.pack("<i", value)

    def name(self, module: str, what: str) -> None:
        self.out += f"c{module}\n{what}\n".encode()
        self.put()

    def items(self, values: list[Any]) -> None:
        self.out += b"]"
        self.put()
        for start in range(0, len(values), 1000):
            self.out += b"("
            for value in values[start : start + 1000]:
                self.number(value) if isinstance(value, int) else self.text(value.encode())
            self.out += b"e"

    def array(self, values: Array) -> None:
        self.name("numpy.core.multiarray", "_reconstruct")
        self.name("numpy", "ndarray")
        self.number(0)
        self.out += b"\x85"
        self.put()
        self.text(b"b")
        self.out += b"\x87"
        self.put()
        self.out += b"R"
        self.put()
        self.out += b"("
        self.number(1)
        for length in values.shape:
            self.number(length)
        self.out += b"\x86"
        self.put()
        self.name("numpy", "dtype")
        self.text(b"u1")
        self.number(0)
        self.number(1)
        self.out += b"\x87"
        self.put()
        self.out += b"R"
        self.put()
        self.out += b"("
        self.number(3)
        self.text(b"|")
        self.out += b"NNN"
        self.number(-1)
        self.number(-1)
        self.number(0)
        self.out += b"t"
        self.put()
        self.out += b"b\x89"
        self.text(values.tobytes())
        self.out += b"t"
        self.put()
        self.out += b"b"

    def table(self, values: dict[str, Any]) -> bytes:
        self.out += b"}"
        self.put()
        self.out += b"("
        for key, value in values.items():
            self.text(key.encode())
            if isinstance(value, list):
                self.items(value)
            elif isinstance(value, np.ndarray):
                self.array(value)
            elif isinstance(value, int):
                self.number(value)
            else:
                self.text(value.encode())
        return bytes(self.out + b"u.")


def cifar_batch(images: Array, labels: Array, key: str = "labels") -> bytes:
    """A python batch; images are [n, 3, 32, 32]."""
    return Pickle().table(
        {
            "batch_label": "training batch 1 of 5",
            key: labels.tolist(),
            "data": images.reshape(len(images), -1),
            "filenames": [f"image_s_{place:06d}.png" for place in range(len(images))],
        }
    )


def cifar_binary(images: Array, *labels: Array) -> bytes:
    columns = [each.astype(np.uint8)[:, None] for each in labels]
    return np.concatenate([*columns, images.reshape(len(images), -1)], axis=1).tobytes()


CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_cifar10(folder: Path, images: Array, labels: Array, tests: int) -> None:
    """Five training batches and a test batch of python, and their names."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = np.array_split(np.arange(len(labels) - tests), 5)
    for place, rows in enumerate(trained, 1):
        (folder / f"data_batch_{place}").write_bytes(cifar_batch(images[rows], labels[rows]))
    last = slice(len(labels) - tests, None)
    (folder / "test_batch").write_bytes(cifar_batch(images[last], labels[last]))
    meta = {"num_cases_per_batch": 10000, "label_names": CIFAR10, "num_vis": 3072}
    (folder / "batches.meta").write_bytes(Pickle().table(meta))


def har_files(features: Array, signals: Array, y: Array, subject: Array, train: Array) -> dict:
    """The text files of UCI HAR: name -> content; labels and subjects count from 1."""
    found = {
        "UCI HAR Dataset/activity_labels.txt": b"1 WALKING\n2 UP\n3 DOWN\n4 SIT\n5 STAND\n6 LAY\n"
    }
    for part, rows in {"train": train, "test": ~train}.items():
        base = f"UCI HAR Dataset/{part}"
        found[f"{base}/X_{part}.txt"] = _table(features[rows])
        found[f"{base}/y_{part}.txt"] = "".join(f"{one}\n" for one in y[rows]).encode()
        found[f"{base}/subject_{part}.txt"] = "".join(f"{one}\n" for one in subject[rows]).encode()
        names = [f"{s}_{a}" for s in ("body_acc", "body_gyro", "total_acc") for a in "xyz"]
        for place, name in enumerate(names):
            path = f"{base}/Inertial Signals/{name}_{part}.txt"
            found[path] = _table(signals[rows][:, place])
    return found


def _table(rows: Array) -> bytes:
    """Numbers with exponents of three digits, as MATLAB writes them."""
    lines = []
    for row in rows:
        words = (f"{value: .7e}".replace("e-", "e-0").replace("e+", "e+0") for value in row)
        lines.append(" " + " ".join(words) + "\n")
    return "".join(lines).encode()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def leaf(users: dict[str, tuple[list, list]]) -> bytes:
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
        }
    ).encode()


def fed_emnist(users: dict[str, tuple[np.ndarray, list[int]]]) -> bytes:
    """Return users as TensorFlow Federated stores them: floats from 0 to 1, in HDF5."""
    file = io.BytesIO()
    with h5py.File(file, "w") as content:
        for user, (images, labels) in users.items():
            group = content.create_group(f"examples/{user}")
            group["pixels"] = images.astype(np.float32) / np.float32(255)
            group["label"] = np.array(labels, dtype=np.int32)
    return file.getvalue()
