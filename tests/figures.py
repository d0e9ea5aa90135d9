"""Figures that long checks find, as files that pages are made of.

They are written only where `MASQUERADE_FIGURES` is set, so that a check that fails or is tried out
changes no page: `MASQUERADE_FIGURES=1 make drill`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "reliability"


def record(name: str, command: str, figures: Mapping[str, object]) -> None:
    """Write what a check found, and the command that finds it again."""
    if os.environ.get("MASQUERADE_FIGURES"):
        FOLDER.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"command": command, "figures": figures}, indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
