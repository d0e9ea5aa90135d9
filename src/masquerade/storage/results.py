"""The results in a directory: of one run, or of a comparison of several."""

import json
from pathlib import Path
from typing import Any

from masquerade.errors import MasqueradeError

COMPARISON = "comparison"
"""The file that tells a comparison's directory from a run's."""


def is_comparison(path: Path) -> bool:
    """Tell a comparison's directory from a run's."""
    return (path / COMPARISON).is_file()


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the summaries of a run directory, or the results of a comparison."""
    for name in ("results.json", "summary.json"):
        if (path / name).is_file():
            try:
                found: list[dict[str, Any]] = json.loads((path / name).read_text(encoding="utf-8"))
            except ValueError as error:
                text = f"{path / name} is damaged ({error}); remove it"
                raise MasqueradeError("E401", f"{text}, then: masquerade resume {path}") from None
            return found
    begun = (path / "config.toml").is_file()
    then = f"a run stopped there, so: masquerade resume {path}" if begun else "check the path"
    raise MasqueradeError("E408", f"no results in {path}; {then}")
