"""The progress bar: a callback that moves with the rounds of a run, or of a comparison."""

from rich.progress import Progress

from masquerade.experiments.callbacks import Callback, Run
from masquerade.experiments.result import Result
from masquerade.results import EvaluationRecord, RoundRecord


class ProgressBar(Callback):
    """Shows the method, the round, and the last figure on own data."""

    def __init__(self, progress: Progress) -> None:
        """Take where the bar is drawn."""
        self._progress = progress
        self._bar = progress.add_task("preparing", total=1.0, status="")
        self._latest: dict[str, str] = {}

    def on_evaluation(self, run: Run, record: EvaluationRecord) -> None:
        """Remember the figure of the first view."""
        for found in list(record.views.values())[:1]:
            self._latest[run.name] = f", {found.mean:.3g} on own data"

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Move the bar."""
        self._show(run, record.round)

    def on_end(self, run: Run, result: Result) -> None:
        """Show the final figure, which is that of the table."""
        self._latest[run.name] = f", {result.summaries[0].accuracy.own.mean:.3g} on own data"
        self._show(run, run.rounds)

    def _show(self, run: Run, done: int) -> None:
        status = f"round {done} of {run.rounds}{self._latest.get(run.name, '')}"
        self._progress.update(self._bar, description=run.name, completed=run.share, status=status)
