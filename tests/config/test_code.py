"""Code of a user's own: imported where a command names it, and nowhere else."""

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from masquerade.config import code, toml
from masquerade.errors import MasqueradeError
from masquerade.export import from_run, predict
from masquerade.storage.results import read_results
from tests.support import forget, raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app

pytestmark = pytest.mark.usefixtures("plain_pages")
MINE = """
from dataclasses import dataclass
from pathlib import Path

import torch

import masquerade as mq
from helper import WIDTH

with Path(__file__).with_name("imports").open("a") as file:
    file.write("x")


@dataclass(frozen=True, kw_only=True)
class Halved(mq.Method):
    \"\"\"FedAvg whose steps are scaled.\"\"\"

    factor: float = 0.5

    def plan(self, task, round):
        return (mq.Stage("train", self.sgd_step(task, lr=self.lr * self.factor), 1),)


def small(shape, classes):
    sizes = torch.Size(shape).numel()
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(sizes, WIDTH), torch.nn.Linear(WIDTH, classes)
    )


number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file of methods and networks; what was registered is forgotten after."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "code" / "helper.py").write_text("WIDTH = 4\n", encoding="utf-8")
    yield tmp_path / "code" / "mine.py"
    forget()


def call(*words: object) -> None:
    """Run the command in this process; an error is raised, not printed."""
    app([str(word) for word in words], standalone_mode=False)


SHORT = ["--rounds", 2, "--set", "data.fraction=0.2", "--clients", 3, "--quiet"]


def imports(mine: Path) -> int:
    """Count how often the file was imported."""
    return len(mine.with_name("imports").read_text(encoding="utf-8"))


def trained(mine: Path, out: Path) -> Path:
    own = ["--method", f"{mine}:Halved", "--model", f"{mine}:small"]
    call("run", *own, "--set", "method.factor=0.25", "--out", out, *SHORT)
    return out


def test_a_run_has_the_name_and_the_hash_of_its_code_and_no_path(
    mine: Path, tmp_path: Path
) -> None:
    out = trained(mine, tmp_path / "run")
    tables = toml.read_file(out / "config.toml")
    assert tables["methods"] == ["mine.py:Halved"]
    assert tables["method"]["mine.py:Halved"]["factor"] == 0.25
    assert tables["train"]["model"] == "mine.py:small"
    assert set(tables["code"]) == {"mine.py:Halved", "mine.py:small"}
    assert all(len(each) == 64 for each in tables["code"].values())
    assert str(mine.parent) not in (out / "config.toml").read_text(encoding="utf-8")
    (summary,) = read_results(out)
    assert (summary.title, summary.network) == ("Halved", "mine.py:small")
    # 64 pixels, 4 hidden, 10 classes.
    assert summary.model.parameters == 64 * 4 + 4 + 4 * 10 + 10


def test_report_and_export_import_nothing_that_is_not_named(mine: Path, tmp_path: Path) -> None:
    out = trained(mine, tmp_path / "run")
    forget()
    before = imports(mine)
    shutil.rmtree(mine.parent / "__pycache__", ignore_errors=True)
    call("report", out, "--quiet")
    assert (out / "report.html").is_file()
    with raises("E201", "--method", "--model", "PATH/mine.py:Halved"):
        call("export", out, "--client", 0, "--quiet")
    assert imports(mine) == before


def test_a_model_is_exported_with_the_same_code_typed_again(mine: Path, tmp_path: Path) -> None:
    out = trained(mine, tmp_path / "run")
    own = ["--method", f"{mine}:Halved", "--model", f"{mine}:small"]
    forget()
    export = ["export", out, "--client", 1, "--quiet", *own]
    call(*export, "--out", tmp_path / "bundle")
    found = from_run.find(out, 1)
    x = found.model.x[:5]
    answers = predict.predict(predict.open_bundle(tmp_path / "bundle"), x.numpy())
    torch.testing.assert_close(torch.from_numpy(answers), found.model.predict(x))
    # A seed gives the weights of named networks alone.
    with raises("E202"):
        call(*export, "--format", "seeded", "--out", tmp_path / "seeded")
    forget()
    mine.write_text(MINE + "# Changed.\n", encoding="utf-8")
    with raises("E201", "mine.py:Halved"):
        call(*export, "--out", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_is_resumed_with_the_same_code_typed_again(mine: Path, tmp_path: Path) -> None:
    out = trained(mine, tmp_path / "run")
    whole = read_results(out)[0].accuracy
    (out / "hashes.json").unlink()
    own = ["--method", f"{mine}:Halved", "--model", f"{mine}:small"]
    forget()
    with raises("E201", "`mine.py:Halved`"):
        call("resume", out, "--quiet")
    call("resume", out, *own, "--quiet")
    assert read_results(out)[0].accuracy == whole
    (out / "hashes.json").unlink()
    forget()
    mine.write_text(MINE + "# Changed.\n", encoding="utf-8")
    with raises("E201", "mine.py:Halved"):
        call("resume", out, *own, "--quiet")


def test_code_is_compared_with_methods_of_the_package(mine: Path, tmp_path: Path) -> None:
    methods = f"fedavg,{mine}:Halved"
    call("compare", "--methods", methods, "--out", tmp_path / "both", *SHORT)
    found = read_results(tmp_path / "both")
    assert [each.method for each in found] == ["fedavg", "mine.py:Halved"]
    assert (tmp_path / "both" / "mine.py_Halved-seed1").is_dir()
    # A run of ours beside it is one like any other.
    forget()
    call("resume", tmp_path / "both" / "fedavg-seed1", "--quiet")
    assert "code" not in toml.read_file(tmp_path / "both" / "fedavg-seed1" / "config.toml")


def test_what_runs_is_what_was_hashed_and_a_file_is_imported_once(mine: Path) -> None:
    stamp = mine.stat().st_mtime_ns
    for number in (3, 4):
        mine.write_text(MINE.replace("number = 3", f"number = {number}"), encoding="utf-8")
        os.utime(mine, ns=(stamp, stamp))
        assert code.load(f"{mine}:number")[1].found == number
        before = imports(mine)
        code.load(f"{mine}:Halved")
        assert imports(mine) == before
    assert not list(mine.parent.glob("__pycache__/mine.*"))


def test_a_configuration_file_imports_nothing(mine: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'methods = ["{mine}:Halved"]\n', encoding="utf-8")
    with raises("E201"):
        call("run", "--config", path, *SHORT)
    assert not mine.with_name("imports").exists()


@pytest.mark.parametrize(
    ("name", "code"),
    [("Halve", "E202"), ("number", "E202"), ("small", "E202"), ("no way", "E201")],
)
def test_what_is_no_method_is_refused(mine: Path, name: str, code: str) -> None:
    with pytest.raises(MasqueradeError) as fault:
        call("run", "--method", f"{mine}:{name}", *SHORT)
    assert fault.value.code == code


def test_a_file_that_is_not_there_or_broken_is_refused(mine: Path) -> None:
    with raises("E201"):
        call("run", "--method", f"{mine.parent}/other.py:Halved", *SHORT)
    mine.write_text("1 / 0", encoding="utf-8")
    with raises("E202", "ZeroDivisionError"):
        call("run", "--method", f"{mine}:Halved", *SHORT)


def test_a_network_that_is_none_is_refused(mine: Path) -> None:
    mine.write_text(MINE + "\n\ndef none(shape, classes):\n    return 3\n", encoding="utf-8")
    with raises("E202", "torch.nn.Module"):
        call("run", "--method", "fedavg", "--model", f"{mine}:none", *SHORT)
