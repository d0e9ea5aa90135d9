"""What a run leaves on the disk: models by client and view, facts of its data, summary, page."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from masquerade.config import toml
from masquerade.core.part import Part
from masquerade.experiments import data_facts, environment
from masquerade.experiments.callbacks import Callback, Run
from masquerade.experiments.report_page import can_write, write_report
from masquerade.experiments.result import Comparison, Result
from masquerade.results import Summary
from masquerade.results.privacy import FILE as PRIVACY
from masquerade.storage import model_files
from masquerade.storage.results import COMPARISON
from masquerade.storage.run_directory import CONFIG, RunDirectory
from masquerade.storage.saved_folder import File, sealed


@dataclass(frozen=True, eq=False)
class RunFiles(Callback):
    """Writes what a run ended with into its directory."""

    directory: RunDirectory
    models: bool = True
    """Whether clients' models are kept."""
    page: bool = True
    """Whether to write a report page; a run of a comparison has none, its comparison has one."""

    def on_end(self, run: Run, result: Result) -> None:
        """Write models, facts, summary and page."""
        self.directory.write_results(_files(result, self.models))
        if self.page and can_write():
            write_report(self.directory.path, result.summaries)


def files_of_result(result: Result) -> Iterator[File]:
    """Yield the files of a saved result, with the manifest of their hashes."""
    settings = (CONFIG, toml.write(result.settings).encode())
    return sealed(chain([settings], _files(result)))


def files_of_comparison(comparison: Comparison) -> Iterator[File]:
    """Yield the files of a saved comparison: its own, and a folder for each training."""
    settings = (CONFIG, toml.write(comparison.settings).encode())
    results = ("results.json", json_of(comparison.summaries))
    yield from sealed([settings, (COMPARISON, b""), results])
    for place, result in enumerate(comparison.results):
        first = result.summaries[0]
        folder = folder_of(place, first.method, first.seed)
        yield from ((f"{folder}/{name}", data) for name, data in files_of_result(result))


def folder_of(place: int, name: str, seed: int) -> str:
    """Name the directory of one of several runs; different names may be alike when shortened."""
    return f"{place}-{re.sub('[^a-zA-Z0-9._-]', '_', name)[:40]}-seed{seed}"


def json_of(summaries: Sequence[Summary]) -> bytes:
    """Write summaries as `summary.json` and `results.json` hold them."""
    return json.dumps([summary.to_json() for summary in summaries], indent=1).encode()


def _files(result: Result, models: bool = True) -> Iterator[File]:
    """Yield the files of a run."""
    listed, facts = result.summaries[0].per_client, result.models.facts
    assert listed is not None
    personal = result.personal if models else {}
    for view, own in personal.items():
        for id, model in zip(listed.ids, own, strict=True):
            yield model_files.client_file(id, view, facts.clients), model_files.encode(model)
    if personal and "python" in result.settings:
        # No seed makes them again, and the models of some methods are made of them.
        yield model_files.INITIAL, model_files.encode({"params": Part(result.task.initial)})
    yield data_facts.FILE, facts.to_bytes()
    for sheet in result.sheets:
        yield PRIVACY, sheet.to_bytes()
    if result.environment is not None:
        yield environment.FILE, environment.to_bytes(result.environment)
    yield "summary.json", json_of(result.summaries)
