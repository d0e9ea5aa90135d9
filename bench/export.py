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
from itertools import pairwise
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
from masquerade.models import MLP
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
    """Inputs, labels, which of them are known and in which fold of several, and which test."""

    x: Tensor
    y: Tensor
    classes: int
    known: Tensor
    fold: Tensor
    """The fold of every known sample; a seed's own fold validates where settings are chosen."""
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
    """Nine signals of 128 moments, each standardized; folds are made of subjects."""
    data = load("har_signals")
    assert data.client is not None
    assert data.train is not None
    known, test = (part.nonzero().flatten() for part in (data.train, ~data.train))
    place = torch.searchsorted(data.client[known].unique(), data.client[known])
    return Samples(_standard(data.x.float(), known), data.y, 6, known, place % 4, test)


def cifar() -> Samples:
    """The first 12,000 training images are known; the original test images test."""
    data = load("cifar10")
    assert data.train is not None
    known, test = (part.nonzero().flatten() for part in (data.train, ~data.train))
    chosen = torch.cat([known[:12_000], test])
    parts = torch.arange(len(chosen)).split([12_000, len(test)])
    x = _standard(data.x[chosen].float(), parts[0])
    return Samples(x, data.y[chosen], 10, parts[0], parts[0] % 6, parts[1])


def _standard(x: Tensor, known: Tensor) -> Tensor:
    """Give every channel mean 0 and deviation 1 on the training samples."""
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    center, spread = (f(x[known], axes, keepdim=True) for f in (torch.mean, torch.std))
    return (x - center) / spread


def noise(*shape: int) -> Samples:
    """Give a few samples of nothing."""
    x = normal(1, (48, *shape)).float()
    known, test = torch.arange(48).split([32, 16])
    return Samples(x, torch.arange(48) % 4, 4, known, known % 4, test)


def slim_vgg(
    classes: int, widths: tuple[int, ...] = (16, 32, 64, 128), dense: int = 1024
) -> nn.Module:
    """Make a small VGG: 3 × 3 convolutions with pooling, and most weights in its dense layers.

    The sixteen layers of `vgg_slim`, without norms, are too deep for bits over frozen weights.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise((3, *widths)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    ends = [widths[-1] * (32 >> len(widths)) ** 2, dense, dense, classes]
    layers.append(nn.Flatten())
    for before, after in pairwise(ends):
        layers += [nn.Linear(before, after), nn.ReLU()]
    for layer in layers:
        # As in `models/vgg`: where edges are padded, only a channel of zeros can be cut.
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers[:-1])


CASES = [
    Case(
        "HAR signals, MLP 1152-1024-512-6",
        har,
        lambda classes: MLP(1152, (1024, 512), classes),
        FedMask(rate=300, scale=1, momentum=0.9, epochs=4, keep=0.5, group_pull=7e-5),
        32,
        (5e-5, 7e-5, 1e-4),
    ),
    Case(
        "CIFAR-10, slim VGG",
        cifar,
        slim_vgg,
        FedMask(rate=33, scale=1, momentum=0.9, epochs=10, pruned_layers=0, group_pull=8e-5),
        32,
        (5e-5, 8e-5, 1e-4),
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
        network=lambda classes: slim_vgg(classes, (4, 4), 8),
        method=replace(CASES[1].method, epochs=1),
    ),
]


def trained(
    case: Case, samples: Samples, pull: float, seed: int, train: Tensor, judged: Tensor
) -> tuple[Model, float]:
    """Train at one client; return its model and its accuracy on some samples, in percent."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = case.network(samples.classes)
    method = replace(case.method, group_pull=pull)
    parts = (train,), (judged,), (judged,)
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
        model = Model(method, made.task, found.models[0], samples.x[train[:64]])
        return model, float(found.scores[0].mean())


def figures(case: Case, samples: Samples, seed: int, repeats: int) -> dict[str, float]:
    """Train with the group lasso and without; return what structure costs and gives."""
    # As many steps as where the strength was chosen: the lasso pulls in every one of them.
    parts = samples.known[samples.fold != seed], samples.test
    _, plain = trained(case, samples, 0.0, seed, *parts)
    model, accuracy = trained(case, samples, case.method.group_pull, seed, *parts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        write(path, model, Card(case.name), compare=True)
        found = timing.measure(session.open_bundle(path), repeats, memory=seed == 1)
    dense, small = found["dense"], found["sliced"]
    weights = model.networks()
    whole = len(sparse.dense(weights))
    origin = sparse.Origin(case.name, tuple(model.x.shape[1:]), samples.classes, seed)
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


def choose(case: Case, samples: Samples, seeds: int) -> None:
    """Print what each strength of the group lasso leads to on folds that were not trained on."""
    for pull in (0.0, *case.pulls):
        scores, shares = [], []
        for seed in range(1, seeds + 1):
            own = samples.fold == seed
            parts = samples.known[~own], samples.known[own]
            model, accuracy = trained(case, samples, pull, seed, *parts)
            programs = cut(model.masked()), model.dense()
            small, whole = (sum(v.numel() for v in each.module.buffers()) for each in programs)
            scores.append(accuracy)
            shares.append(small / whole)
        told = ", ".join(f"{score:.2f}" for score in scores)
        print(
            f"  λ_R {pull:g}: {mean(scores):.2f} % ({told}), {mean(shares):.3f} of the weights left"
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
            choose(case, samples, seeds)
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
