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
    """Begin a run's account of memory: what earlier runs freed is not held by this one."""
    _glibc("malloc_trim", 0)
    again(device)


def again(device: torch.device) -> None:
    """Begin anew to find the most, where the system lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # Where that is refused, the peak is that of the process, which may have done other runs before.
    with suppress(OSError):
        RESET.write_text("5", encoding="ascii")


def bound(device: torch.device, gibibytes: float) -> None:
    """Keep what this process reserves on a CUDA device within a bound; 0 takes it away.

    What is asked for beyond it is an error of memory, as if the device were that small. CUDA's own
    half gibibyte, or what it is, is not counted.
    """
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        share = min(1.0, gibibytes * 2**30 / whole) if gibibytes else 1.0
        # This function wants a number, and a run's device is the current one.
        torch.cuda.set_per_process_memory_fraction(share, torch.cuda.current_device())


def peak(device: torch.device) -> dict[str, float]:
    """Return the most bytes since `watch` or `again`.

    They are "process" resident, "cuda" allocated, and "cuda reserved", with what was freed and is
    kept for the next step. Such memory of a process is resident too. It is that of this process:
    each of several has its own.
    """
    found = {}
    resident = _resident()
    if resident is not None:
        found["process"] = float(resident)
    if device.type == "cuda":
        found["cuda"] = float(torch.cuda.max_memory_allocated(device))
        found["cuda reserved"] = float(torch.cuda.max_memory_reserved(device))
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
