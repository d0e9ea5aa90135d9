"""The work behind a table: trainings that rows share, done one after another or side by side."""

import datetime
import hashlib
import json
import multiprocessing
import platform
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import torch

from masquerade import __version__
from masquerade.config import toml
from masquerade.config.settings import Config
from masquerade.errors import MasqueradeError
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
    """One training, and the runs that it is the training of, each with the file of its result."""

    table: str
    runs: tuple[tuple[Run, Path], ...]
    config: Config
    folder: Path
    """Where it commits its rounds until it is done."""
    beside: int
    """How many trainings are done at a time."""
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
        digest = hashlib.sha256(repr(meaning(config)).encode()).hexdigest()[:12]
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
        _write(path, RowRecord(job.table, run.row, facts, summary, settings(run.config)))
        if not job.quiet:
            own = summary.accuracy.own.mean
            _say(f"{run.name}: {own:.2f} on own data, {facts.wall_seconds:.0f} s, {path}")
    atomic.remove(job.folder)


@dataclass(frozen=True)
class Told(Callback):
    """Says what a job has reached, on standard error."""

    job: str

    def on_evaluation(self, run: Started, record: EvaluationRecord) -> None:
        """Say it."""
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


def _write(path: Path, record: RowRecord) -> None:
    """Write a result, and before it what clients reached: what has a result is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw.write(path, record.result)
    atomic.write_file(path, f"{json.dumps(record.to_json(), indent=1)}\n".encode())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def perform_all(jobs: Sequence[Job], at_a_time: int) -> None:
    """Do jobs; side by side, one that fails does not stop the others."""
    if at_a_time == 1 or len(jobs) < 2:
        for job in jobs:
            perform(job)
        return
    # A process that has met CUDA cannot be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(at_a_time, len(jobs)), context, _leave_stops_to_parent) as pool:
        begun = {pool.submit(_attempt, job): job for job in jobs}
        try:
            faults = [(begun[done].name, *done.result()) for done in as_completed(begun)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
    failed = [(name, code, text) for name, code, text in faults if code]
    if failed:
        texts = "; ".join(dict.fromkeys(text for _, _, text in failed))
        which = "; ".join(name for name, _, _ in failed)
        again = "What is done is kept, and the same command tries these again"
        text = f"{len(failed)} of {len(jobs)} trainings failed ({which}): {texts}. {again}."
        raise MasqueradeError(failed[0][1], text)


def _leave_stops_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _attempt(job: Job) -> tuple[str, str]:
    """Do a job in a process of its own; return the code and the text of what went wrong."""
    try:
        perform(job)
    except MasqueradeError as error:
        return error.code, str(error).removeprefix(f"{error.code} ")
    except Exception as error:
        return "E100", f"{type(error).__name__}: {error}"
    return "", ""
