"""Trainings one after another, or side by side in processes of their own."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Protocol, TypeVar

from masquerade.errors import MasqueradeError


class Named(Protocol):
    """A job with a name, for errors."""

    @property
    def name(self) -> str:
        """Return its name."""


Job = TypeVar("Job", bound=Named)


def perform_all(perform: Callable[[Job], None], jobs: Iterable[Job | None], at_a_time: int) -> None:
    """Do jobs; side by side, one that fails does not stop the others.

    The next one is asked for where there is room for it. None waits until another one has ended,
    and is the end where none is being done.
    """
    if at_a_time == 1:
        for job in jobs:
            if job is None:
                break
            perform(job)
        return
    source = iter(jobs)
    running: dict[Future[tuple[str, str]], Job] = {}
    faults: list[tuple[str, str, str]] = []
    # A process that has met CUDA cannot be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_a_time, context, _leave_stops_to_parent) as pool:
        try:
            while True:
                for job in islice(source, at_a_time - len(running)):
                    if job is None:
                        break
                    running[pool.submit(_attempt, perform, job)] = job
                if not running:
                    break
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                faults += [(running.pop(each).name, *each.result()) for each in done]
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
        text = f"{len(failed)} of {len(faults)} trainings failed ({which}): {texts}. {again}."
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
