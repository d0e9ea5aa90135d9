"""What a run directory holds at its end: models by client and view, the summary, the page."""

import json
from dataclasses import dataclass
from importlib.util import find_spec

from masquerade.experiments.callbacks import Callback, Run
from masquerade.experiments.report_page import write_report
from masquerade.experiments.result import Result
from masquerade.simulation.server import Server
from masquerade.storage import model_files
from masquerade.storage.run_directory import RunDirectory


@dataclass(frozen=True, eq=False)
class RunFiles(Callback):
    """Writes what a run ended with into its directory."""

    directory: RunDirectory
    server: Server
    models: bool = True
    """Whether clients' models are kept."""
    page: bool = True
    """Whether there is a report page: one of several runs has none, but their comparison."""

    def on_end(self, run: Run, result: Result) -> None:
        """Write models, summary and page."""
        for view, own in result.personal.items() if self.models else ():
            for id, model in zip(self.server.known, own, strict=True):
                name = model_files.client_file(id, view, len(self.server.clients))
                model_files.write(self.directory, name, model)
        texts = [summary.to_json() for summary in result.summaries]
        self.directory.write_text("summary.json", json.dumps(texts, indent=1))
        # Machines that only train have no matplotlib; `masquerade report` writes the page later.
        if self.page and find_spec("matplotlib"):
            write_report(self.directory.path, result.summaries)
