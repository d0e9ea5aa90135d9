"""The results in a directory: of one run, or of a comparison of several."""

from pathlib import Path

from masquerade.errors import MasqueradeError, missing, warn
from masquerade.results import PrivacySheet, Summary
from masquerade.results.json_records import parsed
from masquerade.results.privacy import FILE as PRIVACY
from masquerade.storage.regular import read_regular
from masquerade.storage.run_directory import DAMAGED, HASHES, METRICS
from masquerade.storage.saved_folder import Folder, damaged

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


def read_sheets(path: Path) -> tuple[PrivacySheet, ...]:
    """Read the privacy sheets of a run directory or a comparison; older runs have none."""
    sealed = (path / HASHES, *sorted(path.glob(f"*/{HASHES}")))
    folders = [Folder.open(each.parent) for each in sealed if each.is_file()]
    return tuple(
        PrivacySheet.from_bytes(each.read(PRIVACY)) for each in folders if PRIVACY in each.files
    )


def read_results(path: Path) -> list[Summary]:
    """Read the summaries of a run directory, or the results of a comparison.

    Settings, metrics and facts of the data are checked too, and models as they are read. A warning
    says which rounds have lost their lines of metrics.
    """
    folder = Folder.open(path)
    folder.check()
    name = "results.json" if "results.json" in folder.files else "summary.json"
    try:
        found = parsed(folder.read(name))
        if not isinstance(found, list) or not found:
            raise ValueError("it has no summaries")
        results = [Summary.from_json(each) for each in found]
    except (ValueError, TypeError, MasqueradeError) as error:
        said = str(error).removeprefix("E401 ")
        raise damaged(path / name, path, said) from None
    runs = [path] if name == "summary.json" else [each.parent for each in path.glob(f"*/{HASHES}")]
    for run in sorted(runs):
        _warn_of_lost_lines(run, results[0].rounds)
    return results


def _warn_of_lost_lines(run: Path, rounds: int) -> None:
    """Say which rounds a run has no metrics of: they were damaged, and nothing makes them again."""
    try:
        there = {int(parsed(line)["round"]) for line in read_regular(run / METRICS).splitlines()}
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        # A saved result has none; of damage others tell.
        return
    if lost := missing(there, rounds):
        left = f"; what is left of them is in {run / DAMAGED}" if (run / DAMAGED).is_file() else ""
        text = f"W404 {run / METRICS} lost lines (rounds: {lost}), which nothing"
        warn(f"{text} makes again{left}; the results do not depend on them")
