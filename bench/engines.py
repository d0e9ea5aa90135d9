"""Client-steps per second: a bare PyTorch loop, our loop, it with masks, our batched engine.

    python bench/engines.py            # exit status 1 when a bar is missed
    python bench/engines.py --quick    # one repetition of each, to see that it runs

All in one run on one machine, whole rounds with aggregation, medians of interleaved repetitions.
The bare loop is what a careful user writes: an `nn.Module`, `torch.optim.SGD`, `zero_grad`, batches
indexed from a tensor in memory. Brackets hold the smallest and largest ratio over the repetitions:
with seven, that covers the median with 98 % confidence. A bar is missed when all of it lies beyond.
"""

import argparse
import copy
import sys
import time
from dataclasses import dataclass

import torch
from torch import nn

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Task
from masquerade.data import Federation
from masquerade.engine import select as auto
from masquerade.methods import DMPFL, FedAvg
from masquerade.models import MLP, CifarCNN
from masquerade.simulation.build import build

RATE = 0.03


@dataclass(frozen=True)
class Case:
    """A network, clients of equal size, and how far our loop may fall behind the bare one."""

    name: str
    shape: tuple[int, ...]
    clients: int
    samples: int
    batch: int
    rounds: int
    bar: float
    """Our loop takes at most this many times the bare loop's time."""
    batched_bar: float = 0.0
    """The batched engine is at least this many times as fast as the bare loop."""

    def network(self) -> nn.Module:
        """The network, the same every time."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if self.name.startswith("logistic"):
                return MLP(784, (), 10)
            hidden = 64 if "64" in self.name else 200
            return CifarCNN() if self.name.startswith("cnn") else MLP(784, (hidden,), 10)

    def federation(self) -> Federation:
        """Clients of equal size, on random data."""
        generator = torch.Generator().manual_seed(0)
        count = self.clients * self.samples
        x = torch.randn(count, *self.shape, generator=generator)
        y = torch.randint(0, 10, (count,), generator=generator)
        parts = torch.split(torch.arange(count), self.samples)
        return Federation("random", x, y, 10, tuple(parts), tuple(parts), tuple(parts))


CASES = [
    Case("logistic, 10 clients", (784,), 10, 60, 10, 20, 1.4),
    Case("logistic, 50 clients", (784,), 50, 60, 10, 4, 1.4, 3.0),
    Case("logistic, 4 clients", (784,), 4, 60, 10, 50, 1.4),
    Case("mlp 784-64-10, 10 clients", (784,), 10, 60, 10, 20, 1.15),
    Case("mlp 784-200-10, 10 clients", (784,), 10, 60, 10, 10, 1.15),
    Case("mlp 784-200-10, 50 clients", (784,), 50, 60, 10, 2, 1.15),
    Case("cnn 797,962, 10 clients", (3, 32, 32), 10, 60, 10, 1, 1.15),
]


def bare(case: Case, federation: Federation) -> float:
    """Seconds that a careful user's loop takes for the rounds of a case."""
    model = case.network()
    shared = copy.deepcopy(model.state_dict())
    x, y = federation.x, federation.y
    begun = time.perf_counter()
    for _ in range(case.rounds):
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for own in federation.train:
            model.load_state_dict(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            order = own[torch.randperm(len(own))]
            for first in range(0, len(order), case.batch):
                chosen = order[first : first + case.batch]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
                loss.backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                total[name] += value / len(federation.train)
        shared = total
    return time.perf_counter() - begun


class Ours:
    """One of our engines on a case, warmed up."""

    def __init__(self, case: Case, federation: Federation, engine: str, method) -> None:
        self.rounds = case.rounds
        spec = TrainingSpec(
            method=method,
            task=Task(case.network()),
            federation=federation,
            train=Train("", 10_000, case.batch),
            evaluate=Evaluate(every=0),
            compute=Compute(engine=engine, threads=1),
            seed=1,
            views=("global",),
        )
        self.simulation = build(spec)
        self.progress = self.simulation.begin()
        self.simulation.advance(self.progress)

    def __call__(self) -> float:
        """Seconds that the rounds of the case take."""
        begun = time.perf_counter()
        for _ in range(self.rounds):
            self.simulation.advance(self.progress)
        return time.perf_counter() - begun


def ratio_text(ratios: list[float]) -> str:
    """Median and range of ratios."""
    middle = sorted(ratios)[len(ratios) // 2]
    return f"{middle:5.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    repetitions = 1 if options.quick else options.repetitions
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, {repetitions} repetitions; time over bare time")
    print(f"{'case':28} {'bare steps/s':>12}  {'loop':20} {'loop, masked':20} {'batched':20} auto")
    missed = []
    # FedAvg inside a mask over half of all weights: DM-PFL's global refine, round after round.
    masked = DMPFL(local_epochs=1, lr=RATE, phases=(0.0, 1.0, 0.0), first_dense=False)
    for case in CASES:
        federation = case.federation()
        runs = {
            "loop": Ours(case, federation, "loop", FedAvg(local_epochs=1, lr=RATE)),
            "masked": Ours(case, federation, "loop", masked),
            "batched": Ours(case, federation, "batched", FedAvg(local_epochs=1, lr=RATE)),
        }
        bare(case, federation)
        times: dict[str, list[float]] = {name: [] for name in ("bare", *runs)}
        for _ in range(repetitions):
            times["bare"].append(bare(case, federation))
            for name, one in runs.items():
                times[name].append(one())
        ratios = {
            name: [ours / theirs for ours, theirs in zip(times[name], times["bare"], strict=True)]
            for name in runs
        }
        steps = case.rounds * case.clients * -(-case.samples // case.batch)
        middle = sorted(times["bare"])[repetitions // 2]
        chosen = auto.choose(Task(case.network()), torch.device("cpu"), case.clients)
        print(
            f"{case.name:28} {steps / middle:12.0f}  {ratio_text(ratios['loop']):20} "
            f"{ratio_text(ratios['masked']):20} {ratio_text(ratios['batched']):20} {chosen}",
            flush=True,
        )
        if min(ratios["loop"]) > case.bar:
            missed.append(f"{case.name}: our loop takes more than {case.bar} × the bare loop")
        if case.batched_bar and min(ratios["batched"]) > 1 / case.batched_bar:
            missed.append(f"{case.name}: batched is less than {case.batched_bar} × the bare loop")
        other = "loop" if chosen == "batched" else "batched"
        against = [a / b for a, b in zip(times[chosen], times[other], strict=True)]
        if min(against) > 1.1:
            missed.append(f"{case.name}: auto chose {chosen}, {other} is more than 1.1 × faster")
    for line in missed:
        print("MISSED", line)
    print("all bars hold" if not missed else f"{len(missed)} bars missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
