"""Write the hostile files of `files`, and the table of who reads each and what it is refused with.

    python -m attacks.make_files

They are small, and would take memory, other files or time without end if they were believed.
Python is not made to write all of them to the byte, so that a file stays as it was found.
"""

import io
import json
import pickle
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "files"
TABLE = Path(__file__).parent / "files.json"


def npy(shape: str, kind: str = "<f8", body: bytes = bytes(64)) -> bytes:
    """An npy file that claims a shape."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    head = head.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + body


def npz(content: bytes, claimed: int | None = None, packed: bool = True, y: bytes = b"") -> bytes:
    """An npz file of one array, whose directory claims a size."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if packed else 0) as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", y or npy("(1,)", body=bytes(8)))
    data = bytearray(stream.getvalue())
    if claimed is not None:
        struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, claimed)
    return bytes(data)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(wide: int, high: int) -> bytes:
    """An image that claims a size."""
    head = struct.pack(">IIBBBBB", wide, high, 8, 0, 0, 0, 0)
    body = zlib.compress(bytes(4096))
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
    return start + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def parquet() -> bytes:
    """A table of which one text stands in every row, and takes gigabytes there."""
    import pyarrow
    from pyarrow import parquet

    places = pyarrow.array(np.zeros(60_000, dtype=np.int32))
    texts = pyarrow.DictionaryArray.from_arrays(places, ["a" * 10_000])
    stream = io.BytesIO()
    parquet.write_table(
        pyarrow.table({"age": texts}), stream, compression="zstd", store_schema=False
    )
    return stream.getvalue()


def hdf5(fill: Callable[[Any], object]) -> bytes:
    """A file of users, filled by hand."""
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.h5"
        with h5py.File(path, "w") as content:
            fill(content.create_group("examples/ann"))
        return path.read_bytes()


def external(group: Any) -> None:
    """Have pixels in a file of the system."""
    group.create_dataset("pixels", (1, 28, 28), "u1", external=[("/etc/passwd", 0, 784)])
    group["label"] = [1]


def virtual(group: Any) -> None:
    """Have pixels in another HDF5 file."""
    import h5py

    layout = h5py.VirtualLayout((1, 784), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "pixels", (1, 784))
    group.create_virtual_dataset("pixels", layout)
    group["label"] = [1]


def linked(group: Any) -> None:
    """Have pixels behind a link to another file."""
    import h5py

    group["pixels"] = h5py.ExternalLink("/tmp/other.h5", "pixels")
    group["label"] = [1]


def in_a_circle(group: Any) -> None:
    """Have a user who is all users."""
    import h5py

    group["pixels"] = h5py.SoftLink("/examples")
    group["label"] = [1]


def empty(group: Any) -> None:
    """Claim pixels that nobody ever wrote."""
    group.create_dataset("pixels", (1 << 20, 784), "f4", chunks=(1024, 784))
    group["label"] = [1]


def batch(**changed: Any) -> bytes:
    """A batch of CIFAR, which is a pickle."""
    return pickle.dumps({"labels": [1], "data": [0], **changed}, protocol=2)


def shared(depth: int) -> list[Any]:
    """Return lists within lists that share their parts: ten to this power of ones."""
    found: list[Any] = [1] * 10
    for _ in range(depth):
        found = [found] * 10
    return found


def onnx(change: Callable[[Any], object]) -> bytes:
    """A model that answers 64 numbers with ten, after something was done to it."""
    from onnx import TensorProto, helper

    weights = helper.make_tensor("w", TensorProto.FLOAT, [64, 10], np.zeros(640, np.float32))
    flat = helper.make_node("Flatten", ["x"], ["f"])
    product = helper.make_node("MatMul", ["f", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])
    graph = helper.make_graph([flat, product], "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    change(model)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def elsewhere(tensor: Any) -> None:
    """Have the values of a tensor in a file of the system."""
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    for key, value in (("location", "/etc/passwd"), ("offset", "0"), ("length", "2560")):
        tensor.external_data.add(key=key, value=value)


def hidden(model: Any) -> None:
    """Have such a tensor as an attribute of a node within a graph of a node."""
    from onnx import TensorProto, helper

    tensor = helper.make_tensor("t", TensorProto.FLOAT, [1], [0.0])
    elsewhere(tensor)
    node = helper.make_node("Constant", [], ["c"], value=tensor)
    inner = helper.make_graph([node], "inner", [], [])
    model.graph.node.append(helper.make_node("If", ["y"], ["z"], then_branch=inner))


def nested(model: Any) -> None:
    """Have graphs within graphs."""
    from onnx import helper

    graph = helper.make_graph([], "inner", [], [])
    for _ in range(20):
        node = helper.make_node("If", ["y"], ["z"], then_branch=graph)
        graph = helper.make_graph([node], "outer", [], [])
    model.graph.node.append(helper.make_node("If", ["y"], ["z"], then_branch=graph))


HUGE = "(1000000000000,)"
FILES: dict[str, tuple[str, str, Callable[[], bytes]]] = {
    # Who reads it, the code, and its bytes; a program of PostScript is an image to Pillow.
    "claims-a-terabyte.npy": ("predict", "E301", lambda: npy(HUGE)),
    "shape-below-zero.npy": ("predict", "E301", lambda: npy("(-1, 64)")),
    "shape-of-long-numbers.npy": ("predict", "E301", lambda: npy("(" + "9" * 4000 + ",)")),
    "nested-header.npy": ("predict", "E301", lambda: npy("(" * 3000 + ")" * 3000)),
    "objects.npy": ("predict", "E301", lambda: npy("(8,)", "|O")),
    "records.npy": ("predict", "E302", lambda: npy("(1, 64)", "|V1")),
    "dates.npy": ("predict", "E302", lambda: npy("(1, 64)", "<M8[s]", bytes(512))),
    "texts-of-a-gigabyte.npy": ("predict", "E301", lambda: npy("(4,)", "<U300000000")),
    "cut.npz": ("predict", "E301", lambda: npz(npy("(1, 64)", body=bytes(512)))[:-30]),
    "cut-inside.npz": ("predict", "E301", lambda: npz(npy("(1, 64)"), packed=False)),
    "claims-a-terabyte.npz": ("predict", "E301", lambda: npz(npy(HUGE))),
    "claims-four-gigabytes.npz": ("predict", "E301", lambda: npz(npy(HUGE), (1 << 32) - 2)),
    "claims-four-gigabytes-stored.npz": (
        "predict",
        "E301",
        lambda: npz(npy("(536870896,)"), (1 << 32) - 2, packed=False),
    ),
    "no-array-but-a-zip.npz": ("predict", "E301", lambda: npz(b"no array")),
    "huge.png": ("predict", "E302", lambda: png(9000, 9000)),
    "beyond-all.png": ("predict", "E301", lambda: png(1 << 30, 1 << 30)),
    "cut.png": ("predict", "E301", lambda: png(8, 8)[:40]),
    "postscript.png": (
        "predict",
        "E301",
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) run\n",
    ),
    "letters.csv": ("predict", "E301", lambda: b"a,b\nc,d\n"),
    "no-number.csv": ("predict", "E301", lambda: b"\n\n"),
    "one-long-text.csv": (
        "rows",
        "E302",
        lambda: b"age,job\n" + b"a" * 130_000 + b",b\n" + b"1,a\n" * 9000,
    ),
    "quotes-without-end.csv": ("rows", "E302", lambda: b'age,job\n"' + b"1,a\n" * 1000),
    "one-text-in-every-row.parquet": ("rows", "E301", parquet),
    "no-parquet.parquet": ("rows", "E301", lambda: b"PAR1" + bytes(40) + b"PAR1"),
    "footer-without-end.parquet": ("rows", "E301", lambda: b"PAR1\xff\xff\xff\x7fPAR1"),
    "labels-within-labels": ("cifar", "E301", lambda: batch(labels=shared(8))),
    "names-within-names": ("cifar-meta", "E301", lambda: batch(label_names=shared(8))),
    "labels-of-long-numbers": ("cifar", "E301", lambda: batch(labels=[1 << 2000])),
    "data-that-are-no-array": ("cifar", "E301", batch),
    "external.h5": ("leaf", "E301", lambda: hdf5(external)),
    "virtual.h5": ("leaf", "E301", lambda: hdf5(virtual)),
    "linked.h5": ("leaf", "E301", lambda: hdf5(linked)),
    "circle.h5": ("leaf", "E301", lambda: hdf5(in_a_circle)),
    "never-written.h5": ("leaf", "E301", lambda: hdf5(empty)),
    "nested.json": ("leaf", "E301", lambda: b'{"users": ' + b"[" * 20_000),
    "labels-within-labels.json": (
        "leaf",
        "E302",
        lambda: json.dumps({"users": ["u"], "user_data": {"u": {"x": [[0]], "y": [[1]]}}}).encode(),
    ),
    "two-labels-each.npz": (
        "npz",
        "E302",
        lambda: npz(npy("(1, 64)", body=bytes(512)), y=npy("(1, 2)", "<i8", bytes(16))),
    ),
    "claims-a-terabyte-to-train-on.npz": ("npz", "E301", lambda: npz(npy(HUGE))),
    "weights-elsewhere.onnx": (
        "bundle",
        "E406",
        lambda: onnx(lambda m: elsewhere(m.graph.initializer[0])),
    ),
    "weights-elsewhere-in-a-graph.onnx": ("bundle", "E406", lambda: onnx(hidden)),
    "graphs-within-graphs.onnx": ("bundle", "E406", lambda: onnx(nested)),
    "length-without-end.onnx": ("bundle", "E406", lambda: b"\x3a" + b"\xff" * 12),
    "no-model.onnx": ("bundle", "E406", lambda: b"\x3a\x7f"),
}


def main() -> None:
    """Write the files that are not there yet, and the table."""
    FOLDER.mkdir(exist_ok=True)
    for name, (_, _, made) in FILES.items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(made())
    table = {name: {"reader": reader, "code": code} for name, (reader, code, _) in FILES.items()}
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
