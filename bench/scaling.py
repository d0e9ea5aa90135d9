"""What growth costs: time and memory against clients, parameters and the size of a cohort.

    python bench/scaling.py                  # measure on the CPU, then write the page
    python bench/scaling.py --device cuda    # measure on a GPU; needs torch and safetensors alone
    python bench/scaling.py --page           # only write the page, from what was measured before
    python bench/scaling.py --quick          # small numbers, to see that it runs

Along an axis one number grows and all others stay. Every point has a process of its own, so that
its peak of memory is its own. What is measured is saved beside the page, one file per device.
"""

import argparse
import contextlib
import datetime
import json
import math
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Method, Task
from masquerade.core.tree import leaves
from masquerade.data import Federation
from masquerade.evaluation.evaluate import Evaluator
from masquerade.methods import DMPFL, FedAvg
from masquerade.models import MLP
from masquerade.results.json_records import to_json
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.state import RunState
from masquerade.storage.run_directory import RunDirectory

Record = dict[str, Any]

ROOT = Path(__file__).parents[1]
FEATURES, CLASSES = 64, 10
TRAIN, TEST, BATCH, EPOCHS = 20, 10, 10, 2
"""Samples of a client, and how it trains: four steps a round."""
STORE = "disk"
"""Where clients' states lie."""
ROUNDS = 1000
"""As many as a run would have; a few of them are done."""
LEAST, MOST, SECONDS = 3, 20, 2.0
"""How many rounds are timed: until so many seconds have passed, within these bounds."""

METHODS: dict[str, Method] = {
    "FedAvg": FedAvg(local_epochs=EPOCHS, lr=0.01),
    # The dearest kind of round, every time: states are read, masks readjusted and sent, both kept.
    # The first layer is masked too, or small networks would be nearly dense and large ones not.
    "DM-PFL": DMPFL(
        local_epochs=EPOCHS, lr=0.01, phases=(1.0, 0.0, 0.0), readjust_every=1, first_dense=False
    ),
}


@dataclass(frozen=True)
class Point:
    """What is measured: a method, and the three numbers that grow."""

    method: str
    clients: int
    parameters: int
    cohort: int

    def hidden(self) -> int:
        """Return the units of both hidden layers, so that there are about so many parameters."""
        linear = FEATURES + CLASSES + 2
        return round((math.sqrt(linear**2 + 4 * (self.parameters - CLASSES)) - linear) / 2)


@dataclass(frozen=True)
class Axis:
    """A number that grows, and what stays."""

    name: str
    values: tuple[int, ...]
    fixed: dict[str, int]

    def points(self, method: str) -> list[Point]:
        """Return the points of a method, smallest first."""
        return [Point(method, **self.fixed | {self.name: value}) for value in self.values]


AXES = (
    Axis("clients", (10, 100, 1000, 10_000, 100_000), {"parameters": 10_000, "cohort": 10}),
    Axis("parameters", (10_000, 100_000, 1_000_000, 10_000_000), {"clients": 10, "cohort": 10}),
    Axis("cohort", (10, 32, 100, 320, 1000), {"clients": 1000, "parameters": 10_000}),
)
QUICK = (
    Axis("clients", (10, 20), {"parameters": 1000, "cohort": 10}),
    Axis("parameters", (1000, 100_000), {"clients": 10, "cohort": 10}),
    Axis("cohort", (10, 20), {"clients": 20, "parameters": 1000}),
)


def federation(clients: int) -> Federation:
    """Return clients of equal size, on random data."""
    generator = torch.Generator().manual_seed(0)
    count = clients * (TRAIN + TEST)
    x = torch.randn(count, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (count,), generator=generator)
    table = torch.arange(count).reshape(clients, TRAIN + TEST)
    train, test = table[:, :TRAIN].unbind(), table[:, TRAIN:].unbind()
    nobody = tuple(torch.arange(0) for _ in range(clients))
    return Federation("random", x, y, CLASSES, train, nobody, test)


class Watch:
    """A process that is measured: seconds of what it does, and the most memory it ever held."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.seconds: dict[str, float] = {}
        self.memory = {"before": _resident()}

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Note how long something takes until the device has done it, and the peak after it."""
        begun = self._now()
        yield
        self.seconds[what] = self._now() - begun
        self.memory[what] = _resident()
        if self.cuda:
            self.memory[f"{what} on the GPU"] = torch.cuda.max_memory_allocated()

    def _now(self) -> float:
        if not self.cuda:
            # One thread does the work, and what others do on the machine is not its cost.
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def rounds(self, go: Callable[[], object], seconds: float) -> None:
        """Note the median of several rounds."""
        spent: list[float] = []
        while len(spent) < LEAST or (len(spent) < MOST and sum(spent) < seconds):
            with self.timed("round"):
                go()
            spent.append(self.seconds["round"])
        self.seconds["round"] = statistics.median(spent)


def _resident() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def measure(point: Point, device: str, seconds: float) -> Record:
    """Measure a point, its rounds for some seconds, in a process that has done nothing else."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    watch, method, hidden = Watch(device), METHODS[point.method], point.hidden()
    with contextlib.ExitStack() as stack:
        with watch.timed("build"):
            task = Task(MLP(FEATURES, (hidden, hidden), CLASSES))
            simulation = stack.enter_context(
                simulating(
                    TrainingSpec(
                        method=method,
                        task=task,
                        federation=federation(point.clients),
                        train=Train("", ROUNDS, BATCH, clients_per_round=point.cohort),
                        # Under shift, test sets are drawn of pairs of clients.
                        evaluate=Evaluate(every=0, degrees=(0,)),
                        compute=Compute(device=device, store=STORE),
                        seed=1,
                        views=method.views[:1],
                    )
                )
            )
            progress = simulation.begin()
        with watch.timed("first round"):
            simulation.advance(progress)
        watch.rounds(lambda: simulation.advance(progress), seconds)
        with watch.timed("evaluation"):
            Evaluator.of(simulation).on_own_data(progress)
        disk = committed(simulation, progress, watch)
        return asdict(point) | {
            "exactly": task.parameters,
            "engine": simulation.engine.name,
            "seconds": watch.seconds,
            "memory": watch.memory,
            "disk": disk,
            "states": point.clients * _bytes(progress.clients.one(0)),
            "data": _bytes([simulation.federation.x, simulation.federation.y]),
        }


def committed(simulation: Simulation, progress: RunState, watch: Watch) -> int:
    """Commit as a run does, then a round later again; return the bytes of the second on the disk.

    The first has the clients of all rounds so far.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with RunDirectory.create(run, "") as directory:
            _commit(directory, progress)
            simulation.advance(progress)
            with watch.timed("commit"):
                _commit(directory, progress)
        number = f"{progress.number:08d}"
        files = [*(run / "rounds" / number).iterdir(), *(run / "states").glob(f"{number}-*")]
        return sum(file.stat().st_size for file in files)


def _commit(directory: RunDirectory, progress: RunState) -> None:
    snapshot = progress.snapshot()
    tensors, *pieces = snapshot.fetch()
    facts = to_json(progress.facts())
    directory.commit(progress.number, tensors, facts, (), pieces, snapshot.whole)


def _bytes(state: Any) -> int:
    return sum(value.numel() * value.element_size() for value in leaves(state))


def alone(point: Point, device: str, seconds: float) -> Record:
    """Measure a point in a process of its own: forked, because importing torch takes longer."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=lambda: theirs.send(measure(point, device, seconds)))
    child.start()
    theirs.close()
    try:
        found: Record = ours.recv()
    except EOFError:
        child.join()
        raise SystemExit(f"{point} failed: exit status {child.exitcode}") from None
    child.join()
    return found


def measured(axes: tuple[Axis, ...], device: str, seconds: float) -> Record:
    """Measure all points of some axes; return them with what they were measured on."""
    # Asked in this way, whether there is a GPU does not keep forked processes from using it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    points = []
    for point in dict.fromkeys(p for axis in axes for name in METHODS for p in axis.points(name)):
        begun = time.perf_counter()
        points.append(alone(point, device, seconds))
        spent, took = points[-1]["seconds"]["round"], time.perf_counter() - begun
        print(f"{point}: {1000 * spent:.1f} ms a round, measured in {took:.1f} s", flush=True)
    return {
        "place": {"cpu": "CPU", "cuda": "GPU"}[device],
        "device": _named(device),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "command": f"python bench/scaling.py --device {device}",
        "store": STORE,
        "work": {"train": TRAIN, "test": TEST, "batch": BATCH, "epochs": EPOCHS},
        "axes": [asdict(axis) for axis in axes],
        "points": points,
    }


def _named(device: str) -> str:
    if device == "cuda":
        # In another process: this one must not meet the GPU before it forks.
        code = "import torch; print(torch.cuda.get_device_name())"
        return subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    return f"CPU ({platform.machine()}, one thread)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="small numbers, kept under out/quick")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--out", type=Path, help="the page")
    given = parser.parse_args()
    page = given.out or ROOT / ("out/quick" if given.quick else "docs/results") / "scaling.md"
    saved = page.with_suffix("")
    if not given.page:
        axes, seconds = (QUICK, 0.0) if given.quick else (AXES, SECONDS)
        found = measured(axes, given.device, seconds)
        saved.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, indent=1) + "\n"
        (saved / f"{given.device}.json").write_text(text, encoding="utf-8")
    if given.page or given.device == "cpu":
        from scaling_page import write

        write(page)


if __name__ == "__main__":
    main()
