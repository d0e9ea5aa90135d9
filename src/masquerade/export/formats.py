"""The formats of an exported model: a bundle, ONNX whole or cut, weights as safetensors."""

from collections.abc import Callable
from pathlib import Path

from masquerade.errors import MasqueradeError, nearest
from masquerade.export import bundle, sparse
from masquerade.export.from_run import Found
from masquerade.export.sliced import cut

BUNDLE = "bundle"


def check(format: str) -> None:
    """Refuse a format that is not known."""
    if format not in FORMATS:
        text = f"unknown format `{format}`{nearest(format, FORMATS)}; known are"
        raise MasqueradeError("E201", f"{text} {', '.join(FORMATS)}")


def write(found: Found, path: Path, format: str = BUNDLE, compare: bool = False) -> dict[str, int]:
    """Write a model, whole or not at all; return the size of every file.

    With `compare` a bundle also holds the dense and the masked network, to be timed beside.
    """
    check(format)
    if format == BUNDLE:
        manifest = bundle.write(path, found.model, found.card, found.labels, compare)
        return {name: each["size"] for name, each in manifest["files"].items()}
    if compare:
        raise MasqueradeError("E201", f"only a bundle has more to compare; `{format}` is one file")
    data = FORMATS[format](found)
    bundle.place(path, data)
    return {path.name: len(data)}


def _onnx(found: Found) -> bytes:
    return found.model.onnx(found.model.masked())


def _sliced(found: Found) -> bytes:
    return found.model.onnx(cut(found.model.masked()))


def _dense(found: Found) -> bytes:
    return sparse.dense(found.model.networks(), found.model.task.preprocess)


def _packed(found: Found) -> bytes:
    return sparse.packed(found.model.networks(), found.model.task.preprocess)


def _seeded(found: Found) -> bytes:
    model = found.model
    if found.origin is None:
        text = "the weights began in a file or in code of yours, not in a seed; take `packed`"
        raise MasqueradeError("E202", text)
    return sparse.seeded(model.method, model.task, model.parts, found.origin)


FORMATS: dict[str, Callable[[Found], bytes]] = {
    BUNDLE: _sliced,
    "onnx": _onnx,
    "sliced": _sliced,
    "dense": _dense,
    "packed": _packed,
    "seeded": _seeded,
}
