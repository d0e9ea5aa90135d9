"""The tables, and the page of results."""

import json
import os
import platform
import statistics
from pathlib import Path

from masquerade.reproduce.page import wrapped

NAMES = {
    "ours": "Masquerade",
    "bare": "bare PyTorch loop",
    "pfl": "pfl-research",
    "fedlab": "FedLab",
    "flower": "Flower",
}
HEAD = (
    "| Framework | Cores | Seconds per round | Of a processor | Ours is faster by | Start-up, s "
    "| Accuracy, % | Steps |"
)
INTRODUCTION = """\
Every framework does the same work: the same arrays, initial weights, local steps and batch sizes,
and the same model evaluated on the same samples after the same rounds. Accuracies at the end show
it.

- A run is a process of its own, with one thread for each core it uses. Flower runs clients in
  processes beside its own, so it gets two cores.
- Processor time stands beside wall time where one process does all the work. On a machine that does
  nothing else they agree.
- Start-up is all from the start of the process to the end of the warm-up.
- Steps are counted where a framework takes them. Ours are read off the run's own account of its
  operations. Personalized methods are compared by accuracy alone.
- FedLab's Ditto cannot be run as it is shipped: it names things that it does not define. So the
  personalized methods have no peer but a bare loop, which a test compares with our own models."""


def read(path: Path) -> dict:
    """Read a framework's report."""
    return json.loads(path.read_text(encoding="utf-8"))


def ratios(slow: list[dict], fast: list[dict]) -> tuple[float, float, float]:
    """Return the smallest, median and largest ratio over repetitions."""
    found = [one["seconds"] / two["seconds"] for one, two in zip(slow, fast, strict=True)]
    return min(found), statistics.median(found), max(found)


def middle(reports: list[dict], key: str) -> float:
    return statistics.median(report[key] for report in reports)


def alone(run: str, reports: list[dict]) -> str:
    """Return the processor time of a round, where one process does it all."""
    return "–" if ":" in run else f"{middle(reports, 'processor'):.4f}"


def name_of(run: str) -> str:
    framework, _, processes = run.partition(":")
    more = f", {processes} processes" if framework == "ours" and processes else ""
    return NAMES[framework] + more


def table(protocol, found: dict[str, list[dict]]) -> str:
    """Return a protocol's table in Markdown; ratios are against our run on one core."""
    repetitions = len(next(iter(found.values())))
    every = f"central evaluation every {protocol.every}" if protocol.every else "no evaluation"
    lines = [
        wrapped(f"{protocol.title}."),
        "",
        wrapped(
            f"Batch {protocol.batch}, one epoch, rate {protocol.rate}. {protocol.rounds} rounds "
            f"after {protocol.warm} of warm-up, {every}. Medians of {repetitions} repetitions "
            "(smallest to largest). "
            + (f"Data: {protocol.data}." if protocol.real else "Random data.")
        ),
        "",
        HEAD,
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for run, reports in found.items():
        low, ratio, high = ratios(reports, found["ours"]) if "ours" in found else (0, 0, 0)
        seconds = middle(reports, "seconds")
        faster = f"{ratio:.2f} × ({low:.2f}–{high:.2f})" if run != "ours" else "1"
        steps = reports[0]["steps"]
        lines.append(
            f"| {name_of(run)} ({reports[0]['version']}) | {run.partition(':')[2] or 1} "
            f"| {seconds:.4f} | {alone(run, reports)} | {faster} | {middle(reports, 'before'):.1f} "
            f"| {middle(reports, 'accuracy'):.1f} | {'–' if steps is None else f'{steps:,}'} |"
        )
    return "\n".join(lines) + "\n"


def machine(device: str) -> str:
    """Describe where this runs."""
    import torch

    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    info = Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    load = (
        f", load average {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    )
    cpu = models[0] if models else platform.processor()
    return f"{os.cpu_count()} cores ({cpu}), torch {torch.__version__}{load}"


def section(protocol, found: dict[str, list[dict]], faults: list[str] | None, made: str) -> str:
    """Return a protocol's part of the page: how it was made, its bars, its table.

    Without `faults`, bars were not evaluated.
    """
    absent = [
        f"- Not evaluated: {name_of(ours)} against {name_of(other)}."
        for ours, other, _ in protocol.bars
        if faults is None or ours not in found or other not in found
    ]
    bars = [
        f"| {name_of(ours)} against {name_of(other)} | {least} × "
        f"| {ratios(found[other], found[ours])[1]:.2f} × |"
        for ours, other, least in protocol.bars
        if ours in found and other in found
    ]
    told = [f"- **Missed:** {fault}." for fault in faults or ()] + absent
    outcome = "\n".join(told) or "All bars hold."
    heads = ["| Bar | At least | Measured |", "|---|--:|--:|"]
    return "\n".join(
        [wrapped(made), "", *heads, *bars, "", outcome, "", table(protocol, found).strip()]
    )


def write(path: Path, name: str, text: str, order: list[str]) -> None:
    """Write one protocol's part of the page, and leave the others."""
    _, *old = path.read_text(encoding="utf-8").split("\n## ") if path.is_file() else [""]
    parts = {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip() for part in old}
    parts[name.upper()] = text
    whole = ["# Speed beside other frameworks", "", INTRODUCTION]
    for title in (each.upper() for each in order):
        if title in parts:
            whole += ["", f"## {title}", "", parts[title]]
    path.write_text("\n".join(whole) + "\n", encoding="utf-8")
