"""Trainings one after another, or side by side in processes of their own."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Protocol, TypeVar

from masquerade.errors import MasqueradeError


class Named(Protocol):
    """A job with a name, for errors."""

    @property
    def name(self) -> str:
        """Return its name."""


Job = TypeVar("Job", bound=Named)


def perform_all(perform: Callable[[Job], None], jobs: Sequence[Job], at_a_time: int) -> None:
    """Do jobs; side by side, one that fails does not stop the others."""
    if at_a_time == 1 or len(jobs) < 2:
        for job in jobs:
            perform(job)
        return
    # A process that has met CUDA cannot be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(at_a_time, len(jobs)), context, _leave_stops_to_parent) as pool:
        begun = {pool.submit(_attempt, perform, job): job for job in jobs}
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


def _attempt(perform: Callable[[Job], None], job: Job) -> tuple[str, str]:
    """Do a job in a process of its own; return the code and the text of what went wrong."""
    try:
        perform(job)
    except MasqueradeError as error:
        return error.code, str(error).removeprefix(f"{error.code} ")
    except Exception as error:
        return "E100", f"{type(error).__name__}: {error}"
    return "", ""
