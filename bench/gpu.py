"""Speed on one CUDA GPU: a step of ten clients against a bare loop, and two whole runs.

    python bench/gpu.py                    # all; writes docs/results/gpu.md
    python bench/gpu.py --only step        # no data needed

The step is the network of DM-PFL (797,962 parameters), batches of 64, ten clients: whole rounds of
ours, everything included, divided by their steps, against ten models of a plain PyTorch loop in the
same precision. Then a round of ours is traced, for where its time goes.

`dmpfl` is `masquerade run --config runs/dmpfl/table1/dmpfl.toml` (CIFAR-10 from the cache), `s2`
the CIFAR-10 benchmark of pfl-research as in `bench/peers`: 1500 rounds, central evaluation every
ten. Both are timed as commands, start of Python, capture, commits and evaluation included. Exit
status 1 when a bar is missed.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Task
from masquerade.data import Federation
from masquerade.methods import FedAvg
from masquerade.models import build
from masquerade.simulation.build import simulating
from masquerade.storage.results import read_results

ROOT = Path(__file__).resolve().parents[1]
CLIENTS, BATCH, STEPS, REPEATS = 10, 64, 50, 7
BARS = {"tf32": 5.0, "bfloat16": 8.0}
"""How many times faster than the bare loop in the same precision."""
SECONDS = {"dmpfl": 90.0, "s2": 60.0}
"""Wall time of whole commands."""
TITLES = {"step": "A step of ten clients", "s2": "S2", "dmpfl": "DM-PFL"}
"""The sections of the page."""
PRODUCTS = ("gemm", "xmma", "cutlass", "conv", "wgrad", "dgrad", "fprop", "gemv", "cublas")
"""What kernels are named that multiply matrices or convolve."""


def peak(precision: str) -> float:
    """Measure the TFLOP/s of a large product of matrices: what the GPU can do."""
    size, dtype = 8192, torch.bfloat16 if precision == "bfloat16" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    left, right = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    found = []
    for _ in range(10):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        left @ right
        torch.cuda.synchronize()
        found.append(2 * size**3 / (time.perf_counter() - begun) / 1e12)
    return statistics.median(found)


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Random images and labels; speed does not depend on what they show."""
    count = CLIENTS * STEPS * BATCH
    draw = torch.Generator("cuda").manual_seed(1)
    x = torch.rand(count, 3, 32, 32, device="cuda", generator=draw)
    return x, torch.randint(0, 10, (count,), device="cuda", generator=draw)


def bare(precision: str):
    """Return a round of a careful user's loop: a model and an optimizer for every client."""
    x, y = samples()
    models = [build("cifar_cnn", (3, 32, 32), 10, 1).cuda() for _ in range(CLIENTS)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    loss = nn.CrossEntropyLoss()

    def go() -> None:
        # A careful user does not ask for the same bits every time, and is faster for it.
        torch.use_deterministic_algorithms(False)
        pieces = zip(x.split(STEPS * BATCH), y.split(STEPS * BATCH), strict=True)
        for model, optimizer, (own, labels) in zip(models, optimizers, pieces, strict=True):
            for batch, label in zip(own.split(BATCH), labels.split(BATCH), strict=True):
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
                    found = loss(model(batch), label)
                found.backward()
                optimizer.step()
        torch.use_deterministic_algorithms(True)

    return go


def timed(go) -> float:
    """Return milliseconds per step of all clients."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    go()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / STEPS * 1e3


def step(precision: str) -> dict[str, float]:
    """Time rounds of both, one after another, several times."""
    x, y = samples()
    own = tuple(torch.arange(len(y)).split(STEPS * BATCH))
    federation = Federation("random", x, y, 10, own, own, own)
    with simulating(
        TrainingSpec(
            method=FedAvg(local_epochs=1, lr=0.01),
            task=Task(build("cifar_cnn", (3, 32, 32), 10, 1)),
            federation=federation,
            train=Train("", 1000, BATCH),
            evaluate=Evaluate(every=0, degrees=(0,)),
            compute=Compute(device="cuda", precision=precision),
            seed=1,
            views=("global",),
        )
    ) as simulation:
        progress = simulation.begin()
        loop = bare(precision)
        spent: dict[str, list[float]] = {"ours": [], "bare": []}
        for repeat in range(-2, REPEATS):
            for name, go in (("ours", lambda: simulation.advance(progress)), ("bare", loop)):
                found = timed(go)
                if repeat >= 0:
                    spent[name].append(found)
        flops = progress.costs["train"]["dense"] / (REPEATS + 2) / STEPS
        products, others, idle = traced(lambda: simulation.advance(progress))
    ours, alone = (statistics.median(spent[name]) for name in ("ours", "bare"))
    pairs = zip(spent["bare"], spent["ours"], strict=True)
    ratio = statistics.median(b / o for b, o in pairs)
    top = peak(precision)
    return {
        "ours": ours,
        "bare": alone,
        "ratio": ratio,
        "tflops": flops / ours / 1e9,
        "peak": top,
        "products": products,
        "others": others,
        "idle": idle,
        "in products": flops / (ours * products / 100) / 1e9,
    }


def traced(go) -> tuple[float, float, float]:
    """Return the shares of a round that the GPU spends in products, in all else, and idle: %.

    Kernels that are traced take longer, so that only shares mean something.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        begun = time.perf_counter()
        go()
        torch.cuda.synchronize()
        whole = (time.perf_counter() - begun) * 1e6
    spent = {True: 0.0, False: 0.0}
    for event in found.key_averages():
        if event.device_type == DeviceType.CUDA:
            product = any(word in event.key.lower() for word in PRODUCTS)
            spent[product] += event.self_device_time_total
    whole = max(whole, sum(spent.values()))
    products, others = (100 * spent[kind] / whole for kind in (True, False))
    return products, others, max(0.0, 100 - products - others)


def run(precision: str) -> list[float]:
    """Run DM-PFL as a command; return its seconds, those of training, and two accuracies."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "masquerade", "run", "--quiet", "--out", str(out)]
        command += ["--config", str(ROOT / "runs/dmpfl/table1/dmpfl.toml")]
        command += ["--set", "compute.device=cuda", "--set", f"compute.precision={precision}"]
        begun = time.perf_counter()
        subprocess.run(command, check=True, cwd=ROOT)
        spent = time.perf_counter() - begun
        summary = read_results(out)[0]
    shift = summary.accuracy.shift
    own, shifted = shift["0"].mean, shift["100"].mean
    return [spent, summary.costs.total_seconds, own, shifted]


def benchmark() -> tuple[list[str], int]:
    """Return the table of pfl-research's benchmark, and how many bars are missed."""
    sys.path.insert(0, str(ROOT / "bench" / "peers"))
    from protocol import save
    from protocols import PROTOCOLS, arrange

    bar = SECONDS["s2"]
    lines = table(
        "pfl-research's CIFAR-10 benchmark (S2), 1500 rounds in TF32, the whole command "
        f"(bar: {bar:g} s):",
        *("wall s", "until the first round is done", "ms per round", "accuracy", "TFLOP/s"),
    )
    protocol = PROTOCOLS["s2"].sized(1500 - PROTOCOLS["s2"].warm, False, "real")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arrange(protocol, folder / "data")
        job, out = folder / "work.json", folder / "report.json"
        work = protocol.work(str(folder / "data"), "cuda", "tf32")
        begun = time.time()
        save(dataclasses.replace(work, begun=begun, commits=True), job)
        script = ROOT / "bench" / "peers" / "run_ours.py"
        subprocess.run([sys.executable, str(script), str(job), str(out)], check=True)
        spent = time.time() - begun
        found = json.loads(out.read_text())
    rate = found["flops"] / found["seconds"] / 1e12
    figures = (spent, found["before"], found["seconds"] * 1e3, found["accuracy"], rate)
    lines.append(f"| {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    print(lines[-1], flush=True)
    return lines, int(spent > bar)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"step": steps, "s2": benchmark, "dmpfl": runs}
    parser.add_argument("--only", choices=tuple(parts), nargs="*", default=tuple(parts))
    parser.add_argument("--page", type=Path, default=ROOT / "docs/results/gpu.md")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here")
        return 2
    missed = 0
    where = f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {date.today()}"
    for name in given.only:
        lines, count = parts[name]()
        missed += count
        made = f"`python bench/gpu.py --only {name}`; {where}."
        write(given.page, name, "\n".join([made, "", *lines]))
    print(f"{missed} bars missed" if missed else "all bars hold")
    return 1 if missed else 0


def write(page: Path, name: str, text: str) -> None:
    """Write one section of the page, and leave the others."""
    _, *old = page.read_text().split("\n## ") if page.is_file() else [""]
    sections = {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip() for part in old}
    sections[TITLES[name]] = text
    ordered = [title for title in TITLES.values() if title in sections]
    whole = ["# Speed on a GPU", "", "`python bench/gpu.py` writes this page."]
    for title in ordered:
        whole += ["", f"## {title}", "", sections[title]]
    page.write_text("\n".join(whole) + "\n")


def table(title: str, *heads: str) -> list[str]:
    return [title, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]


def steps() -> tuple[list[str], int]:
    """Return the table of steps, and how many bars are missed."""
    title = f"A step of {CLIENTS} clients, batch {BATCH}, in ms"
    lines = table(
        f"{title}: medians of {REPEATS} rounds of {STEPS} steps, in turns with the bare loop.",
        *("products in", "bare loop", "ours", "ratio", "bar", "TFLOP/s", "peak of the GPU"),
    )
    missed, shares = 0, []
    for precision in ("float32", *BARS):
        found, bar = step(precision), BARS.get(precision, 0.0)
        missed += found["ratio"] < bar
        cells = (
            precision,
            *(f"{found[name]:.2f}" for name in ("bare", "ours")),
            f"{found['ratio']:.1f} ×",
            f"{bar:g} ×" if bar else "–",
            *(f"{found[name]:.1f}" for name in ("tflops", "peak")),
        )
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        shares.append((precision, found))
    return lines + rest(shares), missed


REST = """\
Where the rest of a round goes: shares of a traced round, in %. Where kernels overlap and add up to
more than the round, shares are of their sum. Traced kernels take longer than replayed ones, so
shares mean something, and times do not.

| column | says |
|---|---|
| products | kernels that multiply matrices or convolve, by their names: {names} |
| other kernels | activations, pools, biases, updates, copies; they wait for memory |
| TFLOP/s in products | what products reach in their share of a step |

Products are small here, 64 samples of 3 to 64 channels. Even alone they stay far below one large
product. The bare loop waits for its launches and not for the GPU. A shorter type adds casts to it,
which is a part of its ratios."""


def rest(found: list[tuple[str, dict[str, float]]]) -> list[str]:
    """Return the table of where a step's time goes that is not spent at the GPU's peak."""
    names = ("products", "others", "idle", "in products")
    lines = table(
        REST.format(names=", ".join(PRODUCTS)),
        *("products in", "products", "other kernels", "idle", "TFLOP/s in products"),
    )
    for precision, figures in found:
        cells = [precision, *(f"{figures[name]:.0f}" for name in names)]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return ["", *lines]


def runs() -> tuple[list[str], int]:
    """Return the table of DM-PFL's runs, and how many bars are missed."""
    lines = table(
        f"DM-PFL on CIFAR-10, 300 rounds, the whole command (bar: {SECONDS['dmpfl']:g} s in TF32):",
        *("products in", "wall s", "of it rounds and evaluation", "own data", "100 % shift"),
    )
    missed = 0
    for precision in BARS:
        figures = run(precision)
        missed += figures[0] > SECONDS["dmpfl"] and precision == "tf32"
        lines.append(f"| {precision} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
        print(lines[-1], flush=True)
    return lines, missed


if __name__ == "__main__":
    sys.exit(main())
