"""The results in a directory: of one run, or of a comparison of several."""

import json
from pathlib import Path

from masquerade.errors import MasqueradeError
from masquerade.results import Summary
from masquerade.storage.saved_folder import Folder

COMPARISON = "comparison"
"""The file that tells a comparison's directory from a run's."""

SWEEP = "sweep"
"""The file that tells a sweep's directory from others."""


def is_sweep(path: Path) -> bool:
    """Tell a sweep's directory from others."""
    return (path / SWEEP).is_file()


def is_comparison(path: Path) -> bool:
    """Tell a comparison's directory from a run's."""
    return (path / COMPARISON).is_file()


def read_results(path: Path) -> list[Summary]:
    """Read the summaries of a run directory, or the results of a comparison."""
    for name in ("results.json", "summary.json"):
        if (path / name).is_file():
            data = Folder.open(path).read(name)
            try:
                found = json.loads(data)
                return [Summary.from_json(each) for each in found]
            except (ValueError, TypeError, MasqueradeError) as error:
                said = str(error).removeprefix("E401 ")
                text = f"{path / name} is damaged ({said}); remove it"
                raise MasqueradeError("E401", f"{text}, then: masquerade resume {path}") from None
    begun, then = path / "config.toml", "check the path"
    if begun.is_file():
        program = "[python]" in begun.read_text(encoding="utf-8")
        again = "call the program again" if program else f"masquerade resume {path}"
        then = f"a run stopped there, so: {again}"
    raise MasqueradeError("E408", f"no results in {path}; {then}")
