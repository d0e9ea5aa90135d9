"""A table small enough for tests: three rows on a handful of points, and results made by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np

BASE = """
[data]
name = "{data}"
clients = 3
partition = "iid"
split = [0.75, 0.0, 0.25]
[train]
model = "logistic"
rounds = 4
[evaluate]
every = 1
degrees = [0, 100]
[compute]
engine = "loop"
commit_every = 0.0
"""
TABLE = """
title = "Accuracy"
paper = "A paper, Table 9"
columns = [
    { name = "own", paths = ["accuracy.shift.0.mean"], miss = 3 },
    { name = "bytes", paths = ["costs.train.paper.bytes", "costs.adapt.paper.bytes"], unit = 1000 },
    { name = "share", paths = ["costs.train.paper.bytes"], share_of = "fedavg", miss = 3 },
]
[figures]
fedavg = [[60.0, 8.0], [2.0], [100]]
fedavg_ft = [[80.0, 9.0], [2.0], [100]]
fedprox = [[58.0, 7.0], [2.0], [100]]
[search]
values = [1e-9, 0.5]
settings = ["lr", "tune_lr"]
[search.over.data]
split = [0.5, 0.25, 0.25]
[search.over.train]
rounds = 1
[search.over.evaluate]
split = "validation"
degrees = [0]
every = 0
[quick.train]
rounds = 2
[quick.search.train]
rounds = 1
"""
ROWS = {
    "fedavg": 'base = "base.toml"\nmethods = ["fedavg"]\n[method.fedavg]\ntune_epochs = 1\n',
    "fedavg_ft": 'base = "fedavg.toml"\nmethods = ["fedavg_ft"]\n',
    "fedprox": 'base = "base.toml"\nmethods = ["fedprox"]\n[method.fedprox]\nmu = 0.5\n',
}


def lay_out(root: Path) -> Path:
    """Write the table, its rows and its data under a folder, and return the folder."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 120)
    x = rng.normal(size=(3, 4))[y] + 0.7 * rng.normal(size=(120, 4))
    np.savez(root / "points.npz", x=x.astype(np.float32), y=y)
    folder = root / "runs" / "paper" / "table9"
    folder.mkdir(parents=True)
    (folder / "base.toml").write_text(BASE.format(data=root / "points.npz"), encoding="utf-8")
    (folder / "table.toml").write_text(TABLE, encoding="utf-8")
    for row, text in ROWS.items():
        (folder / f"{row}.toml").write_text(text, encoding="utf-8")
    return root


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that is there."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def stored(path: Path) -> dict[str, Any]:
    """Read a result."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
