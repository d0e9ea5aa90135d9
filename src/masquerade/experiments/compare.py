"""Several trainings side by side, in one directory: each a run of its own, and results over all."""

import json
from pathlib import Path

from masquerade.config import resolve as plan
from masquerade.config import toml as configuration
from masquerade.config.settings import Config
from masquerade.cost.bandwidth import Bandwidth, bandwidth
from masquerade.errors import MasqueradeError
from masquerade.experiments import run as experiment
from masquerade.experiments.run import Watch
from masquerade.simulation.state import Record
from masquerade.storage import atomic
from masquerade.storage.results import COMPARISON
from masquerade.storage.run_directory import RunDirectory


def start(config: Config, path: Path, watch: Watch) -> list[Record]:
    """Train everything that a configuration names, in a new directory."""
    config = plan.settle(config)
    # What cannot begin leaves no directory behind.
    plan.rehearse(config)
    with RunDirectory.create(path, configuration.dump(config), COMPARISON) as directory:
        return _complete(directory, config, watch)


def carry_on(path: Path, watch: Watch) -> list[Record]:
    """Do what is left of a comparison: finished trainings are read, others resumed or begun."""
    with RunDirectory.open(path) as directory:
        config = configuration.load(directory.path / "config.toml")
        return _complete(directory, config, watch)


def _complete(directory: RunDirectory, config: Config, watch: Watch) -> list[Record]:
    planned = plan.trainings(config)
    results: list[Record] = []
    for place, training in enumerate(planned):

        def tell(
            name: str, done: int, rounds: int, record: Record | None, place: int = place
        ) -> None:
            watch(name, done, rounds, record, (place + done / rounds) / len(planned))

        results += experiment.obtain(config, training, directory.path / training.folder, tell)
    order = {name: place for place, name in enumerate(config.methods)}
    results.sort(key=lambda result: (result["seed"], order[result["method"]]))
    directory.write_text("results.json", json.dumps(results, indent=1))
    write_report(directory.path, results, config)
    return results


def write_report(
    path: Path, results: list[Record], config: Config, rate: Bandwidth | None = None
) -> None:
    """Write the page of some results; `rate` is the bandwidth of clients, if not the run's."""
    from masquerade.report import page

    title = f"{results[0]['data']}: {', '.join(dict.fromkeys(r['title'] for r in results))}"
    rate = rate or bandwidth(config.evaluate.bandwidth)
    text = page(results, configuration.dump(config), title, rate=rate)
    try:
        atomic.write_file(path / "report.html", text.encode())
    except OSError as error:
        raise MasqueradeError("E502", f"cannot write {path / 'report.html'}: {error}") from None
