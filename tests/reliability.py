"""Figures of drills, as files that `bench/reliability.py` makes a page of.

They are written only where that is asked for, so that a drill that is tried out changes no page:
`MASQUERADE_FIGURES=1 make drill`. A drill that fails writes none.
"""

import datetime
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ASKED = "MASQUERADE_FIGURES"
"""The variable that asks drills to write what they counted."""
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "results" / "reliability"


def publish(name: str, command: str, figures: Mapping[str, float | str], when: bool = True) -> None:
    """Write what a drill counted, when, of which commit, and the command that counts it again."""
    if when and os.environ.get(ASKED):
        FOLDER.mkdir(parents=True, exist_ok=True)
        record = {
            "command": command,
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "figures": dict(figures),
        }
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def commit() -> str:
    """Name the commit that is drilled."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"]
    return subprocess.check_output(command, text=True).strip()
