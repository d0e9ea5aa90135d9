"""What a round of very many clients would need: measured on few, counted for many.

    python bench/plan.py            # a minute; the tables of docs/scale.md
    python bench/plan.py --quick    # small numbers, to see that it runs

Measured are bytes and seconds per client, for a network of a million parameters. All else is
arithmetic: so many clients, so many bytes.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from scaling import CLASSES, FEATURES, METHODS, Point, federation

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Method, Task
from masquerade.core.tree import leaves
from masquerade.engine.base import astuple
from masquerade.models import MLP
from masquerade.simulation.build import simulating

SAMPLED, REGISTERED = 10_000, 1_000_000
"""The clients of a round, and all of them."""
LINE = 10e9 / 8
"""Bytes per second of a network of 10 Gbit/s."""


@dataclass(frozen=True)
class Needs:
    """What one client needs of a server, per round."""

    parameters: int
    down: float
    up: float
    gathered: float
    """Bytes that a rank gets of a client which another one trained."""
    state: float
    """Bytes that the simulator keeps of a client between rounds."""
    seconds: float
    """Of one core, to aggregate its upload."""


def measure(method: Method, parameters: int, cohort: int) -> Needs:
    """Do a round, and aggregate its uploads a few times."""
    torch.manual_seed(0)
    hidden = Point("", cohort, parameters, cohort).hidden()
    spec = TrainingSpec(
        method=method,
        task=Task(MLP(FEATURES, (hidden, hidden), CLASSES)),
        federation=federation(cohort),
        train=Train("", 1000, 10),
        evaluate=Evaluate(every=0),
        compute=Compute(engine="loop", device="cpu"),
        seed=1,
        views=method.views[:1],
    )
    with simulating(spec) as made:
        state, server = made.begin(), made.server
        # Initial weights go over as a seed: the second round is like all others.
        made.advance(state)
        turn = server.choose(state)
        job = server.make_job(state, turn.asked, turn.round)
        done = made.engine.work(job)
        members = server.cohort(turn.asked, cohort)
        spent = []
        for _ in range(5):
            begun = time.process_time()
            method.aggregate(server.task, state.server, job.rows, done.uploads, members, turn.round)
            spent.append(time.process_time() - begun)
        costs = astuple(done.traffic), astuple(done.flops)
        kept = state.rows.state, state.clients.state, state.session
        return Needs(
            server.task.parameters,
            float(done.traffic.down.mean()),
            float(done.traffic.up.mean()),
            size([done.uploads, done.clients, done.session, costs]) / cohort,
            size(kept) / cohort,
            statistics.median(spent) / cohort,
        )


def size(state: object) -> int:
    """Count the bytes of a state."""
    return sum(value.numel() * value.element_size() for value in leaves(state))


def rows(name: str, found: Needs) -> tuple[str, str]:
    """Return the lines of both tables: what was measured, and what it comes to."""
    per = found.parameters
    one = (
        f"| {name} | {found.down / per:.2f} | {found.up / per:.2f} | {found.gathered / per:.2f} "
        f"| {found.state / per:.2f} | {1000 * found.seconds:.2f} |"
    )
    line = SAMPLED * (found.down + found.up)
    all_of_them = (
        f"| {name} | {line / 1e9:.0f} | {line / LINE:.0f} | {SAMPLED * found.seconds:.0f} "
        f"| {SAMPLED * found.gathered / 1e9:.0f} | {REGISTERED * found.state / 1e12:.2f} |"
    )
    return one, all_of_them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    parameters, cohort = (10_000, 4) if given.quick else (1_000_000, 16)
    found = {name: measure(method, parameters, cohort) for name, method in METHODS.items()}
    both = [rows(name, each) for name, each in found.items()]
    exactly = next(iter(found.values())).parameters
    print(f"Measured per client, {exactly:,} parameters, {cohort} clients, {torch.__version__}:\n")
    print("| method | down | up | gathered | kept | aggregation, ms |\n|---|--:|--:|--:|--:|--:|")
    print("\n".join(one for one, _ in both))
    print(f"\n{SAMPLED:,} clients in a round, of {REGISTERED:,}:\n")
    print("| method | GB sent | s at 10 Gbit/s | s of aggregation | GB gathered | TB kept |")
    print("|---|--:|--:|--:|--:|--:|")
    print("\n".join(many for _, many in both))


if __name__ == "__main__":
    main()
