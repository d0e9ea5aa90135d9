"""Fuzzing by a seeded mutator: bytes that are nearly right, and a watch over what reads them."""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from masquerade.errors import MasqueradeError

ROOT = Path(__file__).parents[1]
PIECES = ROOT / "out" / "drills"
"""Where long drills keep what they have done."""
SECONDS = 1500
"""After which a drill begins nothing more: it may take half an hour."""
GIB = 1 << 30
ROOM = 2 * GIB
"""Address space that a reader may take beside what its process has."""
LONGEST = 1.0
"""Seconds of CPU that any input may take."""
PATIENCE = 30
"""Seconds that one input may take at most, on a machine that has other things to do."""
SPLICED = (b"\0", b"\xff", b"\xff" * 4, b"\xff\xff\xff\x7f", b"0" * 9, b"[" * 99, b"-1", b"NaN")


def mutated(data: bytes, choices: random.Random, start: int = 0) -> bytes:
    """Change, cut, double, drop or put in some bytes behind a place."""
    new = bytearray(data)
    for _ in range(choices.randint(1, 3)):
        at = choices.randrange(min(start, len(new)), len(new) + 1)
        match choices.randrange(8):
            case 0 | 1 | 2 if at < len(new):
                new[at] = choices.randrange(256)
            case 3 if at < len(new):
                new[at] ^= 1 << choices.randrange(8)
            case 4:
                del new[at : at + choices.randint(1, 8)]
            case 5:
                new[at:at] = new[at : at + choices.randint(1, 64)]
            case 6:
                new[at:at] = choices.choice(SPLICED)
            case _:
                # Seldom: what is cut off tells little.
                del new[at if choices.random() < 0.2 else len(new) :]
    return bytes(new)


@contextmanager
def watched() -> Iterator[None]:
    """Bound the memory that this process may ask for, from here on until the end."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def timed(read: Callable[[], str]) -> tuple[str, float]:
    """Return what came of reading an input, and the seconds of CPU; SIGALRM ends what hangs."""
    # Tests have such a timer of their own, which goes on afterwards.
    before = signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    # By its clock, a machine that has other things to do would be slow.
    began = time.process_time()
    try:
        found = read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
    return found, time.process_time() - began


def code_of(read: Callable[[], object], allowed: Collection[str]) -> str:
    """Read an input, or return the code of its refusal; whatever else is raised is a fault."""
    try:
        read()
    except MasqueradeError as error:
        if error.code not in allowed:
            raise
        return error.code
    return "read"


Found = tuple[Counter[str], float]
"""How often something came of an input, and the most seconds that one took."""


def tried(inputs: Iterator[Callable[[], str]]) -> Found:
    """Read inputs one after another."""
    outcomes: Counter[str] = Counter()
    longest = 0.0
    with watched():
        for each in inputs:
            found, seconds = timed(each)
            outcomes[found] += 1
            longest = max(longest, seconds)
    assert longest < LONGEST
    return outcomes, longest


def over_processes(name: str, task: Callable[[int], Found], seeds: range) -> Found:
    """Do a task for every seed, on all cores; what was done by an earlier call is not done again.

    After `SECONDS` no further seed is begun, and what was done so far is returned: another call
    goes on, of the same source. When all seeds are done, the next call begins anew.
    """
    folder = PIECES / f"{name}-{source()}"
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + SECONDS
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(_piece, folder, task, end), seeds))
    outcomes: Counter[str] = Counter()
    longest = 0.0
    pieces = sorted(folder.glob("*.json"))
    for piece in pieces:
        found, seconds = json.loads(piece.read_text())
        outcomes += Counter(found)
        longest = max(longest, seconds)
    if len(pieces) == len(seeds):
        shutil.rmtree(folder)
    return outcomes, longest


def _piece(folder: Path, task: Callable[[int], Found], end: float, seed: int) -> None:
    """Do a task for a seed, unless it is done or it is too late."""
    path = folder / f"{seed}.json"
    if not path.exists() and time.monotonic() < end:
        text = json.dumps(task(seed))
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").rename(path)


def source() -> str:
    """Return a digest of the library: of another one nothing is done yet."""
    files = sorted((ROOT / "src").rglob("*.py"))
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:12]
