"""Where samples come from: the cache of datasets, a user's npz file, or the embedded digits."""

from collections.abc import Callable
from pathlib import Path

from masquerade.data import cache
from masquerade.data.cache import Manifest
from masquerade.data.dataset import Dataset, from_arrays
from masquerade.data.readers.table import npz
from masquerade.data.registry import EMBEDDED, NAMED
from masquerade.errors import MasqueradeError, nearest


def load(source: str | Path) -> Dataset:
    """Load a dataset by name, or an npz file with `x`, `y` and, if wanted, `client` and `train`."""
    name = str(source)
    if name in DATASETS:
        return DATASETS[name]()
    if cache.holds(name):
        return cache.read(name)
    path = Path(source)
    if name not in NAMED and (path.suffix == ".npz" or path.exists()):
        return npz(path, path.stem)
    if name in NAMED:
        text = f"`{name}` is not in the cache {cache.root()}; {NAMED[name].how(name)}"
        raise MasqueradeError("E301", text)
    here = [*DATASETS, *cache.names()]
    raise MasqueradeError(
        "E301",
        f"unknown dataset `{name}`{nearest(name, [*here, *NAMED])}; here are {', '.join(here)}; "
        f"`masquerade data fetch` knows {', '.join(NAMED)}, `masquerade data add` takes files of "
        "your own, and the path of an .npz file will do",
    )


def about(name: str) -> Manifest | None:
    """Return what is known of a dataset that has a name and is here."""
    if name not in DATASETS:
        return cache.describe(name) if cache.holds(name) else None
    named, dataset = EMBEDDED[name], DATASETS[name]()
    shape, kind = list(dataset.x.shape[1:]), str(dataset.x.dtype).removeprefix("torch.")
    told = (named.origin, named.license, named.citation)
    counts = (len(dataset.y), shape, kind, dataset.classes, None, None)
    return Manifest(name, *counts, list(named.class_names), [], [], *told, named.format)


def published(kind: str, severity: int) -> Dataset:
    """Return the images that CIFAR-10-C itself has of a kind; `corrupt` makes such from others."""
    name = "cifar10c"
    whole, block = load(name), f"{kind}:{severity}"
    blocks = cache.describe(name).blocks
    if block not in blocks:
        raise MasqueradeError("E301", f"`{name}` in the cache has no `{block}`; add its files anew")
    size = len(whole.y) // len(blocks)
    start = blocks.index(block) * size
    part = slice(start, start + size)
    return Dataset(f"{name}:{block}", whole.x[part], whole.y[part], whole.classes)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return from_arrays(digits.images[:, None] / 16, digits.target, name="digits")


DATASETS: dict[str, Callable[[], Dataset]] = {"digits": _digits}
"""The datasets that need no files."""
