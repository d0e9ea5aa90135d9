"""What structure is worth: FedMask's models trained, cut, and timed beside the dense network.

    python bench/export.py --out docs/results/export.md    # exit status 1 when a bar is missed
    python bench/export.py --choose    # strengths of the group lasso, evaluated on validation data;
                                       # a fold for every seed in turn, --seeds 12 to be sure
    python bench/export.py --quick     # tiny networks on noise, to see that it runs

A HAR network on raw signals (1152-1024-512-6) and a slim VGG on CIFAR-10, each trained at a single
client with FedMask, with its group lasso and without. Models are traced, cut and written as ONNX;
dense, masked and sliced answer in turn, on one thread of onnxruntime. The data are `har_signals`
and `cifar10` of the cache (`masquerade data list`). Two quiet cores take about half an hour; with
`--device cuda` models are trained there, and timed on the CPU. `--choose` needs no onnxruntime.
"""

import argparse
import datetime
import math
import multiprocessing
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median, stdev

import torch
from export_cases import CASES, QUICK, Case, Samples
from torch import Tensor

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate
from masquerade.core import Task
from masquerade.data import Federation
from masquerade.evaluation.evaluate import Evaluator
from masquerade.export import predict as session
from masquerade.export import sparse, timing
from masquerade.export.bundle import Card, Model, write
from masquerade.export.graph import Program
from masquerade.export.sliced import cut
from masquerade.reproduce.page import wrapped
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.server import train as rounds

BARS = {
    "speedup, batch 1": (1.5, "≥"),
    "accuracy lost, points": (1.0, "≤"),
    "sliced / dense file": (0.70, "≤"),
    "packed / dense file": (0.45, "≤"),
    "seed and bits / dense file": (0.04, "≤"),
}
"""What the means over seeds have to reach."""
FORMS = ("dense", "sliced")
BATCHES = 16
"""How many steps are timed at a time."""

TEXT = """# What structure is worth

FedMask trains bits over frozen random weights. Its group lasso empties whole rows, columns, filters
and channels, and export cuts these out. Here a single client trains with the lasso and without.
*Dense* is the network without masks, *sliced* the one that is left. Test data, seeds 1 to {seeds}.

{made}

```sh
python bench/export.py {options}
```

| figure | what is measured |
|---|---|
| answer | onnxruntime, in turn with the masked network |
| gradient | forward and backward pass of a batch, by torch |
| step | FedMask by torch, rounds of sixteen steps and their aggregation, on the widths left |
| `packed` | values and a mask of bits |
| `seed and bits` | what FedMask needs |
| memory | what loading and using a model adds to a fresh process |

Times are medians of interleaved calls on one thread.
{energy}

Settings were chosen on folds of the training data; the [log](../log.md) has what was tried.
{cases}"""
CASE = """
## {name}

{parameters:,} parameters, {samples:,} training samples, batches of {batch}. Rounds: {rounds},
epochs in each: {epochs}. The learning rate is multiplied by {decay} after each round.{note}

```
{method}
```

{table}

{outcome}
"""
ENERGY = "Energy per answer is absent: this machine lets nobody read a counter."


def simulation(
    case: Case, samples: Samples, seed: int, train: Tensor, evaluated: Tensor
) -> Simulation:
    """Make the training of a single client."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = case.network(case.widths, samples.classes)
    parts = (train,), (evaluated,), (evaluated,)
    return simulating(
        TrainingSpec(
            method=case.method,
            task=Task(network),
            federation=Federation("one client", samples.x, samples.y, samples.classes, *parts),
            train=case.train,
            evaluate=Evaluate(0, (0,)),
            compute=Compute(
                "loop" if case.device == "cpu" else "batched", case.device, clients_per_chunk=1
            ),
            seed=seed,
            views=case.method.views[:1],
        )
    )


def trained(
    case: Case, samples: Samples, pull: float, seed: int, train: Tensor, evaluated: Tensor
) -> tuple[Model, float]:
    """Train; return the client's model and its accuracy on some samples, in percent."""
    case = replace(case, method=replace(case.method, group_lasso=pull))
    with simulation(case, samples, seed, train, evaluated) as made:
        progress = rounds(made.server, made.engine, made.begin())
        found = Evaluator.of(made).measure(progress, case.method.views[0], [evaluated])
        x = samples.x[train[:64]]
        model = Model.at_home(case.method, made.server.task, found.models[0], x)
        return model, float(found.scores[0].mean())


def beside(work: Callable[[], float], forked: bool) -> Callable[[], float]:
    """Do some work, in a process of its own where one can be forked; return what waits for it."""
    if not forked:
        found = work()
        return lambda: found
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=lambda: theirs.send(work()))
    process.start()
    # The one end that is left open here is read; if the process dies, reading ends too.
    theirs.close()
    return ours.recv


def figures(case: Case, samples: Samples, seed: int, repeats: int) -> dict[str, float | str]:
    """Train with the group lasso and without; return what structure costs and gives."""
    # As many steps as where the strength was chosen: the lasso pulls in every one of them.
    parts = samples.known[~samples.held_out(seed)], samples.test
    result = beside(lambda: trained(case, samples, 0.0, seed, *parts)[1], case.device == "cpu")
    model, accuracy = trained(case, samples, case.method.group_lasso, seed, *parts)
    # Both are done before anything is timed.
    plain = result()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        write(path, model, Card(case.name), compare=True)
        answers = timing.measure(session.open_bundle(path), repeats)
    small, weights = cut(model.masked()), model.networks()
    whole = len(sparse.dense(weights))
    origin = sparse.Origin(case.name, tuple(model.x.shape[1:]), samples.classes, seed)
    bits = len(sparse.seeded(model.method, model.task, model.parts, origin))
    rounds = max(3, repeats // 50)
    return {
        "accuracy without lasso, %": plain,
        "accuracy with lasso, %": accuracy,
        "accuracy lost, points": plain - accuracy,
        "widths left": "-".join(map(str, widths_of(small))),
        "density": sparse.density(weights, model.task),
        **_beside("ms of an answer, batch 1", _seconds(answers, 1), "speedup, batch 1"),
        **_beside("ms of an answer, batch 64", _seconds(answers, 64), "speedup, batch 64"),
        **_beside("ms of a gradient", gradients(model, small, case, rounds), "speedup, gradient"),
        **_beside("ms of a step", steps(case, samples, small, seed, rounds), "speedup, step"),
        **{f"memory of {form}, MB": answers[form].memory / 1e6 for form in FORMS},
        **_energy(answers),
        "dense file, MB": answers["dense"].bytes / 1e6,
        "sliced / dense file": answers["sliced"].bytes / answers["dense"].bytes,
        "packed / dense file": len(sparse.packed(weights)) / whole,
        "seed and bits / dense file": bits / whole,
    }


def _seconds(answers: dict[str, timing.Figures], batch: int) -> dict[str, float]:
    return {form: answers[form].seconds[batch] for form in FORMS}


def _beside(name: str, seconds: dict[str, float], ratio: str) -> dict[str, float | str]:
    times = {f"{name}, {form}": seconds[form] * 1e3 for form in FORMS}
    return {**times, ratio: seconds["dense"] / seconds["sliced"]}


def _energy(answers: dict[str, timing.Figures]) -> dict[str, float | str]:
    joules = {form: answers[form].joules for form in FORMS}
    return {
        f"mJ of an answer, {form}": value * 1e3
        for form, value in joules.items()
        if value is not None
    }


def widths_of(program: Program) -> list[int]:
    """Return how wide the layers of a program are."""
    return [len(each) for each in program.module.buffers() if each.ndim > 1]


def _medians(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    found = timing.interleaved(calls, repeats)
    return {name: median(times) for name, times in found.items()}


def gradients(model: Model, small: Program, case: Case, repeats: int) -> dict[str, float]:
    """Time forward and backward pass of a batch, over the dense and the cut network."""
    x = model.x[: case.train.batch_size]

    def gradient(program: Program) -> Callable[[], object]:
        weights = [each.clone().requires_grad_() for each in program.module.buffers()]
        names = [name for name, _ in program.module.named_buffers()]

        def call() -> object:
            held = dict(zip(names, weights, strict=True))
            made = torch.func.functional_call(program.module, held, (x,))
            return torch.autograd.grad(made.square().mean(), weights)

        return call

    calls = {"dense": gradient(model.dense()), "sliced": gradient(small)}
    return _medians(calls, repeats * 5)


def steps(
    case: Case, samples: Samples, small: Program, seed: int, repeats: int
) -> dict[str, float]:
    """Time steps of FedMask itself, on the whole network and on one of the widths that are left."""
    some = samples.known[: BATCHES * case.train.batch_size]
    # Pruning is done once, before the first round.
    method = replace(case.method, local_epochs=1, pruned_layers=0)
    whole = replace(case, method=method, train=replace(case.train, rounds=1000), device="cpu")
    narrow = replace(whole, widths=tuple(widths_of(small)[:-1]))
    with (
        simulation(whole, samples, seed, some, some) as dense,
        simulation(narrow, samples, seed, some, some) as sliced,
    ):
        states = dense.begin(), sliced.begin()
        calls = {
            "dense": lambda: dense.advance(states[0]),
            "sliced": lambda: sliced.advance(states[1]),
        }
        return {name: each / BATCHES for name, each in _medians(calls, repeats).items()}


def missed(found: dict[str, float]) -> list[str]:
    """List the bars that means over seeds do not reach."""
    # What is no number holds nothing.
    holds = {
        name: found[name] >= bar if way == "≥" else found[name] <= bar
        for name, (bar, way) in BARS.items()
    }
    return [name for name, each in holds.items() if not each]


def choose(case: Case, samples: Samples, seeds: int) -> None:
    """Print what each strength of the group lasso leads to on folds that were not trained on."""
    plain: list[float] = []
    for pull in (0.0, *case.pulls):
        scores, shares = [], []
        for seed in range(1, seeds + 1):
            own = samples.held_out(seed)
            parts = samples.known[~own], samples.known[own]
            model, accuracy = trained(case, samples, pull, seed, *parts)
            programs = cut(model.masked()), model.dense()
            small, whole = (sum(v.numel() for v in each.module.buffers()) for each in programs)
            scores.append(accuracy)
            shares.append(small / whole)
        plain = plain or scores
        lost = [before - after for before, after in zip(plain, scores, strict=True)]
        error = stdev(lost) / len(lost) ** 0.5 if len(lost) > 1 else math.nan
        print(
            f"  λ_R {pull:g}: {mean(scores):.2f} %, {mean(lost):.2f} ± {error:.2f} points lost, "
            f"{mean(shares):.3f} of the weights left",
            flush=True,
        )


def table(runs: list[dict[str, float | str]], means: dict[str, float]) -> str:
    """Set one line per figure: every seed, the mean, the bar."""
    seeds = " | ".join(f"seed {seed}" for seed in range(1, len(runs) + 1))
    lines = [f"| | {seeds} | mean | bar |", "|---|" + "--:|" * (len(runs) + 2)]
    for name in runs[0]:
        cells = [_cell(run[name]) for run in runs]
        bar = "{1} {0}".format(*BARS[name]) if name in BARS else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {_cell(means.get(name, ''))} | {bar} |")
    return "\n".join(lines)


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def section(case: Case, samples: Samples, runs: list[dict[str, float | str]]) -> tuple[str, int]:
    """Return a case's part of the page, and how many bars are missed."""
    means = {
        name: mean(float(run[name]) for run in runs)
        for name, value in runs[0].items()
        if not isinstance(value, str)
    }
    names = missed(means)
    text = CASE.format(
        name=case.name,
        parameters=sum(p.numel() for p in case.network(case.widths, samples.classes).parameters()),
        samples=int((~samples.held_out(1)).sum()),
        batch=case.train.batch_size,
        rounds=case.train.rounds,
        epochs=case.method.local_epochs,
        decay=case.train.lr_decay,
        method=wrapped(repr(case.method), "    "),
        note=f"\n\n{wrapped(' '.join(case.note.split()))}" if case.note else "",
        table=table(runs, means),
        outcome=f"**Missed: {', '.join(names)}.**" if names else "All bars hold.",
    )
    return text, len(names)


def page(options: str, seeds: int, minutes: float, parts: list[str]) -> str:
    """Return the page."""
    counted = any("mJ of an answer" in part for part in parts)
    return TEXT.format(
        seeds=seeds,
        made=wrapped(
            f"Made on {datetime.date.today().isoformat()} in {minutes:.0f} minutes, with Python"
            f" {platform.python_version()}, torch {torch.__version__}, onnxruntime"
            f" {version('onnxruntime')}, {processor()}, by"
        ),
        options=options,
        energy="Energy is the processor's own count (RAPL)." if counted else ENERGY,
        cases="".join(parts),
    )


def processor() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main(
    quick: bool = False,
    choosing: bool = False,
    seeds: int = 3,
    only: str = "",
    device: str = "cpu",
    out: Path | None = None,
    options: str = "",
) -> int:
    """Run every case, or those whose names begin so; return the exit status."""
    torch.set_num_threads(1)
    begun, parts, misses = time.monotonic(), [], 0
    cases = [case for case in (QUICK if quick else CASES) if case.name.startswith(only)]
    if not cases:
        sys.exit(f"no case begins with {only}")
    for case in cases:
        print(case.name, flush=True)
        case, samples = replace(case, device=device), case.samples()
        if choosing:
            choose(case, samples, seeds)
            continue
        runs = []
        for seed in range(1, seeds + 1):
            runs.append(figures(case, samples, seed, 10 if quick else 500))
            print(f"  seed {seed}: " + ", ".join(f"{n} {_cell(v)}" for n, v in runs[-1].items()))
        text, count = section(case, samples, runs)
        parts.append(text)
        misses += count
    if not choosing:
        text = page(options, seeds, (time.monotonic() - begun) / 60, parts)
        print(text)
        if out is not None:
            out.write_text(text, encoding="utf-8")
    return 1 if misses and not quick else 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="structure: what it costs and gives")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--choose", dest="choosing", action="store_true")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--only", default="", help="HAR or CIFAR")
    arguments.add_argument("--device", default="cpu", help="where models are trained")
    arguments.add_argument("--out", type=Path, help="the page to write")
    sys.exit(main(**vars(arguments.parse_args()), options=shlex.join(sys.argv[1:])))
