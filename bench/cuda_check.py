"""Hold the batched engine on CUDA against the loop on a CPU, for every method.

    python bench/cuda_check.py          # needs torch and numpy alone; exit status 1 on a difference
    python bench/cuda_check.py --cpu    # the same with batched on the CPU, where there is no GPU

In float64 numbers agree to 1e-9 and masks are equal. In float32, after one round, numbers agree to
1e-5 of their size and at most one mask bit in ten thousand differs (ties in a top-k may flip). Two
runs on CUDA agree bit for bit.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

# Runs from a checkout on a machine where nothing can be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from masquerade.config import Compute, Evaluate, Train
from masquerade.core import Task, tree
from masquerade.data import Dirichlet, from_arrays, partition
from masquerade.experiment import simulate
from masquerade.methods import METHODS
from masquerade.models import MLP, DigitsCNN


def problem(seed: int):
    """Images of ten noisy patterns, spread over eight ragged clients."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, 900)
    x = rng.normal(size=(10, 1, 8, 8))[y] + rng.normal(size=(900, 1, 8, 8))
    return partition(from_arrays(x.astype(np.float32), y), 8, Dirichlet(0.5), seed)


def network(name: str, dtype: torch.dtype) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        model = MLP(64, (32,), 10) if name == "mlp" else DigitsCNN(norm="group")
    return Task(model.to(dtype))


def run(method, task, federation, device: str, engine: str, rounds: int):
    """State, costs, personal models and figures after some rounds, on the CPU."""
    train = Train("", rounds, 10, 0.6, 0.97)
    with simulate(
        method=method,
        task=task,
        federation=federation,
        train=train,
        evaluate=Evaluate(every=0, draws=2),
        compute=Compute(engine=engine, device=device),
        seed=1,
        views=method.views,
    ) as simulation:
        # A fallback to the loop would make this compare the loop with itself.
        assert (simulation.engine.name, simulation.device.type) == (engine, device)
        progress = simulation.begin()
        while progress.number < rounds:
            simulation.advance(progress)
        summaries, models = simulation.verdict(progress)
    state = {k: v for k, v in progress.tensors().items() if not k.startswith("known/")}
    state |= {f"models/{k}": v.cpu() for k, v in tree.named(models).items()}
    return state, progress.costs, [summary["accuracy"] for summary in summaries]


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="batched on the CPU")
    device = "cpu" if parser.parse_args().cpu else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; --cpu checks the batched engine on the CPU")
        return 2
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, numpy {np.__version__}, {where}")
    print(
        f"{'method':10} {'network':7} {'float64':>9} {'bits':>7} {'float32':>9} {'bits':>7} same  s"
    )
    failures = 0
    federation = problem(1)
    for cls in dict.fromkeys(line.method for line in METHODS.values()):
        for name in ("mlp", "cnn"):
            begun = time.perf_counter()
            method = cls(epochs=2, rate=0.05, momentum=0.5)
            rows = []
            for dtype, rounds, far, flips in (
                (torch.float64, 8, 1e-9, 0.0),
                (torch.float32, 1, 1e-5, 1e-4),
            ):
                task = network(name, dtype)
                loop = run(method, task, federation, "cpu", "loop", rounds)
                batched = run(method, task, federation, device, "batched", rounds)
                found = differences(loop[0], batched[0])
                rows.append(found)
                failures += found[0] > far or found[1] > flips
                if dtype is torch.float64:
                    for kind in loop[1]:
                        same = np.allclose(
                            list(loop[1][kind].values()), list(batched[1][kind].values()), rtol=1e-9
                        )
                        failures += not same
                    failures += loop[2] != batched[2]
            again = run(method, task, federation, device, "batched", 1)
            same = all(torch.equal(batched[0][key], again[0][key]) for key in again[0])
            failures += not same
            numbers = " ".join(f"{far:9.1e} {flips:7.1e}" for far, flips in rows)
            spent = time.perf_counter() - begun
            print(f"{cls.__name__:10} {name:7} {numbers} {same!s:5} {spent:.1f}", flush=True)
    print("equal" if not failures else f"{failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
