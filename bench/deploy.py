"""Bytes on the socket of a real federation against those that `cost` counts.

    python bench/deploy.py            writes docs/results/deploy.md

A federation of two clients trains FedAvg for two rounds over Flower, with TLS and keys, for three
sizes of a network. The gate counts what passes it, heads and polls too, before TLS. What grows with
the messages is the slope; the rest is what a message, and the waiting for it, costs beside.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
CLIENTS, ROUNDS = 2, 2
WIDTHS = (400, 8000, 40000)
"""Hidden units of a network with one layer of them: 75 numbers for each."""
MODEL = """
from torch import nn


def network(shape, outputs):
    inner = nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, outputs)
    return nn.Sequential(nn.Flatten(), *inner)
"""
PAGE = """\
# Bytes on the socket

What passes the gate of a real federation, against what `cost` counts. FedAvg on digits, {clients}
clients, {rounds} rounds, over Flower with TLS and keys ([deployment](../deploy.md)). Down and up of
all clients together, in MB (10⁶ bytes); what TLS adds is not in it.

| Parameters | counted | on the socket | beside |
|--:|--:|--:|--:|
{rows}

- **Slope: {slope:.4f}.** A byte that `cost` counts is so many on the socket.
- **Beside: {rest:.2f} MB**, in all. These are Flower's {requests:,} requests, {beside:.1f} kB each:
  signed heads, nodes that ask every 3 seconds, heartbeats, the app that is shipped once. So it
  grows with the time that training takes, not with its messages.

Written by `python bench/deploy.py`.
"""


@dataclass(frozen=True)
class Run:
    """What one federation sent."""

    parameters: int
    counted: float
    socket: float
    requests: int


def measured(width: int, folder: Path) -> Run:
    """Run a federation with a network of a width, and read what it sent."""
    code, kept = folder / f"model{width}.py", folder / f"fed{width}"
    code.write_text(MODEL.format(width=width), encoding="utf-8")
    words = ["--clients", str(CLIENTS), "--rounds", str(ROUNDS), "--method", "fedavg"]
    words += ["--model", f"{code}:network", "--keep", str(kept), "--quiet"]
    words += ["--set", "method.local_epochs=1", "--set", "evaluate.every=0"]
    command = [sys.executable, "-m", "masquerade", "deploy", "local", *words]
    subprocess.run(command, check=True)
    costs = json.loads((kept / "summary.json").read_text(encoding="utf-8"))[0]["costs"]
    # Of a client: its rounds, and the model that is evaluated at the end.
    counted = CLIENTS * sum(sum(costs[when]["bytes"].values()) for when in ("train", "adapt"))
    traffic = json.loads((kept / "carrier" / "traffic.json").read_text(encoding="utf-8"))
    socket = sum(seen["up"] + seen["down"] for seen in traffic["clients"].values())
    requests = sum(seen["requests"] for seen in traffic["clients"].values())
    return Run(64 * width + width + 10 * width + 10, counted, socket, requests)


def main() -> None:
    """Measure, fit a line, write the page."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = [measured(width, Path(scratch)) for width in WIDTHS]
    counted, socket = ([getattr(run, name) for run in runs] for name in ("counted", "socket"))
    slope, rest = np.polyfit(counted, socket, 1)
    rows = "\n".join(
        f"| {run.parameters:,} | {run.counted / 1e6:.3f} | {run.socket / 1e6:.3f} | "
        f"{(run.socket - run.counted) / 1e6:.3f} |"
        for run in runs
    )
    page = PAGE.format(
        clients=CLIENTS,
        rounds=ROUNDS,
        rows=rows,
        slope=slope,
        rest=rest / 1e6,
        requests=round(float(np.mean([run.requests for run in runs]))),
        beside=rest / np.mean([run.requests for run in runs]) / 1e3,
    )
    (ROOT / "docs" / "results" / "deploy.md").write_text(page, encoding="utf-8")
    print(page)
    if abs(slope - 1) > 0.02:
        raise SystemExit(f"the slope is {slope:.4f}, not within 2 % of 1")


if __name__ == "__main__":
    main()
