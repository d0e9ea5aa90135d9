"""What a run ran on: written beside its results, read back, on the page; damage is refused."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from masquerade import __version__
from masquerade.experiments import environment
from masquerade.storage.saved_folder import sealed, write
from tests.support import raises


def test_it_is_read_back_and_found_in_the_first_run_of_a_comparison(tmp_path: Path) -> None:
    here = environment.here()
    assert here.masquerade == __version__
    assert here.cores >= 1
    assert environment.read(tmp_path) is None
    write(tmp_path / "a-seed1", sealed([(environment.FILE, environment.to_bytes(here))]))
    assert environment.read(tmp_path) == here


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["/usr/bin/masquerade", "run", "--data", "my file.csv"],
            "masquerade run --data 'my file.csv'",
        ),
        (["/x/masquerade/__main__.py", "compare"], "masquerade compare"),
        (["train.py", "--secret"], ""),
    ],
)
def test_a_command_is_kept_and_a_program_s_words_are_not(
    monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    monkeypatch.setattr(sys, "argv", words)
    assert environment.here().command == text


def test_damage_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run", sealed([(environment.FILE, b"{}")]))
    (tmp_path / "run" / environment.FILE).write_text("{ }")
    with raises("E401", environment.FILE):
        environment.read(tmp_path / "run")


def test_a_comparison_has_the_command_that_began_it(tmp_path: Path) -> None:
    here = environment.here()
    assert environment.first_command(tmp_path) == ""
    for place, (name, command) in enumerate({"b": "compare --seed 1", "a": "resume out"}.items()):
        told = environment.to_bytes(replace(here, command=command))
        write(tmp_path / name, sealed([(environment.FILE, told)]))
        os.utime(tmp_path / name / environment.FILE, (place, place))
    assert environment.first_command(tmp_path) == "compare --seed 1"
