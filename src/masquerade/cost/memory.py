"""The most memory that a run held: of its process, and of the CUDA device."""

import re
import sys
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def watch(device: torch.device) -> None:
    """Begin anew to look for the most, where the system lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # Where that is refused, the peak is that of the process, which may have done other runs before.
    with suppress(OSError):
        _RESET.write_text("5", encoding="ascii")


def peak(device: torch.device) -> dict[str, float]:
    """Return the most bytes since `watch`: "process" resident, "cuda" allocated.

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
