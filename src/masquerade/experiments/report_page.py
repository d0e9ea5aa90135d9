"""The report page of a run or a comparison, in its directory."""

from collections.abc import Sequence
from pathlib import Path

from masquerade.config import toml
from masquerade.config.settings import Evaluate
from masquerade.cost.bandwidth import Bandwidth, bandwidth
from masquerade.errors import MasqueradeError
from masquerade.results import Summary
from masquerade.storage import atomic


def write_report(
    path: Path, results: Sequence[Summary], clients_have: Bandwidth | None = None
) -> None:
    """Write the page of a directory's results; `clients_have` is their bandwidth, if not the run's.

    Settings are shown as the directory has them, and nothing that they name is imported.
    """
    from masquerade.report import page

    text = (path / "config.toml").read_text(encoding="utf-8")
    titles = dict.fromkeys(summary.title for summary in results)
    title = f"{results[0].data}: {', '.join(titles)}"
    have = clients_have or run_bandwidth(path)
    try:
        atomic.write_file(path / "report.html", page(results, text, title, rate=have).encode())
    except OSError as error:
        raise MasqueradeError("E502", f"cannot write {path / 'report.html'}: {error}") from None


def run_bandwidth(path: Path) -> Bandwidth:
    """Return the bandwidth that the settings of a run or a comparison give its clients."""
    found = toml.read_file(path / "config.toml").get("evaluate", {})
    return bandwidth(str(found.get("bandwidth", Evaluate().bandwidth)))
