"""What a process keeps, and the most memory that a run held: of its process, of the CUDA device."""

import ctypes
import re
import sys
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_KEPT = 1 << 30


def keep_freed() -> None:
    """Let this process use freed memory again instead of giving it back, up to a gibibyte.

    Every step frees and takes megabytes. What was given back comes as pages that have to be cleared
    first, which cost a Ditto step of a CNN a twentieth. Without glibc nothing is done.
    """
    # Older versions take no more than 32 MiB, and setting the second alone would do harm.
    if any(_glibc("mallopt", _MMAP_THRESHOLD, most) for most in (_KEPT, 32 << 20)):
        _glibc("mallopt", _TRIM_THRESHOLD, _KEPT)


def _glibc(name: str, *arguments: int) -> bool:
    """Call a function of the C library, where there is one; tell whether it did what was asked."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    return function is not None and bool(function(*arguments))


def watch(device: torch.device) -> None:
    """Begin anew to find the most, where the system lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # What earlier runs freed is not held by this one.
    _glibc("malloc_trim", 0)
    # Where that is refused, the peak is that of the process, which may have done other runs before.
    with suppress(OSError):
        RESET.write_text("5", encoding="ascii")


def peak(device: torch.device) -> dict[str, float]:
    """Return the most bytes since `watch`: "process" resident, "cuda" allocated.

    What was freed since then and is kept for the next step is resident too.
    Processes of the loop's workers are not in it.
    """
    found = {}
    resident = _resident()
    if resident is not None:
        found["process"] = float(resident)
    if device.type == "cuda":
        found["cuda"] = float(torch.cuda.max_memory_allocated(device))
    return found


def most(left: dict[str, float], right: dict[str, float]) -> dict[str, float]:
    """Return the larger of two peaks, kind by kind: a run may be done in several sittings."""
    return {kind: max(left.get(kind, 0.0), right.get(kind, 0.0)) for kind in left | right}


def _resident() -> int | None:
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", _STATUS.read_text(encoding="ascii"))
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024
