"""Seconds per round of Masquerade, other frameworks and a bare PyTorch loop, on the same work.

    python bench/peers --install         # once: a virtual environment for every peer
    python bench/peers                   # all protocols; writes docs/results/peers.md
    python bench/peers --only s1 s1-50   # some of them, and their parts of the page
    python bench/peers --only s2 s4-ditto --device cuda --precision tf32   # writes peers-gpu.md
    python bench/peers --quick           # tiny, on random data, without peers, in one process

Exit status 1 when a bar is missed, 2 when frameworks did unequal work. Every run is a process of
its own with one thread for each process; repetitions of all runs are interleaved, and ratios are
medians over repetitions. MNIST and CIFAR-10 are read from the cache (`masquerade data fetch`).
"""

import argparse
import dataclasses
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib import import_module
from pathlib import Path

# Runs from a checkout on a machine where nothing can be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import page
from protocol import read, save
from protocols import PROTOCOLS, Protocol, arrange

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEERS = {
    "pfl": "pfl[pytorch]==0.6.0",
    "flower": "flwr[simulation]==1.41.0",
    "fedlab": "fedlab==1.3.0",
}
"""What is installed for each of the other frameworks."""
QUIET = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
"""One thread, and nobody calls home."""


PAGES = {"cpu": "peers.md", "cuda": "peers-gpu.md"}
PRECISION = {"cpu": "float32", "cuda": "tf32"}
"""What the published page of a device is of."""

Where = tuple[str, str]
"""A device and a precision."""


def venv(name: str) -> Path:
    """Return where a peer's virtual environment is made; git ignores it."""
    return ROOT / f".venv-{name}"


def install() -> None:
    """Make a virtual environment for every peer, with our versions of torch and numpy."""
    import numpy
    import torch

    ours = [f"torch=={torch.__version__.split('+')[0]}", f"numpy=={numpy.__version__}"]
    for name, package in PEERS.items():
        subprocess.run([sys.executable, "-m", "venv", str(venv(name))], check=True)
        pip = [str(venv(name) / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *ours, package], check=True)


def interpreters(given: list[str]) -> dict[str, str]:
    """Return the Python of every framework that is there."""
    found = {"ours": sys.executable, "bare": sys.executable}
    found |= {n: str(venv(n) / "bin" / "python") for n in PEERS if venv(n).exists()}
    return found | dict(pair.split("=", 1) for pair in given)


def measure(run: str, protocol: Protocol, python: str | None, folder: Path, where: Where) -> dict:
    """Let one framework do the work in a process of its own, or in this one; return its report."""
    framework, _, processes = run.partition(":")
    job, out = folder / "work.json", folder / "report.json"
    out.unlink(missing_ok=True)
    work = protocol.work(str(folder / "data"), *where)
    work = dataclasses.replace(work, processes=int(processes or 1), begun=time.time())
    save(work, job)
    if python is None:
        module = import_module(f"run_{framework}")
        module.run(*read(str(job))).write(out)
        return page.read(out)
    # Where nothing can be installed, wheels are carried and named by PYTHONPATH.
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    home = {"FLWR_HOME": str(folder / "flower"), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [python, str(HERE / "stand_ins.py"), str(HERE / f"run_{framework}.py"), str(job), str(out)],
        env=os.environ | QUIET | home | {"PFL_PYTORCH_DEVICE": where[0]},
        capture_output=True,
        text=True,
    )
    if not out.exists():
        raise SystemExit(f"{run} failed on {protocol.name}:\n{done.stderr[-3000:]}")
    return page.read(out)


def compare(
    protocol: Protocol,
    runs: list[str],
    pythons: dict[str, str | None],
    repetitions: int,
    where: Where,
) -> dict[str, list[dict]]:
    """Measure every framework on a protocol, in turn and so many times."""
    found: dict[str, list[dict]] = {run: [] for run in runs}
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        arrange(protocol, folder / "data")
        for _ in range(repetitions):
            for run in runs:
                python = pythons[run.partition(":")[0]]
                found[run].append(measure(run, protocol, python, folder, where))
    return found


def unequal(protocol: Protocol, found: dict[str, list[dict]]) -> list[str]:
    """Say where frameworks did not do the same work, or did not end at the same accuracy."""
    faults = []
    first = "bare" if "bare" in found else next(iter(found))
    reference = statistics.median(report["accuracy"] for report in found[first])
    for run, reports in found.items():
        # Where clients differ in size, steps are those of the bare loop, and ours are not counted.
        told = {report["steps"] for report in reports} - {None, protocol.steps}
        steps = told if protocol.steps is not None else set()
        evaluations = {report["evaluations"] for report in reports} - {protocol.evaluations}
        accuracy = statistics.median(report["accuracy"] for report in reports)
        if steps:
            faults.append(f"{protocol.name}: {run} took {steps} steps, not {protocol.steps}")
        if evaluations:
            faults.append(
                f"{protocol.name}: {run} evaluated {evaluations} times, not {protocol.evaluations}"
            )
        if abs(accuracy - reference) > protocol.apart:
            faults.append(
                f"{protocol.name}: {run} ends at {accuracy:.1f} %, {first} at {reference:.1f}"
            )
    return faults


def missed(protocol: Protocol, found: dict[str, list[dict]]) -> list[str]:
    """Say which bars are missed."""
    faults = []
    for ours, other, least in protocol.bars:
        if ours in found and other in found:
            ratio = page.ratios(found[other], found[ours])[1]
            if ratio < least:
                faults.append(
                    f"{protocol.name}: {ours} is {ratio:.2f} × as fast as {other}, not {least} ×"
                )
    return faults


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PROTOCOLS), default=list(PROTOCOLS))
    parser.add_argument("--runs", nargs="+", help="frameworks, such as ours ours:2 bare pfl")
    parser.add_argument("--rounds", type=int, help="measured rounds, instead of the protocol's")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peer-python", nargs="+", default=[], metavar="NAME=PATH")
    parser.add_argument("--data", choices=["real", "random"], default="real")
    parser.add_argument("--page", type=Path, help="where the page of results is written")
    return parser.parse_args()


def main() -> int:
    given = options()
    if given.install:
        install()
        return 0
    pythons = dict.fromkeys(["ours", "bare"]) if given.quick else interpreters(given.peer_python)
    slow, unfair = [], []
    evaluated = not given.quick
    whole = evaluated and given.data == "real" and not (given.rounds or given.runs)
    whole = whole and given.repetitions == 3 and given.precision == PRECISION[given.device]
    usual = ROOT / "docs" / "results" / PAGES[given.device] if whole else None
    written = given.page or usual
    for name in given.only:
        protocol = PROTOCOLS[name].on(given.device)
        protocol = protocol.sized(given.rounds, given.quick, given.data)
        runs = [run for run in given.runs or protocol.runs if run.partition(":")[0] in pythons]
        repetitions = 1 if given.quick else given.repetitions
        where = given.device, given.precision
        began = page.machine(given.device)
        found = compare(protocol, runs, pythons, repetitions, where)
        print(page.table(protocol, found), flush=True)
        apart = unequal(protocol, found) if not given.quick else []
        short = missed(protocol, found) if evaluated else []
        unfair, slow = unfair + apart, slow + short
        if written is not None:
            command = shlex.join(["python", "bench/peers", *sys.argv[1:]])
            made = f"`{command}` on {date.today()}, {began}."
            text = page.section(protocol, found, short + apart if evaluated else None, made)
            page.write(written, name, text, list(PROTOCOLS))
    for line in unfair:
        print("UNEQUAL", line)
    for line in slow:
        print("MISSED", line)
    return 2 if unfair else 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
