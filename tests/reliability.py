"""Figures of reliability, as the page that is made of them reads them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

ASKED = "MASQUERADE_FIGURES"
"""The variable that asks tests to write what they counted; they write nothing without it."""
FOLDER = Path(__file__).parents[1] / "docs" / "results" / "reliability"


def publish(name: str, command: str, figures: Mapping[str, float | str], when: bool = True) -> None:
    """Write what a test counted, and the command that counts it again, if that is asked for."""
    if when and os.environ.get(ASKED):
        FOLDER.mkdir(parents=True, exist_ok=True)
        record = {"command": command, "figures": dict(figures)}
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
