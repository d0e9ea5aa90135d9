"""Hold the batched engine on CUDA against the loop on a CPU, for every method.

    python bench/cuda_check.py          # needs torch and numpy alone; exit status 1 on a difference
    python bench/cuda_check.py --cpu    # the same with batched on the CPU, where there is no GPU

In float64 numbers agree to 1e-9 after eight rounds, and masks are equal. In float32, after a round
of one epoch, numbers agree to 1e-4 of their size and at most one mask bit in ten thousand differs
(ties in a top-k may flip). Two runs on CUDA agree bit for bit.

Where float32 numbers differ by more, the loop is held against itself on data that differ in their
last bits. What the loop then shows as well is a tie of this problem, such as two equal entries of a
pool under FedMask's ±1 weights, and no difference of engines.
"""

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

# Runs from a checkout on a machine where nothing can be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Task, tree
from masquerade.data import Dirichlet, from_arrays, partition
from masquerade.evaluation.evaluate import Evaluator
from masquerade.methods import METHODS
from masquerade.models import MLP, DigitsCNN, build
from masquerade.results.json_records import to_json
from masquerade.simulation.build import simulating


def problem(seed: int):
    """Images of ten noisy patterns, partitioned over eight ragged clients."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, 900)
    x = rng.normal(size=(10, 1, 8, 8))[y] + rng.normal(size=(900, 1, 8, 8))
    return partition(from_arrays(x.astype(np.float32), y), 8, Dirichlet(0.5), seed)


def network(name: str, variant: str, dtype: torch.dtype) -> Task:
    # Batch norms couple a batch and go to the loop: FedBN is held to account on other norms.
    if variant == "bn" or not variant:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            model = MLP(64, (32,), 10) if name == "mlp" else DigitsCNN(norm="group")
    else:
        model = build(f"{name}_{variant}", (1, 8, 8), 10, 3)
    return Task(model.to(dtype))


def run(method, task, federation, device: str, engine: str, rounds: int):
    """State, costs, personal models and figures after some rounds, on the CPU."""
    train = Train("", rounds, 10, 0.6, 0.97)
    with simulating(
        TrainingSpec(
            method=method,
            task=task,
            federation=federation,
            train=train,
            evaluate=Evaluate(every=0, draws=2),
            compute=Compute(engine=engine, device=device),
            seed=1,
            views=method.views,
        )
    ) as simulation:
        # A fallback to the loop would make this compare the loop with itself.
        assert (simulation.engine.name, simulation.server.device.type) == (engine, device)
        progress = simulation.begin()
        while progress.number < rounds:
            simulation.advance(progress)
        summaries, models = Evaluator.of(simulation).final(progress)
        if device == "cuda":
            # A stage that cannot be captured would make this check its eager steps alone.
            assert not simulation.engine.steps.failed
    state = {k: v for k, v in progress.tensors().items() if not k.startswith("session/version/")}
    state |= {f"models/{k}": v.cpu() for k, v in tree.named(models).items()}
    return state, progress.costs, [to_json(summary.accuracy) for summary in summaries]


def differences(left, right) -> tuple[float, float]:
    """Largest difference over a tensor's largest value, and the share of mask bits that differ."""
    far, flipped, bits = 0.0, 0, 0
    for name, value in left.items():
        other = right[name]
        if value.dtype is torch.bool:
            flipped += int((value != other).sum())
            bits += value.numel()
        elif value.is_floating_point() and value.numel():
            size = float(value.abs().max().clamp(min=1e-3))
            far = max(far, float((value - other).abs().max()) / size)
    return far, flipped / max(1, bits)


def of_itself(method, task, federation, loop) -> float:
    """Largest difference of the loop, in float32, from itself on data that differ by rounding."""
    found = []
    for seed in range(8):
        draw = torch.Generator().manual_seed(seed)
        x = federation.x * (1 + 2**-24 * torch.randn(federation.x.shape, generator=draw))
        again = run(method, task, replace(federation, x=x), "cpu", "loop", 1)
        found.append(differences(loop[0], again[0])[0])
    return max(found)


TWO_EPOCHS = ("subfedavg", "subfedavg_hy")
"""Methods that compare the masks of two epochs."""


def cases() -> list[tuple[str, str]]:
    """Every training of the table, on two networks."""
    lines = dict.fromkeys((line.method, line.settings) for line in METHODS.values())
    names = [
        next(n for n, line in METHODS.items() if (line.method, line.settings) == one)
        for one in lines
    ]
    return [(name, network) for name in names for network in ("mlp", "digits_cnn")]


def check(case: tuple[str, str, str]) -> tuple[int, str]:
    """Compare the engines on one training: (how many differences, a line of the table)."""
    name, net, device = case
    line, federation, failures = METHODS[name], problem(1), 0
    # SCAFFOLD reads the way of plain SGD; pFedMe's inner steps with momentum are chaotic here.
    momentum = 0.0 if name in ("scaffold", "pfedme") else 0.5
    method = line.method(local_epochs=2, lr=0.05, momentum=momentum, **dict(line.settings))
    begun, rows, tie = time.perf_counter(), [], ""
    for dtype, rounds, far, flips in (
        (torch.float64, 8, 1e-9, 0.0),
        (torch.float32, 1, 1e-4, 1e-4),
    ):
        task = network(net, line.variant, dtype)
        if dtype is torch.float32 and name not in TWO_EPOCHS:
            method = replace(method, **{key: 1 for key in vars(method) if key.endswith("epochs")})
        loop = run(method, task, federation, "cpu", "loop", rounds)
        batched = run(method, task, federation, device, "batched", rounds)
        found = differences(loop[0], batched[0])
        rows.append(found)
        if dtype is torch.float32 and found[0] > far:
            # Ties may fall otherwise on either side.
            far, tie = 2 * of_itself(method, task, federation, loop), "  a tie of the problem"
        failures += found[0] > far or found[1] > flips
        if dtype is torch.float64:
            for kind in loop[1]:
                # Engines run what they run: one pads, the other slices. All else is the same.
                names = [name for name in loop[1][kind] if name != "executed"]
                found = ([costs[1][kind][name] for name in names] for costs in (loop, batched))
                failures += not np.allclose(*found, rtol=1e-9)
            failures += loop[2] != batched[2]
    again = run(method, task, federation, device, "batched", 1)
    same = all(torch.equal(batched[0][key], again[0][key]) for key in again[0])
    failures += not same
    numbers = " ".join(f"{far:9.1e} {flips:7.1e}" for far, flips in rows)
    spent = time.perf_counter() - begun
    return failures, f"{name:14} {net:10} {numbers} {same!s:5} {spent:.1f}{tie}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="batched on the CPU")
    parser.add_argument("--jobs", type=int, default=1, help="comparisons at a time")
    given = parser.parse_args()
    device = "cpu" if given.cpu else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; --cpu checks the batched engine on the CPU")
        return 2
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, numpy {np.__version__}, {where}")
    heads = "float64 {0:>9} float32 {0:>9}".format("bits")
    print(f"{'method':14} {'network':10} {heads}  same  s")
    failures = 0
    # Processes of their own begin with CUDA untouched.
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        for differ, text in pool.map(check, [(*case, device) for case in cases()]):
            failures += differ
            print(text, f"  {differ} DIFFERENCES" if differ else "", flush=True)
    print("equal" if not failures else f"{failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
