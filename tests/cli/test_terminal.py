"""The command among other programs: completion in a shell, colors, JSON."""

import json
import os
import re
import stat
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from masquerade.laws import check

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from masquerade.cli.app import app

# It reads the environment once, and must not read what a test sets.
import_module("typer.rich_utils")
COLOR = re.compile(r"\x1b\[[0-9;]*(?:3[0-9]|4[0-9]|9[0-7])[0-9;]*m")
ASKS = """
eval "$(_MASQUERADE_COMPLETE=source_bash masquerade)"
for words in "masquerade rep" "masquerade report --js" "masquerade data s"; do
    COMP_WORDS=($words)
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _masquerade_completion masquerade
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture
def command(tmp_path: Path) -> dict[str, str]:
    """An environment in which `masquerade` is on the path, installed or not."""
    program = tmp_path / "masquerade"
    program.write_text(f"#!{sys.executable}\nfrom masquerade.cli.app import main\n\nmain()\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    source = str(Path(__file__).parents[2] / "src")
    return os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": source}


def test_bash_completes_commands_and_options(command: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", ASKS], env=command, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["report reproduce", "--json", "show"]


def test_no_color_is_honored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LAWS", check.LAWS[:1])
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert COLOR.search(CliRunner().invoke(app, ["check", "fedavg"], color=True).output)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = CliRunner().invoke(app, ["check", "fedavg"], color=True).output
    assert "holds" in plain
    assert not COLOR.search(plain)


def test_a_check_can_be_read_by_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LAWS", check.LAWS[:2])
    done = CliRunner().invoke(app, ["check", "fedavg", "--json"])
    report = json.loads(done.output)
    assert report["method"] == "FedAvg"
    assert [(each["number"], each["result"]) for each in report["findings"]] == [
        (1, "holds"),
        (2, "holds"),
    ]
