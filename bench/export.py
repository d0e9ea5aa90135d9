"""What structure is worth: FedMask's models trained, cut, and timed beside the dense network.

    python bench/export.py             # exit status 1 when a bar is missed
    python bench/export.py --choose    # strengths of the group lasso, judged on validation data
    python bench/export.py --quick     # tiny networks on noise, to see that it runs

A HAR network on raw signals (1152-1024-512-6) and a slim VGG on CIFAR-10, each trained at a single
client with FedMask, with its group lasso and without. Models are traced, cut and written as ONNX;
dense and sliced answer in turn, on one thread of onnxruntime. Figures are means over seeds. The
data are `har_signals` and `cifar10` of the cache (`masquerade data list`).
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import torch
from torch import Tensor, nn

from masquerade.core import Task
from masquerade.core.random import normal
from masquerade.data import Federation, load
from masquerade.experiment import simulate
from masquerade.export import session, sparse, timing
from masquerade.export.bundle import Card, Model, write
from masquerade.export.graph import Program
from masquerade.export.sliced import cut
from masquerade.methods import FedMask
from masquerade.models import MLP, VGG16, slim_vgg
from masquerade.settings import Compute, Evaluate, Train

BARS = {
    "speedup, batch 1": (1.5, "least"),
    "accuracy lost": (1.0, "most"),
    "sliced / dense file": (0.70, "most"),
    "packed / dense file": (0.45, "most"),
    "seed and bits / dense file": (0.04, "most"),
}
"""What the means over seeds have to reach."""


@dataclass(frozen=True)
class Samples:
    """Inputs, labels, and which of them are for what."""

    x: Tensor
    y: Tensor
    classes: int
    train: Tensor
    validation: Tensor
    test: Tensor


@dataclass(frozen=True)
class Case:
    """A network, its data, and how it is trained."""

    name: str
    samples: Callable[[], Samples]
    network: Callable[[int], nn.Module]
    method: FedMask
    batch: int
    pulls: tuple[float, ...]
    """Strengths of the group lasso that `--choose` tries; the method has the chosen one."""


def har() -> Samples:
    """Nine signals of 128 moments, each standardized; every fourth training subject validates."""
    data = load("har_signals")
    assert data.client is not None
    assert data.train is not None
    known = data.train.nonzero().flatten()
    subjects = data.client[known].unique()
    held = torch.isin(data.client[known], subjects[::4])
    x = _standard(data.x.float(), known)
    test = (~data.train).nonzero().flatten()
    return Samples(x, data.y, 6, known[~held], known[held], test)


def cifar() -> Samples:
    """The first 10,000 images train, the next 2,000 validate; the original test images test."""
    data = load("cifar10")
    assert data.train is not None
    known, test = (part.nonzero().flatten() for part in (data.train, ~data.train))
    chosen = torch.cat([known[:12_000], test])
    x = _standard(data.x[chosen].float(), torch.arange(10_000))
    parts = torch.arange(len(chosen)).split([10_000, 2_000, len(test)])
    return Samples(x, data.y[chosen], 10, *parts)


def _standard(x: Tensor, known: Tensor) -> Tensor:
    """Give every channel mean 0 and deviation 1 on the training samples."""
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    center, spread = (f(x[known], axes, keepdim=True) for f in (torch.mean, torch.std))
    return (x - center) / spread


def noise(*shape: int) -> Samples:
    """Give a few samples of nothing."""
    x = normal(1, (48, *shape)).float()
    return Samples(x, torch.arange(48) % 4, 4, *torch.arange(48).split(16))


CASES = [
    Case(
        "HAR signals, MLP 1152-1024-512-6",
        har,
        lambda classes: MLP(1152, (1024, 512), classes),
        FedMask(rate=0.3, momentum=0.9, epochs=4, pruned_layers=2, keep=0.5, group_pull=1e-4),
        32,
        (5e-5, 1e-4, 1.5e-4, 2e-4),
    ),
    Case(
        "CIFAR-10, slim VGG16",
        cifar,
        slim_vgg,
        FedMask(rate=0.1, momentum=0.9, epochs=10, pruned_layers=8, group_pull=1e-4),
        32,
        (2e-5, 5e-5, 1e-4, 2e-4),
    ),
]
QUICK = [
    replace(
        CASES[0],
        samples=lambda: noise(9, 4),
        network=lambda classes: MLP(36, (16, 8), classes),
        method=replace(CASES[0].method, epochs=1),
    ),
    replace(
        CASES[1],
        samples=lambda: noise(3, 32, 32),
        network=lambda classes: VGG16(classes, (2, 2, 4, 4, 4), 8, 1),
        method=replace(CASES[1].method, epochs=1),
    ),
]


def trained(
    case: Case, samples: Samples, pull: float, seed: int, judged: Tensor
) -> tuple[Model, float]:
    """Train at one client; return its model and its accuracy on some samples, in percent."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = case.network(samples.classes)
    method = replace(case.method, group_pull=pull)
    parts = (samples.train,), (samples.validation,), (samples.test,)
    federation = Federation("one client", samples.x, samples.y, samples.classes, *parts)
    with simulate(
        method=method,
        task=Task(network),
        federation=federation,
        train=Train("", 1, case.batch),
        evaluate=Evaluate(0, (0,)),
        compute=Compute("loop", "cpu"),
        seed=seed,
        views=method.views[:1],
    ) as made:
        progress = made.begin()
        made.advance(progress)
        found = made.judge(progress, method.views[0], [judged])
        model = Model(method, made.task, found.models[0], samples.x[samples.train[:64]])
        return model, float(found.scores[0].mean())


def figures(case: Case, samples: Samples, seed: int, repeats: int) -> dict[str, float]:
    """Train with the group lasso and without; return what structure costs and gives."""
    _, plain = trained(case, samples, 0.0, seed, samples.test)
    model, accuracy = trained(case, samples, case.method.group_pull, seed, samples.test)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        write(path, model, Card(case.name), compare=True)
        found = timing.measure(session.open_bundle(path), repeats, memory=seed == 1)
    dense, small = found["dense"], found["sliced"]
    weights = model.networks()
    whole = len(sparse.dense(weights))
    origin = sparse.Origin("vgg_slim", tuple(model.x.shape[1:]), samples.classes, seed)
    bits = len(sparse.seeded(model.method, model.task, model.parts, origin))
    step = gradient_times(model, case.batch, repeats)
    print(
        f"  seed {seed}: {plain:.2f} % without lasso, {accuracy:.2f} % with; "
        f"{dense.seconds[1] * 1e3:.3f} ms dense, {small.seconds[1] * 1e3:.3f} ms sliced; "
        f"memory {dense.memory / 1e6:.1f} MB, {small.memory / 1e6:.1f} MB; "
        f"energy {_energy(dense)}, {_energy(small)}; left {_shapes(cut(model.masked()))}",
        flush=True,
    )
    return {
        "accuracy without lasso": plain,
        "accuracy": accuracy,
        "accuracy lost": plain - accuracy,
        "density": sparse.density(weights, model.task),
        "speedup, batch 1": dense.seconds[1] / small.seconds[1],
        "speedup, batch 64": dense.seconds[64] / small.seconds[64],
        "speedup of a gradient": step["dense"] / step["sliced"],
        "sliced / dense file": small.bytes / dense.bytes,
        "packed / dense file": len(sparse.packed(weights)) / whole,
        "seed and bits / dense file": bits / whole,
    }


def gradient_times(model: Model, batch: int, repeats: int) -> dict[str, float]:
    """Time forward and backward pass of a batch of training, over the dense and the cut network."""
    x = model.x[:batch]

    def gradient(program: Program) -> Callable[[], object]:
        weights = [each.requires_grad_() for each in program.module.buffers()]
        return lambda: torch.autograd.grad(program.module(x).square().mean(), weights)

    calls = {"dense": gradient(model.dense()), "sliced": gradient(cut(model.masked()))}
    found = timing.interleaved(calls, max(5, repeats // 10))
    return {name: median(times) for name, times in found.items()}


def _energy(found: timing.Figures) -> str:
    return "absent (no counter to read)" if found.joules is None else f"{found.joules * 1e3:.3f} mJ"


def _shapes(program: Program) -> str:
    """Say how wide the layers are that are left."""
    rows = (str(len(each)) for each in program.module.buffers() if each.ndim > 1)
    return "-".join(rows)


def missed(found: dict[str, float]) -> list[str]:
    """List the bars that means over seeds do not reach."""
    below = {
        name: found[name] < bar if way == "least" else found[name] > bar
        for name, (bar, way) in BARS.items()
    }
    return [name for name, misses in below.items() if misses]


def choose(case: Case, samples: Samples) -> None:
    """Print what each strength of the group lasso leads to on validation data."""
    for pull in (0.0, *case.pulls):
        model, accuracy = trained(case, samples, pull, 1, samples.validation)
        small, whole = (
            sum(each.numel() for each in program.module.buffers())
            for program in (cut(model.masked()), model.masked())
        )
        print(
            f"  λ_R {pull:g}: {accuracy:.2f} %, {small / whole:.3f} of the weights left", flush=True
        )


def main(quick: bool, choosing: bool, seeds: int, only: str) -> int:
    """Run every case, or those whose names begin so; return the exit status."""
    torch.set_num_threads(1)
    status = 0
    for case in QUICK if quick else CASES:
        if not case.name.startswith(only):
            continue
        print(case.name, flush=True)
        samples = case.samples()
        if choosing:
            choose(case, samples)
            continue
        runs = [
            figures(case, samples, seed, 10 if quick else 500)
            for seed in range(1, (1 if quick else seeds) + 1)
        ]
        means = {name: mean(run[name] for run in runs) for name in runs[0]}
        for name, value in means.items():
            bar = f"   ({BARS[name][1]} {BARS[name][0]})" if name in BARS else ""
            print(f"  {name}: {value:.4g}{bar}")
        if not quick and (names := missed(means)):
            print(f"  MISSED: {', '.join(names)}")
            status = 1
    return status


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="structure: what it costs and gives")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--choose", action="store_true")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--only", default="", help="HAR or CIFAR")
    given = arguments.parse_args()
    sys.exit(main(given.quick, given.choose, given.seeds, given.only))
