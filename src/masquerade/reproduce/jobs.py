"""The work behind a table: trainings that rows share."""

import datetime
import hashlib
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import torch

from masquerade import __version__
from masquerade.config import toml
from masquerade.config.settings import Config
from masquerade.experiments import run as experiment
from masquerade.experiments.callbacks import Callback
from masquerade.experiments.callbacks import Run as Started
from masquerade.reproduce import raw
from masquerade.reproduce.record import Circumstances, RowRecord
from masquerade.reproduce.table import Run, Table, meaning, settings
from masquerade.results import EvaluationRecord
from masquerade.storage import atomic


@dataclass(frozen=True)
class Job:
    """One training, and the runs that share it, each with the file of its result."""

    table: str
    runs: tuple[tuple[Run, Path], ...]
    config: Config
    folder: Path
    """Where it commits its rounds until it is done."""
    beside: int
    """How many trainings are run at a time."""
    quiet: bool

    @property
    def name(self) -> str:
        """Name the job in what is printed."""
        return ", ".join(run.name for run, _ in self.runs)


def group(table: Table, runs: Sequence[Run], root: Path, beside: int, quiet: bool) -> list[Job]:
    """Make one job of all runs that differ in nothing but the view that they are evaluated by."""
    shared: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        config, method = run.config, toml.method_of(run.method, run.config)
        key = (config.data, config.train, config.evaluate, config.compute, method)
        shared.setdefault(key, []).append(run)
    found = []
    for together in shared.values():
        names = tuple(dict.fromkeys(run.method for run in together))
        config = replace(together[0].config, methods=names)
        own = toml.plain(toml.method_of(names[0], config))
        config = replace(config, method=dict.fromkeys(names, own))
        # Other settings have another folder, so that what is resumed is what is wanted.
        wanted = (*meaning(config), config.evaluate.prior)
        digest = hashlib.sha256(repr(wanted).encode()).hexdigest()[:12]
        folder = root / "out" / "reproduce" / f"{table.results.name}-{names[0]}-{digest}"
        files = tuple((run, table.path(run)) for run in together)
        found.append(Job(table.name, files, config, folder, beside, quiet))
    return found


def perform(job: Job) -> None:
    """Do a job, from where it was interrupted if it was; write its results, and clear away."""
    began = time.monotonic()
    told = [] if job.quiet else [Told(job.name)]
    summaries = experiment.start(job.config, job.folder, told, models=False, begun=True)
    made = toml.load(job.folder / "config.toml")
    facts = _circumstances(made, job.beside, round(time.monotonic() - began, 1))
    by_method = {summary.method: summary for summary in summaries}
    for run, path in job.runs:
        summary = by_method[run.method]
        if run.is_try:
            summary = raw.of_try(summary)
        write(path, RowRecord(job.table, run.row, facts, summary, settings(run.config)))
        if not job.quiet:
            own = summary.accuracy.own.mean
            _say(f"{run.name}: {own:.2f} on own data, {facts.wall_seconds:.0f} s, {path}")
    atomic.remove(job.folder)


@dataclass(frozen=True)
class Told(Callback):
    """Prints what a job has reached, on standard error."""

    job: str

    def on_evaluation(self, run: Started, record: EvaluationRecord) -> None:
        """Print the figure on own data."""
        own = ", ".join(f"{each.mean:.1f}" for each in record.views.values())
        of = f"round {record.round} of {run.rounds}"
        _say(f"{self.job}: {of}{own and ', on own data ' + own}")


def _circumstances(config: Config, at_a_time: int, seconds: float) -> Circumstances:
    """Say when, with what and on what a training was done."""
    cuda = config.compute.device == "cuda"
    return Circumstances(
        date=datetime.date.today().isoformat(),
        masquerade=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=numpy.__version__,
        device=torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})",
        compute=toml.plain(config.compute),
        at_a_time=at_a_time,
        wall_seconds=seconds,
    )


def write(path: Path, record: RowRecord) -> None:
    """Write a result, and before it what clients reached: what has a result is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw.write(path, record.result)
    atomic.write_file(path, record.text().encode())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
