"""`masquerade check`: the laws from the command, for named methods and for code in a file."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from masquerade.laws.law import Law
from masquerade.laws.problem import Problem
from masquerade.methods import METHODS
from tests.support import forget, raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from masquerade.cli.app import app

MINE = """
import masquerade as mq
import torch

class Careful(mq.Method):
    pass

class Careless(mq.Method):
    def plan(self, task, round):
        def step(work, batch, round):
            def mean(trees):
                return task.losses(trees["params"], batch)[0].mean(), {}
            grads = mq.gradient(mean, {"params": work["params"]})[0]["params"]
            return {"params": {n: value - grads[n] for n, value in work["params"].items()}}
        return (mq.Stage("careless", step, self.local_epochs),)

def narrow(shape, classes):
    entries = torch.Size(shape).numel()
    layers = torch.nn.Linear(entries, 2), torch.nn.Linear(2, classes)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)
"""


def call(*words: object) -> tuple[int, str]:
    """Call the command; return its status, and what it prints, on one line."""
    done = CliRunner().invoke(app, ["check", *map(str, words)])
    return done.exit_code, re.sub(r"\s+", " ", done.output)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    yield path
    forget()


ONCE = ["--set", "method.local_epochs=1"]


def test_a_named_method_keeps_the_laws(mine: Path) -> None:
    status, out = call("fedper", *ONCE)
    assert (status, "FedPer keeps 10 laws and breaks 0; 1 do not apply." in out) == (0, True)
    assert list(mine.parent.iterdir()) == [mine]


def test_a_file_with_one_method_needs_no_name_and_one_with_more_says_which(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("masquerade.laws.check.LAWS", ())
    alone, none = mine.with_name("alone.py"), mine.with_name("none.py")
    alone.write_text("from masquerade.core import Method\nclass Mine(Method): ...\n", "utf-8")
    none.write_text("from masquerade.methods import FedAvg\n", "utf-8")
    status, out = call(alone, *ONCE)
    assert (status, "Mine keeps 0 laws" in out) == (0, True)
    assert "alone.py:Mine" in METHODS
    for file, named in ((mine, ("mine.py:Careful", "mine.py:Careless")), (none, ("none",))):
        with raises("E202", *named):
            app(["check", str(file)], standalone_mode=False)
    with raises("E201"):
        app(["check", "nowhere.py"], standalone_mode=False)


def test_a_broken_law_is_exit_status_1_and_says_where(mine: Path) -> None:
    status, out = call(f"{mine}:Careless", *ONCE)
    assert status == 1
    assert re.search(r"Careless keeps \d laws and breaks [23]; 2 do not apply\.", out)
    assert "at train round, phase train, stage `careless`, client 1" in out
    assert "`batch.mean`" in out


def test_code_and_data_are_those_of_the_command(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Problem] = []
    monkeypatch.setattr("masquerade.laws.check.LAWS", (Law(1, "", "", seen.append),))
    monkeypatch.setattr("masquerade.laws.check.Report", lambda *given: Kept())
    assert call(f"{mine}:Careful", "--model", f"{mine}:narrow", "--set", "method.lr=0.5")[0] == 0
    assert call("fedavg", "--data", "digits", "--model", f"{mine}:narrow")[0] == 0
    assert call("fedbn", "--set", "data.clients=3")[0] == 0
    toy, digits, norms = seen
    assert (type(toy.method).__name__, toy.method.lr, toy.name) == (
        "Careful",
        0.5,
        "mine.py:Careful",
    )
    assert (toy.federation.name, toy.task.shapes["1.weight"]) == ("toy", (2, 6))
    assert (digits.federation.name, digits.task.shapes["1.weight"]) == ("digits", (2, 64))
    assert (norms.federation.clients, bool(norms.task.norms)) == (3, True)


class Kept:
    """A report in which no law is broken."""

    holds = True

    def __rich__(self) -> str:
        return ""
