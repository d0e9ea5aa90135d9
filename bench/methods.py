"""Time per round of every method over FedAvg's, beside the ratio of their operations.

    python bench/methods.py                    # on the CPU; writes its part of the page
    python bench/methods.py --device cuda      # on a GPU
    python bench/methods.py --only pfedgate    # some of them; writes no page

Ten clients of equal size train the same network on random images. A training is done twice: what is
recorded, captured or compiled in the first one serves the second, whose rounds are timed. So a
ratio is that of rounds and not of starts. Every method is timed in turns with FedAvg, and ratios
are medians over the turns. On a CPU the seconds are those of one core.

A method that costs what it computes has a quotient of one. Operations are those that the engine
ran; they count products and convolutions alone. Kernels are the operations that a round hands to
the device, counted where no step is replayed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# Runs from a checkout on a machine where nothing can be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Task
from masquerade.data import Federation
from masquerade.methods import METHODS
from masquerade.models import build
from masquerade.simulation.build import Simulation, simulating

PAGE = Path(__file__).resolve().parents[1] / "docs/results/methods.md"
CLIENTS = 10
REPEATS = 3
BAR = 1.5
"""The largest quotient of seconds over operations, for the methods of `HEAVY`."""
HEAVY = ("pfedgate", "fedselect", "pfedme", "fedem")


@dataclass(frozen=True)
class Size:
    """How large the problem of a device is."""

    network: str
    shape: tuple[int, int, int]
    batch: int
    steps: int
    """In an epoch."""
    rounds: int
    precision: str


SIZES = {
    "cpu": Size("digits_cnn", (1, 8, 8), 10, 4, 4, "float32"),
    "cuda": Size("cifar_cnn", (3, 32, 32), 64, 8, 4, "tf32"),
}


@dataclass(frozen=True)
class Row:
    """What was measured of a method."""

    seconds: float
    """Of a round, on average over all kinds of rounds."""
    longer: float
    """The same over FedAvg's."""
    flops: float
    kernels: int
    engine: str
    eager: int
    """Steps that could not be captured."""


def federation(size: Size) -> Federation:
    """Return clients of equal size, on random images."""
    own = size.batch * size.steps
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(CLIENTS * 2 * own, *size.shape, generator=draw)
    y = torch.randint(0, 10, (len(x),), generator=draw)
    train, rest = torch.arange(len(x)).reshape(2, CLIENTS, own).unbind()
    # Some methods measure on validation data.
    validation, test = rest.split([own // 2, own - own // 2], 1)
    return Federation("random", x, y, 10, train.unbind(), validation.unbind(), test.unbind())


def trainings() -> dict[str, str]:
    """Name every training of the table once, by its first name."""
    found: dict[Any, str] = {}
    for name, entry in METHODS.items():
        found.setdefault((entry.method, entry.settings, entry.variant), name)
    return {name: METHODS[name].title for name in found.values()}


def specified(name: str, device: str, size: Size, replay: str = "auto") -> TrainingSpec:
    """Return the training of a method."""
    entry = METHODS[name]
    network = size.network + (f"_{entry.variant}" if entry.variant else "")
    return TrainingSpec(
        method=entry.method(**dict(entry.settings)),
        task=Task(build(network, size.shape, 10, 1)),
        federation=federation(size),
        train=Train("", size.rounds, size.batch),
        evaluate=Evaluate(every=0, degrees=(0,)),
        compute=Compute(device=device, engine="batched", precision=size.precision, replay=replay),
        seed=1,
        views=entry.method.views[:1],
    )


def measure(name: str, device: str, size: Size) -> Row:
    """Train in turns with FedAvg; then count the kernels of a round without replays."""
    spec = specified(name, device, size)
    with simulating(specified("fedavg", device, size)) as plain, simulating(spec) as made:
        turns = [
            (timed(made, device, size.rounds), timed(plain, device, size.rounds)[0])
            for _ in range(1 + REPEATS)
        ][1:]
        engine = made.engine.name
        eager = len(getattr(getattr(made.engine, "steps", None), "failed", ()))
    return Row(
        seconds=statistics.median(own for (own, _), _ in turns),
        longer=statistics.median(own / other for (own, _), other in turns),
        flops=turns[0][0][1],
        kernels=kernels(specified(name, device, size, "off"), device),
        engine=engine,
        eager=eager,
    )


def timed(made: Simulation, device: str, rounds: int) -> tuple[float, float]:
    """Train, and return the seconds and the operations of a round."""
    state = made.begin()
    # What clients do once, before their first round, is no part of a round.
    made.advance(state)
    begun = now(device)
    for _ in range(rounds - 1):
        made.advance(state)
    spent = now(device) - begun
    return spent / (rounds - 1), state.costs["train"]["executed"] / rounds


def kernels(spec: TrainingSpec, device: str) -> int:
    """Count the operations that a round hands to a device: the second, which is like most."""
    kind = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with simulating(spec) as made:
        state = made.begin()
        made.advance(state)
        with profile(activities=[kind]) as found:
            made.advance(state)
            if device == "cuda":
                torch.cuda.synchronize()
    return sum(each.count for each in found.key_averages())


def now(device: str) -> float:
    """Return seconds: of the clock once the device is done, or of one core."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def table(rows: dict[str, Row]) -> Iterator[str]:
    """Yield the lines of a table; the largest quotient first."""
    first, titles = rows["fedavg"], trainings()
    heads = ("Method", "ms per round", "over FedAvg's", "operations over FedAvg's", "quotient")
    yield f"| {' | '.join((*heads, KERNELS, 'engine'))} |"
    yield "|---" + "|--:" * 5 + "|---|"
    found = {n: (r.longer, r.flops / first.flops) for n, r in rows.items()}
    for name in sorted(rows, key=lambda each: -found[each][0] / found[each][1]):
        row, (longer, more) = rows[name], found[name]
        engine = row.engine + (f", {row.eager} steps eager" if row.eager else "")
        yield (
            f"| {titles[name]} | {1e3 * row.seconds:.1f} | {longer:.2f} | {more:.2f} "
            f"| {longer / more:.2f} | {row.kernels / first.kernels:.2f} | {engine} |"
        )


def missed(rows: dict[str, Row]) -> list[str]:
    """Name the heavy methods whose time grows more than the bar allows."""
    first = rows["fedavg"]
    return [
        name
        for name in HEAVY
        if name in rows and rows[name].longer > BAR * rows[name].flops / first.flops
    ]


def section(device: str, size: Size, rows: dict[str, Row]) -> str:
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU, one thread"
    late = missed(rows)
    said = f"Missed by {', '.join(late)}." if late else "It holds."
    return "\n".join(
        [
            f"`python bench/methods.py --device {device}`; torch {torch.__version__}, {where}, "
            f"{date.today()}.",
            "",
            f"`{size.network}`, {CLIENTS} clients, batch {size.batch}, {size.steps} steps an "
            f"epoch, {size.rounds} rounds, {size.precision}.",
            "",
            f"Bar for {', '.join(HEAVY)}: a quotient of at most {BAR:g}. {said}",
            "",
            *table(rows),
        ]
    )


KERNELS = "kernels over FedAvg's"
TITLES = {"cpu": "On a CPU", "cuda": "On a GPU"}


def write(page: Path, device: str, text: str) -> None:
    """Write one section of the page, and leave the other."""
    _, *old = page.read_text().split("\n## ") if page.is_file() else [""]
    sections = {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip() for part in old}
    sections[TITLES[device]] = text
    assert __doc__
    said = __doc__.split("\n\n", 2)[2].strip()
    whole = ["# What rounds of the methods cost", "", said]
    for title in TITLES.values():
        if title in sections:
            whole += ["", f"## {title}", "", sections[title]]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(whole) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=tuple(SIZES), default="cpu")
    parser.add_argument("--only", nargs="+", choices=tuple(trainings()))
    parser.add_argument("--page", type=Path, help="the page; by default of a whole run alone")
    parser.add_argument("--raw", type=Path, help="a file for what was measured, as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    size = SIZES[given.device]
    names = list(dict.fromkeys(["fedavg", *(given.only or trainings())]))
    rows = {}
    for name in names:
        rows[name] = measure(name, given.device, size)
        print(name, vars(rows[name]), flush=True)
        if given.raw:
            raw = {name: vars(row) for name, row in rows.items()}
            given.raw.write_text(json.dumps(raw) + "\n")
    text = section(given.device, size, rows)
    print(text)
    page = given.page or (None if given.only else PAGE)
    if page:
        write(page, given.device, text)
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
