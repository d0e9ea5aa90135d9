"""Do several processes compute what one does, and how much sooner?

    torchrun --nproc-per-node 2 bench/ranks.py                  # CPU, gloo or shared memory
    torchrun --nproc-per-node 2 bench/ranks.py --device cuda    # one card: gloo; two: NCCL
    torchrun --nproc-per-node 1 bench/ranks.py --device cuda    # NCCL with one rank
    python bench/ranks.py --speed                               # S2 in one and in two processes
    python bench/ranks.py --speed --quick                       # tiny, to see that it runs

Every rank does a whole run alone first, and then its share of it. A line per method and engine says
how far apart they are; exit status 1 where that is more than rounding, or on a CPU's loop a bit.

S2 is the protocol of `bench/peers`, on CIFAR-10 from the cache: rounds of one process and of two,
each a command of its own, in turn. The speed-up is the median over repetitions of their ratio; exit
status 1 where it is below 1.6. It takes four minutes on two quiet cores.

Each writes its part of docs/results/ranks.md.
"""

import argparse
import os
import platform
import runpy
import shlex
import statistics
import sys
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

# Runs from a checkout on a machine where nothing can be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Method, Task
from masquerade.data import Federation
from masquerade.engine.precision import numbers
from masquerade.engine.ranks import group
from masquerade.evaluation.evaluate import Evaluator
from masquerade.methods import DMPFL, Ditto, FedAvg, FedMask
from masquerade.models import MLP
from masquerade.simulation.build import Simulation, build, simulating
from masquerade.simulation.state import RunState

ROOT = Path(__file__).resolve().parents[1]
FEATURES, CLASSES, CLIENTS, COHORT, SAMPLES = 32, 10, 24, 16, 30
ROUNDS = 4
TOLERANCE = 1e-9
"""How far apart runs in double precision may be."""
METHODS: dict[str, Method] = {
    "FedAvg": FedAvg(local_epochs=2, lr=0.05),
    "Ditto": Ditto(local_epochs=1, personal_epochs=1, lr=0.05),
    "DM-PFL": DMPFL(local_epochs=2, lr=0.05),
    "FedMask": FedMask(local_epochs=1, lr=0.05),
}


def federation() -> Federation:
    """Clients of different sizes, on random data."""
    generator = torch.Generator().manual_seed(0)
    sizes = [SAMPLES + 7 * (id % 5) for id in range(CLIENTS)]
    x = torch.randn(sum(sizes), FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (sum(sizes),), generator=generator)
    own = torch.arange(sum(sizes)).split(sizes)
    train, test = zip(*((each[:-10], each[-10:]) for each in own), strict=True)
    nobody = tuple(torch.arange(0) for _ in range(CLIENTS))
    return Federation("random", x, y, CLASSES, tuple(train), nobody, tuple(test))


def spec(method: Method, engine: str, device: str) -> TrainingSpec:
    torch.manual_seed(0)
    return TrainingSpec(
        method=method,
        task=Task(MLP(FEATURES, (64,), CLASSES).double()),
        federation=federation(),
        train=Train("", ROUNDS, 10, clients_per_round=COHORT, drop=0.2),
        evaluate=Evaluate(every=0, degrees=(0, 50)),
        compute=Compute(engine=engine, device=device),
        seed=1,
        views=method.views[:1],
        names=((type(method).__name__, type(method).__name__),),
    )


def trained(made: Simulation) -> tuple[RunState, float]:
    """Do all rounds and the final evaluation: the state, and a figure."""
    state = made.begin()
    for _ in range(ROUNDS):
        made.advance(state)
    summaries, _ = Evaluator.of(made).final(state)
    return state, summaries[0].accuracy.own.mean


def apart(one: RunState, two: RunState) -> float:
    """Return how far two states are apart; digests of versions aside, which compare bits."""
    left, right = one.tensors(), two.tensors()
    pairs = [
        (left[name].double(), right[name].double())
        for name in left
        if not name.startswith("session/version/")
    ]
    return max((float((a - b).abs().max()) for a, b in pairs if a.numel()), default=0.0)


def check(name: str, engine: str, device: str, say: Callable[[str], None]) -> bool:
    """Compare a run that is divided with one that is not; tell whether they agree."""
    given = spec(METHODS[name], engine, device)
    ranks = group()
    with numbers(given.compute.precision):
        alone, figure = trained(build(given))
    with simulating(given) as made:
        state, other = trained(made)
        way = "NCCL" if made.ranks.cards else "gloo" if device == "cuda" else "CPU"
        used = made.engine.name
    far = apart(alone, state)
    good = far <= (0.0 if (engine, device) == ("loop", "cpu") else TOLERANCE) and figure == other
    good = all(each["good"] for each in ranks.tell({"good": good}))
    say(
        f"{'ok' if good else 'DIFFERENT'}: {name}, {used}, {ranks.count} ranks by {way}: "
        f"at most {far:.1e} apart, {figure:.2f} and {other:.2f} %"
    )
    return good


def agreement(device: str, say: Callable[[str], None]) -> bool:
    """Compare all methods on a device."""
    engines = ("batched",) if device == "cuda" else ("loop", "batched")
    found = [check(name, engine, device, say) for engine in engines for name in METHODS]
    say(f"{sum(found)} of {len(found)} agree")
    return all(found)


REPETITIONS, TIMED, LEAST = 3, 5, 1.6
"""Of S2: how often, how many rounds after the first, and the speed-up that two processes owe."""


def speed(quick: bool, data: str, say: Callable[[str], None]) -> bool:
    """Time S2 in one and in two processes."""
    folder = ROOT / "bench" / "peers"
    sys.path.insert(0, str(folder))
    peers: dict[str, Any] = runpy.run_path(str(folder / "__main__.py"), run_name="peers")
    protocol = peers["PROTOCOLS"]["s2"].sized(None if quick else TIMED, quick, data)
    runs = ["ours", "ours:2"]
    pythons = dict.fromkeys(["ours"], sys.executable)
    repetitions = 1 if quick else REPETITIONS
    found = peers["compare"](protocol, runs, pythons, repetitions, ("cpu", "float32"))
    one, two = ([report["seconds"] for report in found[run]] for run in runs)
    ratios = sorted(a / b for a, b in zip(one, two, strict=True))
    ratio = statistics.median(ratios)
    say(f"{protocol.title}")
    say(f"{protocol.rounds} rounds after {protocol.warm}, {repetitions} repetitions, {data} data")
    for count, seconds in ((1, one), (2, two)):
        told = ", ".join(f"{each:.3f}" for each in seconds)
        say(f"{count} process{'es' * (count > 1)}: {statistics.median(seconds):.3f} s ({told})")
    say(f"speed-up {ratio:.2f} × ({ratios[0]:.2f}–{ratios[-1]:.2f}); at least {LEAST} × is owed")
    return quick or ratio >= LEAST


PAGE = ROOT / "docs" / "results" / "ranks.md"
HEAD = """\
# Processes of a run

What `bench/ranks.py` printed, by what it ran on. How processes share a run: [scale](../scale.md).
"""


def write(page: Path, title: str, lines: list[str]) -> None:
    """Write one part of the page, and leave the others."""
    old = page.read_text(encoding="utf-8").split("\n## ")[1:] if page.is_file() else []
    parts = {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip() for part in old}
    parts[title] = "\n".join(["```", *lines, "```"])
    whole = [f"\n## {name}\n\n{text}\n" for name, text in sorted(parts.items())]
    page.write_text(HEAD + "".join(whole), encoding="utf-8")


def machine(device: str) -> str:
    """Say where this runs."""
    if device == "cuda":
        what = f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    else:
        what = f"{os.cpu_count()} cores ({platform.processor() or platform.machine()})"
        what += f", load average {os.getloadavg()[0]:.1f} at the start"
    return f"{date.today()}, {what}, torch {torch.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", choices=("real", "random"), default="real")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ranks, lines = group(), list[str]()

    def say(text: str) -> None:
        if ranks.first:
            lines.append(text)
            print(text, flush=True)

    if given.speed:
        start, title = "python", "S2 in one and in two processes"
    else:
        start = f"torchrun --nproc-per-node {ranks.count}"
        title = f"{given.device}, {ranks.count} rank{'s' * (ranks.count > 1)}"
    say(f"$ {start} {shlex.join(['bench/ranks.py', *sys.argv[1:]])}")
    say(machine(given.device))
    good = speed(given.quick, given.data, say) if given.speed else agreement(given.device, say)
    if ranks.first and not given.quick:
        write(given.page, title, lines)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
