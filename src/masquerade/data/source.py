"""Where samples come from: the cache of datasets, a user's files, or the embedded digits."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from masquerade.data import cache, readers
from masquerade.data.cache import Manifest
from masquerade.data.dataset import Dataset, from_arrays
from masquerade.data.readers.options import AS_IT_IS, TableOptions, names_of
from masquerade.data.registry import EMBEDDED, NAMED
from masquerade.errors import MasqueradeError, nearest, told


def load(
    source: str | Path,
    *,
    label: str = "",
    client: str = "",
    drop: str | Iterable[str] = (),
    categorical: str | Iterable[str] = (),
    impute: str = "",
    sep: str = "",
    encoding: str = "",
    missing: str | Iterable[str] = (),
    task: str = "",
) -> Dataset:
    """Load a dataset by name, or a file or folder that one of the readers knows.

    What follows is for tables (CSV, parquet, folders of Hugging Face `datasets`): `label` is the
    column of the labels (`y` by default), `client` the one that says whose a row is, `drop` those
    that are left out, `categorical` those that hold categories. `impute` says what stands in for
    missing values, and `missing` which texts mean such besides the usual ones. `sep` and `encoding`
    are those of a CSV file. `task` says what labels are, "classification" or "regression", where
    their values leave it open.
    """
    named = (names_of(drop), names_of(categorical))
    table = TableOptions(label, client, *named, impute, sep, encoding, names_of(missing), task)
    return loaded(source, replace(table, in_python=True))


def loaded(source: str | Path, table: TableOptions = AS_IT_IS) -> Dataset:
    """Load a dataset with options in one record."""
    if not isinstance(source, (str, Path)):
        how = "mq.from_frame(frame, label=...) takes frames, mq.from_arrays(x, y) arrays"
        raise MasqueradeError("E201", f"`source` is {told(source)}; give a name or a path; {how}")
    name = str(source)
    if is_file(name):
        return readers.read(Path(source), Path(source).stem, table=table).dataset
    if name in DATASETS or cache.holds(name):
        dataset = DATASETS[name]() if name in DATASETS else cache.read(name)
        return _with_options(dataset, table)
    raise _unknown(name)


def check_known(name: str) -> None:
    """Refuse the name of a dataset that is not here, before anything is said of a training."""
    if not (is_file(name) or name in DATASETS or cache.holds(name)):
        raise _unknown(name)


def _unknown(name: str) -> MasqueradeError:
    if name in NAMED:
        text = f"`{name}` is not in the cache {cache.root()}; {NAMED[name].how(name)}"
        return MasqueradeError("E301", text)
    here = [*DATASETS, *cache.names()]
    return MasqueradeError(
        "E301",
        f"unknown dataset `{name}`{nearest(name, [*here, *NAMED])}; here are {', '.join(here)}; "
        f"`masquerade data fetch` knows {', '.join(NAMED)}, `masquerade data add` takes files of "
        "your own, and the path of a file (.csv, .parquet, .npz) or folder will do",
    )


def is_file(name: str) -> bool:
    """Tell the path of a file or folder from the name of a dataset; names go first."""
    if name in DATASETS or name in NAMED or cache.holds(name):
        return False
    return Path(name).exists() or Path(name).suffix in SUFFIXES


def _with_options(dataset: Dataset, table: TableOptions) -> Dataset:
    """Impute otherwise, where that is asked for; all else is settled when a table is added."""
    if table.given and not dataset.features:
        text = f"`{dataset.name}` is no table; leave out {', '.join(table.given)}"
        raise MasqueradeError("E201", text)
    settled = [option for option in table.given if option != "impute"]
    if settled:
        text = f"`{dataset.name}` was read when it was added, with other options"
        how = f"`masquerade data add` its file again, with --force, to change {', '.join(settled)}"
        raise MasqueradeError("E201", f"{text}; {how}")
    return replace(dataset, impute=table.impute or dataset.impute)


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
    # Its file alone is read: to import scikit-learn takes longer than a small run.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    images = rows[:, :-1].reshape(-1, 1, 8, 8) / 16
    return from_arrays(images, rows[:, -1].astype(np.int64), name="digits")


SUFFIXES = (".npz", ".csv", ".tsv", ".parquet")
"""How the path of a file ends that may not be there."""
DATASETS: dict[str, Callable[[], Dataset]] = {"digits": _digits}
"""The datasets that need no files."""
