"""Weights & Biases: a run per training. Its mode (online, offline) is the user's."""

from collections.abc import Mapping
from typing import Any

from masquerade.errors import require
from masquerade.trackers.tracker import Tracker, Values


class WandB(Tracker):
    """Logs to a project of Weights & Biases."""

    def __init__(self, project: str, **settings: Any) -> None:
        """Take the project, and whatever else `wandb.init` takes: mode, entity, group, tags."""
        super().__init__()
        self.project = project
        self._settings = settings
        self._wandb = require("wandb", "wandb")
        self._open: Any = None

    def begin(self, name: str, settings: Mapping[str, Any], step: int) -> None:
        """Begin a run, with its settings as configuration."""
        given = {"name": name, "config": dict(settings), **self._settings}
        self._open = self._wandb.init(project=self.project, **given)

    def log(self, values: Values, step: int) -> None:
        """Log numbers."""
        self._open.log(dict(values), step=step)

    def end(self, values: Values, step: int) -> None:
        """Put the summary into the run's, and finish it."""
        self._open.summary.update(dict(values))
        self._open.finish()

    def fail(self) -> None:
        """Finish the run as one that failed."""
        self._open.finish(exit_code=1)
