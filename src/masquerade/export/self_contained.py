"""Whether an ONNX model is all in its own bytes, told without the package `onnx`.

A tensor of ONNX may name a file that holds its values, which onnxruntime would read from the
current folder. Only the fields on the way to tensors are looked at.
"""

from collections.abc import Iterator, Mapping

DEEPEST = 16
"""Graphs within one another, at most; ours have none."""

Message = Mapping[int, str]

FIELDS: Mapping[str, Message] = {
    # Of ModelProto and what it holds: which field holds what.
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "elsewhere", 14: "elsewhere"},
}


def check(model: bytes) -> None:
    """Raise ValueError where the values of a tensor lie in another file, or it is no model."""
    waiting = [("model", memoryview(model), 0)]
    while waiting:
        kind, data, depth = waiting.pop()
        if depth > DEEPEST:
            raise ValueError("its graphs are nested too deeply")
        for field, value in _fields(data):
            inner = FIELDS[kind].get(field)
            # The default is said by 0: the values are here.
            if inner == "elsewhere" and value != 0:
                raise ValueError("values of a tensor lie in another file")
            if inner is not None and inner in FIELDS:
                if isinstance(value, int):
                    raise ValueError("it is no ONNX model")
                waiting.append((inner, value, depth + (inner == "graph")))


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a message of protobuf: a number, or bytes."""
    place = 0
    while place < len(data):
        key, place = _number(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _number(data, place)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, place = _number(data, place)
        if size is None or place + size > len(data):
            raise ValueError("it is no ONNX model")
        yield key >> 3, data[place : place + size]
        place += size


def _number(data: memoryview, place: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        found, place = found | (byte & 0x7F) << shift, place + 1
        if byte < 0x80:
            return found, place
    raise ValueError("it is no ONNX model")
