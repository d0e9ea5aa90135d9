"""TensorBoard: event files in a folder, one subfolder per training. Nothing is sent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from masquerade.errors import require
from masquerade.trackers.tracker import Tracker, Values


class TensorBoard(Tracker):
    """Writes event files for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | Path) -> None:
        """Take the folder; a training is a folder in it, named by method and seed."""
        super().__init__()
        require("tensorboard", "tensorboard")
        self.folder = Path(folder)
        self._writer: Any = None

    def begin(self, name: str, settings: Mapping[str, Any], step: int) -> None:
        """Open the event file of a training, with its settings as a text."""
        # What a stopped run wrote from this step on, or another run of this name, is not shown.
        self._writer = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(
            str(self.folder / name), purge_step=step
        )
        lines = [f"| {key} | {value} |" for key, value in settings.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]))

    def log(self, values: Values, step: int) -> None:
        """Write numbers, so that they can be read at once."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, values: Values, step: int) -> None:
        """Write the summary, and close the file."""
        self.log(values, step)
        self._writer.close()

    def fail(self) -> None:
        """Close the file; it has what was logged so far."""
        self._writer.close()
