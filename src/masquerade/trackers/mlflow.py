"""MLflow: a run per training, where MLFLOW_TRACKING_URI or the given address says."""

import time
from collections.abc import Mapping
from typing import Any

from masquerade.errors import MasqueradeError, require
from masquerade.trackers.tracker import Tracker, Values


class MLflow(Tracker):
    """Logs to an experiment of MLflow."""

    def __init__(self, experiment: str = "masquerade", tracking_uri: str | None = None) -> None:
        """Take the experiment, made where there is none, and where it is: else MLflow decides."""
        super().__init__()
        self.experiment = experiment
        mlflow = require("mlflow", "mlflow")
        try:
            # A client of its own leaves alone the run that a program may have active.
            self._client = mlflow.MlflowClient(tracking_uri=tracking_uri)
        except mlflow.MlflowException as error:
            # Recent versions keep runs in a database by default, for which mlflow-skinny is not
            # enough.
            text = f"MLflow cannot log where it is told to ({str(error).strip().split('. ')[0]})"
            text += "; name a server in MLFLOW_TRACKING_URI, or install all of it for a database"
            raise MasqueradeError("E202", f"{text}: pip install mlflow") from None
        self._id = ""

    def begin(self, name: str, settings: Mapping[str, Any], step: int) -> None:
        """Create a run, with its settings as parameters."""
        found = self._client.get_experiment_by_name(self.experiment)
        place = found.experiment_id if found else self._client.create_experiment(self.experiment)
        self._id = self._client.create_run(place, run_name=name).info.run_id
        param = require("mlflow.entities", "mlflow").Param
        params = [param(key, str(value)) for key, value in settings.items()]
        self._client.log_batch(self._id, params=params)

    def log(self, values: Values, step: int) -> None:
        """Log numbers as metrics."""
        metric, now = require("mlflow.entities", "mlflow").Metric, int(time.time() * 1000)
        metrics = [metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, values: Values, step: int) -> None:
        """Log the summary, and mark the run as finished."""
        self.log(values, step)
        self._client.set_terminated(self._id)

    def fail(self) -> None:
        """Mark the run as failed."""
        self._client.set_terminated(self._id, status="FAILED")
