"""Write the development copies as their publishers wrote them, for tests and experiments.

    python -m tests.real.convert ROOT OUT [NAME ...]

ROOT is a folder of copies with a `load.py` that reads them (MASQUERADE_DATA names it for tests);
OUT gets, for each of MNIST, MNIST by writer, CIFAR-10, CIFAR-100, HAR signals and Shakespeare, what
`masquerade data add` reads.
"""

import importlib.util
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.data import originals


def copies(root: Path) -> Any:
    """Return the module that reads the copies."""
    spec = importlib.util.spec_from_file_location("development_copies", root / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mnist(root: Path, out: Path) -> None:
    """Write the four idx files."""
    found = copies(root).mnist()
    for part, name in (("train", "train"), ("test", "t10k")):
        images, labels = found[f"x_{part}"], found[f"y_{part}"].astype(np.uint8)
        # Packed anew they would not have the published hashes, and be refused.
        originals.write_idx(out, "", name, images.reshape(-1, 28, 28), labels, packed=False)


def mnist_writers(root: Path, out: Path) -> None:
    """Write MNIST with the writer of every digit, a stand-in for FEMNIST's digits."""
    found = copies(root).mnist()
    out.parent.mkdir(parents=True, exist_ok=True)
    x, y, writer = (
        np.concatenate([found[f"{key}_train"], found[f"{key}_test"]])
        for key in ("x", "y", "writer")
    )
    train = np.arange(len(y)) < len(found["y_train"])
    np.savez(out, x=x.reshape(-1, 1, 28, 28), y=y, client=writer, train=train)


def cifar10(root: Path, out: Path) -> None:
    """Write python batches."""
    found = copies(root).cifar10()
    x = np.concatenate([found["x_train"], found["x_test"]]).transpose(0, 3, 1, 2)
    y = np.concatenate([found["y_train"], found["y_test"]])
    originals.write_cifar10(out, x, y, len(found["y_test"]))


def cifar100(root: Path, out: Path) -> None:
    """Write binary batches."""
    found = copies(root).cifar100()
    out.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        x, fine = found[f"x_{part}"].transpose(0, 3, 1, 2), found[f"y_{part}"]
        coarse = found["fine_to_coarse"][fine]
        (out / f"{part}.bin").write_bytes(originals.cifar_binary(x, coarse, fine))


def har_signals(root: Path, out: Path) -> None:
    """Write the signals as arrays: as text they would be 200 MB."""
    found = copies(root).har()
    out.parent.mkdir(parents=True, exist_ok=True)
    x = found["x"].transpose(0, 2, 1)
    np.savez(out, x=x, y=found["y"], client=found["subject"], train=~found["is_test"])


def shakespeare(root: Path, out: Path) -> None:
    """Write the text of Project Gutenberg."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "100.txt").write_bytes(
        lzma.decompress((root / "shakespeare" / "pg100_raw.txt.xz").read_bytes())
    )


WRITERS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    # By dataset: what writes it, and the name of what it writes.
    "mnist": (mnist, "mnist"),
    "mnist_writers": (mnist_writers, "mnist_writers.npz"),
    "cifar10": (cifar10, "cifar10"),
    "cifar100": (cifar100, "cifar100"),
    "har_signals": (har_signals, "har_signals.npz"),
    "shakespeare": (shakespeare, "shakespeare"),
}


def convert(name: str, root: Path, out: Path) -> Path:
    """Write one dataset; return what `masquerade data add` is to read."""
    write, base = WRITERS[name]
    write(root, out / base)
    return out / base


if __name__ == "__main__":
    source, target, *names = sys.argv[1:]
    for each in names or WRITERS:
        path = convert(each, Path(source), Path(target))
        format = " --format npz" if path.suffix == ".npz" else ""
        print(f"masquerade data add {each} --from {path}{format}")
