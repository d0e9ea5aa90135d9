"""A client's own data, as its `data.toml` says: a file, a dataset by name, or a function."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from masquerade.config import code, toml
from masquerade.config.resolve import table_options
from masquerade.config.settings import TABLE_OPTIONS, Data, Settings
from masquerade.data import Dataset, Federation, from_arrays, partition
from masquerade.data.source import is_file, loaded
from masquerade.deploy.client import alone
from masquerade.deploy.federation import load_code
from masquerade.errors import MasqueradeError

FILE = "data.toml"


@dataclass(frozen=True)
class OwnData(Settings):
    """Where a client's samples are."""

    name: str = ""
    """A file or folder, a dataset by name, or PATH/FILE.py:function without arguments that gives a
    dataset, or its x and y."""
    label_column: str = ""
    drop_columns: tuple[str, ...] = ()
    categorical_columns: tuple[str, ...] = ()
    impute: str = ""
    sep: str = ""
    encoding: str = ""
    missing: tuple[str, ...] = ()
    task: str = ""
    clients: int = 0
    """Where a dataset is shared out for a trial: among how many, by which rule and seed, and which
    share is this client's."""
    partition: str = "iid"
    seed: int = 1
    client: int = 0


@dataclass(frozen=True)
class OwnCode(Settings):
    """Code of the user's own that this machine has."""

    paths: tuple[str, ...] = field(default=())
    """As PATH/FILE.py:NAME."""


def read_all(folder: Path) -> tuple[OwnData, Dataset]:
    """Return where a client's samples are, and all that is there."""
    tables = toml.read_file(folder / FILE)
    problems: list[str] = []
    unknown = tables.keys() - {"data", "code"}
    problems += [f"unknown section `{name}`; there are data and code" for name in sorted(unknown)]
    own = toml.fill(OwnData, tables.get("data", {}), "data", problems)
    if not own.name:
        problems.append("`data.name` is empty; name a file, a dataset, or PATH/FILE.py:function")
    if problems:
        raise MasqueradeError("E201", f"{folder / FILE}: " + "; ".join(problems))
    return own, _dataset(folder, own)


def read_own(folder: Path, split: Data) -> Federation:
    """Return a client's samples, split as the federation's settings say, as a federation of one."""
    own, dataset = read_all(folder)
    shares, merge = split.split, split.merge
    if own.clients:
        if not 0 <= own.client < own.clients:
            text = f"`data.client` is {own.client}, of {own.clients} clients"
            raise MasqueradeError("E201", f"{folder / FILE}: {text}; count from 0")
        whole = partition(dataset, own.clients, own.partition, own.seed, shares, merge)
        return at(alone(whole, own.client), own.client, 0)
    bare = replace(dataset, client=None, names=())
    return partition(bare, 1, "iid", split.seed, shares, merge)


def read_code(folder: Path) -> None:
    """Import what `[code]` of a client's folder names."""
    tables, problems = toml.read_file(folder / FILE), list[str]()
    own = toml.fill(OwnCode, tables.get("code", {}), "code", problems)
    if problems:
        raise MasqueradeError("E201", f"{folder / FILE}: " + "; ".join(problems))
    load_code([_placed(folder, path) for path in own.paths])


def at(data: Federation, old: int, new: int) -> Federation:
    """Return a federation of one client's samples, in which it has another number."""
    nothing = torch.empty(0, dtype=torch.int64)
    parts = (data.train, data.validation, data.test)
    train, validation, test = ((nothing,) * new + (part[old],) for part in parts)
    return replace(data, train=train, validation=validation, test=test, names=())


def joined(parts: Sequence[Federation]) -> Federation:
    """Return a federation of clients whose samples are given one by one."""
    starts = torch.tensor([0, *(len(each.y) for each in parts)]).cumsum(0).tolist()
    placed = list(zip(parts, starts, strict=False))
    return replace(
        parts[0],
        x=torch.cat([each.x for each in parts]),
        y=torch.cat([each.y for each in parts]),
        train=tuple(each.train[0] + start for each, start in placed),
        validation=tuple(each.validation[0] + start for each, start in placed),
        test=tuple(each.test[0] + start for each, start in placed),
    )


def fingerprint(data: Federation, run: str) -> str:
    """Return what tells whether samples changed, and nothing else: it is salted with the run."""
    return hashlib.sha256(f"{run} {data.fingerprint()}".encode()).hexdigest()


def _placed(folder: Path, name: str) -> str:
    """Return a path that is relative to a client's folder as it is from here."""
    return str(folder / name) if not Path(name).is_absolute() else name


def _dataset(folder: Path, own: OwnData) -> Dataset:
    if code.is_code(own.name):
        return _of_function(_placed(folder, own.name))
    inside = folder / own.name
    name = str(inside) if inside.exists() or is_file(own.name) else own.name
    shared = {each.name: getattr(own, each.name) for each in fields(own)}
    options = {key: shared[key] for key in TABLE_OPTIONS.values() if key in shared}
    return loaded(name, replace(table_options(Data(**options)), one_client=True))


def _of_function(typed: str) -> Dataset:
    name, found = code.load(typed)
    try:
        made: Any = found.found()
    except Exception as error:
        text = f"`{name}` failed ({type(error).__name__}: {error}); mend it"
        raise MasqueradeError("E202", text) from error
    if isinstance(made, Dataset):
        return made
    if isinstance(made, tuple) and len(made) == 2:
        return from_arrays(*made, name=name)
    raise MasqueradeError("E202", f"`{name}` returned {made!r}; return mq.from_arrays(x, y)")
