"""The report page of a run or a comparison: in its directory, or anywhere."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from masquerade import __version__
from masquerade.config import toml
from masquerade.config.settings import Evaluate
from masquerade.cost.bandwidth import Bandwidth, bandwidth
from masquerade.errors import MasqueradeError
from masquerade.experiments import data_facts
from masquerade.results import PrivacySheet, Summary
from masquerade.storage import atomic
from masquerade.storage.results import read_sheets
from masquerade.storage.run_directory import CONFIG
from masquerade.storage.saved_folder import Folder


def write_report_if_drawn(path: Path, results: Sequence[Summary]) -> None:
    """Write the page where there is matplotlib.

    Machines that only train have none; `masquerade report` writes the page later.
    """
    if find_spec("matplotlib"):
        write_report(path, results)


def write_report(
    path: Path, results: Sequence[Summary], clients_have: Bandwidth | None = None
) -> None:
    """Write the page of a directory's results; `clients_have` is their bandwidth, if not the run's.

    Settings are shown as the directory has them, and nothing that they name is imported.
    """
    text = Folder.open(path).read(CONFIG).decode()
    folders = [Folder.open(file.parent) for file in sorted(path.glob(f"*/{CONFIG}"))]
    if folders:
        runs = [toml.read(folder.read(CONFIG).decode()) for folder in folders]
        text = toml.write(as_run(toml.read(text), runs))
    # Runs of one program have one federation.
    known = (*folders, Folder.open(path))[0]
    partition = ""
    if data_facts.FILE in known.files:
        partition = data_facts.DataFacts.from_bytes(known.read(data_facts.FILE)).partition
    write_page(path / "report.html", results, text, partition, clients_have, read_sheets(path))


def as_run(tables: toml.Tables, runs: Sequence[toml.Tables]) -> toml.Tables:
    """Return the settings of a comparison with what its runs found "auto" and the like to be.

    That is what all of them say; in what they differ, as in seeds, it is as it was given.
    """
    found = dict(tables)
    for section in {"data", "train", "compute"} & tables.keys():
        first, *others = (run.get(section, {}) for run in runs)
        agreed = {
            key: value
            for key, value in first.items()
            if all(other.get(key) == value for other in others)
        }
        found[section] = tables[section] | agreed
    return found


def write_page(
    path: Path,
    results: Sequence[Summary],
    settings: str,
    partition: str,
    clients_have: Bandwidth | None = None,
    sheets: Sequence[PrivacySheet] = (),
) -> None:
    """Write a page; `settings` are the text of a `config.toml`."""
    from masquerade.report import page

    tables = toml.read(settings)
    title = f"{results[0].data}: {', '.join(dict.fromkeys(each.title for each in results))}"
    notes, have = [_what_was_run(results, tables, partition)], clients_have or _bandwidth(tables)
    try:
        text = page(results, settings, title, notes, have, sheets)
        atomic.write_file(path, text.encode())
    except OSError as error:
        raise MasqueradeError("E502", f"cannot write {path}: {error}") from None


def _what_was_run(results: Sequence[Summary], tables: Mapping[str, Any], partition: str) -> str:
    """Name the network, the partition and the version in a line."""
    networks = ", ".join(dict.fromkeys(each.network for each in results))
    data = tables.get("data", {})
    if "partition" in data:
        partition = f"{data['partition']} over {results[0].clients} clients"
    facts = {"Network": networks, "partition": partition, "page by Masquerade": __version__}
    return " · ".join(f"{name} {fact}" for name, fact in facts.items() if fact)


def run_bandwidth(path: Path) -> Bandwidth:
    """Return the bandwidth that the settings of a run or a comparison give its clients."""
    return _bandwidth(toml.read_file(path / "config.toml"))


def _bandwidth(tables: Mapping[str, Any]) -> Bandwidth:
    given = tables.get("evaluate", {}).get("bandwidth", Evaluate().bandwidth)
    return bandwidth(str(given))
