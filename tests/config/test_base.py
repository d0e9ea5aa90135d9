"""A configuration file may lie over another one."""

from pathlib import Path

import pytest

from masquerade.config.toml import parse, read_file
from tests.support import raises

FILES = {
    "base.toml": "[train]\nrounds = 7\nbatch_size = 3\n[method]\nlocal_epochs = 2\n",
    "row.toml": 'base = "base.toml"\nmethods = ["fedprox"]\n[train]\nbatch_size = 4\n',
    "view.toml": 'base = "row.toml"\n[method.fedprox]\nmu = 0.5\n',
    "self.toml": 'base = "self.toml"\n',
    "here.toml": 'base = "there.toml"\n',
    "there.toml": 'base = "here.toml"\n',
    "number.toml": "base = 3\n",
    "lost.toml": 'base = "gone.toml"\n',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_file_stands_over_its_base_key_by_key(folder: Path) -> None:
    assert read_file(folder / "view.toml") == {
        "methods": ["fedprox"],
        "train": {"rounds": 7, "batch_size": 4},
        "method": {"local_epochs": 2, "fedprox": {"mu": 0.5}},
    }
    assert parse(read_file(folder / "view.toml")).train.batch_size == 4
    # The base itself is as it was.
    assert read_file(folder / "base.toml")["train"]["batch_size"] == 3


@pytest.mark.parametrize("name", ["self", "here", "number", "lost"])
def test_a_base_that_leads_nowhere_is_refused(folder: Path, name: str) -> None:
    with raises("E201", ".toml"):
        read_file(folder / f"{name}.toml")
