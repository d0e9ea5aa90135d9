"""Time a bundle's models side by side, on one thread, in one run; needs no torch."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from masquerade.export.predict import DENSE, MASKED, MODEL, Array, Bundle, outputs, start, usable

FORMS = {"dense": DENSE, "masked": MASKED, "sliced": MODEL}
"""What a bundle can hold, by the name of the file."""
BATCHES = (1, 64)
COUNTER = Path("/sys/class/powercap/intel-rapl:0")
"""Where Linux counts the energy of the processor, in microjoules."""

MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from masquerade.export.predict import open_bundle, runtime, start

def peak():
    # On Linux the usual counter begins with what the parent process had.
    if not sys.platform.startswith("linux"):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

bundle = open_bundle(Path(sys.argv[1]))
model = bundle.file(sys.argv[2])
runtime()
before = peak()
session = start(model)
(given,) = session.get_inputs()
session.run(None, {given.name: np.zeros((1, *bundle.shape), bundle.type)})
print(peak() - before)
"""


@dataclass(frozen=True)
class Figures:
    """What one form of a model costs."""

    bytes: int
    seconds: dict[int, float]
    """Median seconds of a call, by the number of samples."""
    memory: int
    """Bytes by which loading and using it raises the peak of a fresh process."""
    joules: float | None
    """Energy of one answer, where the machine counts it."""


def measure(bundle: Bundle, repeats: int = 200, memory: bool = True) -> dict[str, Figures]:
    """Measure every form of a model that a bundle holds: interleaved calls, medians."""
    models = {
        form: bundle.file(name) for form, name in FORMS.items() if name in bundle.manifest["files"]
    }
    sessions = {}
    for form, data in models.items():
        with usable(bundle, FORMS[form]):
            sessions[form] = start(data)
    seconds: dict[str, dict[int, float]] = {form: {} for form in models}
    for size in BATCHES:
        x = _inputs(bundle, size)
        # Fewer calls of the larger batch take about as long.
        found = interleaved(
            {form: _call(session, x) for form, session in sessions.items()},
            max(10, repeats // size**0.5),
        )
        for form, times in found.items():
            seconds[form][size] = median(times)
    single = _inputs(bundle, 1)
    return {
        form: Figures(
            len(models[form]),
            seconds[form],
            _memory(bundle, FORMS[form]) if memory else 0,
            energy(_call(session, single), repeats),
        )
        for form, session in sessions.items()
    }


def interleaved(calls: dict[str, Callable[[], Any]], repeats: float) -> dict[str, list[float]]:
    """Time functions in turn, so that what slows the machine down slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(int(repeats) + 3):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            # The first calls warm caches up.
            if turn >= 3:
                times[name].append(time.perf_counter() - begun)
    return times


def energy(call: Callable[[], Any], repeats: int, counter: Path = COUNTER) -> float | None:
    """Return the joules of one call by the processor's counter; None where it cannot be read."""
    try:
        limit = int((counter / "max_energy_range_uj").read_text())
        before = int((counter / "energy_uj").read_text())
        for _ in range(repeats):
            call()
        after = int((counter / "energy_uj").read_text())
    except (OSError, ValueError):
        return None
    return (after - before) % limit / 1e6 / repeats


def _call(session: Any, x: Array) -> Callable[[], Any]:
    return lambda: outputs(session, x)


def _inputs(bundle: Bundle, samples: int) -> Array:
    """Return some inputs, the same in every run; what they are does not change the time."""
    numbers = np.random.default_rng(1).random((samples, *bundle.shape))
    return (numbers * 2).astype(bundle.type)


def _memory(bundle: Bundle, name: str) -> int:
    """Load a model in a process of its own; return by how many bytes its peak rises."""
    command = [sys.executable, "-c", MEMORY, str(bundle.path), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(done.stdout)
