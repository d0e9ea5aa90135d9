"""The report page of a run or a comparison: in its directory, or anywhere."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from masquerade import __version__
from masquerade.config import toml
from masquerade.config.settings import Evaluate
from masquerade.cost.bandwidth import Bandwidth, bandwidth
from masquerade.errors import MasqueradeError
from masquerade.experiments import data_facts, environment
from masquerade.results import Environment, PrivacySheet, Summary
from masquerade.storage import atomic
from masquerade.storage.results import read_results, read_sheets
from masquerade.storage.run_directory import CONFIG
from masquerade.storage.saved_folder import Folder

if TYPE_CHECKING:
    from masquerade.report.page import About


def can_write() -> bool:
    """Tell whether this machine can: one that only trains, or serves, leaves it to another."""
    from masquerade.report.render import can_draw

    return can_draw()


def write_report(
    path: Path, results: Sequence[Summary], clients_have: Bandwidth | None = None
) -> None:
    """Write the page of a directory's results; `clients_have` is their bandwidth, if not the run's.

    Settings are shown as the directory has them, and nothing that they name is imported.
    """
    write_page(path / "report.html", results, *_beside(path), clients_have, read_sheets(path))


def report_of(path: Path) -> str:
    """Return the page of a directory's results, and write nothing."""
    return text_of(read_results(path), *_beside(path), sheets=read_sheets(path))


def _beside(path: Path) -> tuple[str, str, Environment | None]:
    """Read what a directory knows beside its results: settings, partition, environment."""
    text = Folder.open(path).text(CONFIG)
    folders = [Folder.open(file.parent) for file in sorted(path.glob(f"*/{CONFIG}"))]
    if folders:
        runs = [toml.read(folder.text(CONFIG)) for folder in folders]
        text = toml.write(as_run(toml.read(text), runs))
    # Runs of one program have one federation.
    known = (*folders, Folder.open(path))[0]
    partition = ""
    if data_facts.FILE in known.files:
        partition = data_facts.DataFacts.from_bytes(known.read(data_facts.FILE)).partition
    return text, partition, environment.read(path)


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
    ran: Environment | None = None,
    clients_have: Bandwidth | None = None,
    sheets: Sequence[PrivacySheet] = (),
) -> None:
    """Write a page; `settings` are the text of a `config.toml`."""
    text = text_of(results, settings, partition, ran, clients_have, sheets)
    try:
        atomic.write_file(path, text.encode())
    except OSError as error:
        raise MasqueradeError("E502", f"cannot write {path}: {error}") from None


def text_of(
    results: Sequence[Summary],
    settings: str,
    partition: str,
    ran: Environment | None = None,
    clients_have: Bandwidth | None = None,
    sheets: Sequence[PrivacySheet] = (),
) -> str:
    """Return a page."""
    from masquerade.report import page

    about, rate = about_results(results, settings, partition, ran), _bandwidth(toml.read(settings))
    return page(results, replace(about, sheets=sheets), rate=clients_have or rate)


def about_results(
    results: Sequence[Summary], settings: str, partition: str, ran: Environment | None
) -> "About":
    """Say what was run: its title, its facts in a line, its command, what it ran on."""
    from masquerade.report.page import About

    tables = toml.read(settings)
    title = f"{results[0].data}: {', '.join(dict.fromkeys(each.title for each in results))}"
    facts = [_what_was_run(results, tables, partition, ran)]
    found = {} if ran is None else {k: str(v) for k, v in asdict(ran).items() if v}
    return About(title, settings, facts, ran.command if ran else "", found)


def _what_was_run(
    results: Sequence[Summary],
    tables: Mapping[str, Any],
    partition: str,
    ran: Environment | None,
) -> str:
    """Name the partition, the network and the version in a line."""
    networks = ", ".join(dict.fromkeys(each.network for each in results))
    data = tables.get("data", {})
    if "partition" in data:
        partition = data["partition"]
    version = f"Masquerade {ran.masquerade}" if ran else f"page by Masquerade {__version__}"
    # What a row of the data says of its client is no partition of ours.
    held = "clients as in the data" if partition == "client" else f"partition {partition}"
    held = held if partition else ""
    return " · ".join(filter(None, (f"Network {networks}", held, version)))


def write_figures(
    folder: Path, results: Sequence[Summary], rate: Bandwidth, kinds: Sequence[str]
) -> None:
    """Write the figures of a page as files, each as all `kinds`: "svg", "png"."""
    from masquerade.report import plots, render, tables
    from masquerade.results.lead import led

    charts = plots.figures(tables.under_rules(led(results)), rate)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in charts.items():
            for kind in kinds:
                atomic.write_file(folder / f"{name}.{kind}", render.file_of(chart, kind))
    except OSError as error:
        raise MasqueradeError("E502", f"cannot write {folder}: {error}") from None


def run_bandwidth(path: Path) -> Bandwidth:
    """Return the bandwidth that the settings of a run or a comparison give its clients."""
    return _bandwidth(toml.read_file(path / "config.toml"))


def _bandwidth(tables: Mapping[str, Any]) -> Bandwidth:
    given = tables.get("evaluate", {}).get("bandwidth", Evaluate().bandwidth)
    return bandwidth(str(given))
