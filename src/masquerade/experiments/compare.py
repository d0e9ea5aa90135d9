"""Several trainings side by side, in one directory: each a run of its own, and results over all."""

import json
from pathlib import Path

from masquerade.config import toml
from masquerade.config.resolve import rehearse, settle, trainings
from masquerade.config.settings import Config
from masquerade.experiments import run
from masquerade.experiments.report_page import write_report
from masquerade.experiments.run import Watch
from masquerade.simulation.state import Record
from masquerade.storage.results import COMPARISON
from masquerade.storage.run_directory import RunDirectory


def compare(path: Path, config: Config | None, watch: Watch) -> list[Record]:
    """Train everything that a configuration names, in a new directory.

    Without one, do what is left of the comparison that the directory holds: finished trainings are
    read, others resumed or begun.
    """
    if config is not None:
        config = settle(config)
        # What cannot begin leaves no directory behind.
        rehearse(config)
        opened = RunDirectory.create(path, toml.dump(config), COMPARISON)
    else:
        opened = RunDirectory.open(path)
    with opened as directory:
        config = config or toml.load(directory.path / "config.toml")
        planned, results = trainings(config), []
        for place, training in enumerate(planned):

            def tell(
                name: str, done: int, rounds: int, record: Record | None, place: int = place
            ) -> None:
                watch(name, done, rounds, record, (place + done / rounds) / len(planned))

            folder = directory.path / training.folder
            results += run.start(config, training, folder, tell, begun=True)
        order = {name: place for place, name in enumerate(config.methods)}
        results.sort(key=lambda result: (result["seed"], order[result["method"]]))
        directory.write_text("results.json", json.dumps(results, indent=1))
        write_report(directory.path, results)
        return results
