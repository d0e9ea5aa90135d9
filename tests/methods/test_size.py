"""A method's file is its difference from FedAvg."""

from pathlib import Path

import pytest

from masquerade.methods import METHODS

FOLDER = Path(__file__).parents[2] / "src" / "masquerade" / "methods"
LONGER = {"dmpfl", "pfedgate", "fedselect", "fedmask"}
"""The systems that the library is about have many settings and stages; all others are short."""
MODULES = sorted({line.method.__module__.rpartition(".")[2] for line in METHODS.values()})


@pytest.mark.parametrize("name", MODULES)
def test_a_method_has_at_most_120_lines(name: str) -> None:
    lines = len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines())
    assert lines <= (300 if name in LONGER else 120), lines
