"""Write the page of costs: Table 4 of DM-PFL and Figure 2 of FedMask beside our own counts.

python bench/costs.py docs/results/costs.md
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from masquerade.core import Task
from masquerade.cost.bandwidth import FEDMASK
from masquerade.cost.flops import Meter
from masquerade.cost.forecast import Forecast, forecast
from masquerade.methods import METHODS
from masquerade.models import VGG16, build
from masquerade.reproduce.page import wrapped

ROUNDS, CLIENTS, SHARE, SAMPLES = 300, 100, 0.1, 450
"""The setting of Table 4: 60,000 images, 75 % of them for training, over a hundred clients."""
PARTS = int(ROUNDS * SHARE)
"""How often a client takes part."""

SETTINGS = {
    "feddst": {"densities": "uniform", "first_dense": True},
    "fedrep": {"head_epochs": 5},
}
"""What differs from a method's defaults, so that it is what the table has."""

TABLE_4 = {
    "local": (0.0, 6.12),
    "fedavg": (90.75, 6.12),
    "fedprox": (90.75, 6.12),
    "feddst": (46.44, 3.90),
    "fedavg_ft": (90.75, 6.32),
    "lgfedavg": (60.71, 6.12),
    "fedper": (90.53, 6.12),
    "fedrep": (90.53, 8.28),
    "ditto": (90.75, 12.27),
    "apfl": (90.75, 12.26),
    "dmpfl": (36.58, 3.91),
}
"""As printed (KDD 2023): communication in MB, and 10¹² FLOP."""

HOURS, VGG_ROUNDS = 59.67, 2000
"""Figure 2 of FedMask (SenSys 2021): FedAvg on VGG16, at 10 MB/s."""

TEXT = """# Costs: ours and the papers'

Made without training, from schedules, messages and masks, by

```sh
python bench/costs.py {page}
```

## Table 4 of DM-PFL

CIFAR-10, {clients} clients of {samples} samples, {share:.0%} of them in each of {rounds} rounds,
five epochs, the CNN of {parameters:,} parameters, S = 0.5. Figures are means per client over the
run.

| convention | bytes | FLOPs |
|---|---|---|
| the papers' | values alone, the mean of both directions | three times the forward pass in masks |
| ours | what is encoded, both ways, with masks | what masks allow, and regrowth's gradients |

`masquerade report RUN --costs` prints a run's costs in ours, and with `--convention paper` in the
papers'.

The paper's figures are as printed. Percentages are computed from them. Sparse methods have uniform
layers under a dense first one, as in the paper's table. FedRep has five epochs on the head, which
its figure implies.

{table}

{mib}

## Where the figures differ, and why

{reasons}

## Figure 2 of FedMask

{figure}
"""


@dataclass(frozen=True)
class Facts:
    """What the reasons are computed from."""

    parameters: int
    first: float
    """The first layer's share of the forward pass."""
    message: float
    """The share of the parameters that a sparse message holds."""


def network() -> Task:
    return Task(build("cifar_cnn", (3, 32, 32), 10, seed=1))


def foreseen(name: str) -> Forecast:
    """Forecast a method in the setting of the table."""
    line = METHODS[name]
    method = line.method(**dict(line.settings) | SETTINGS.get(name, {}))
    x, y = torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
    return forecast(method, network(), x, y, [SAMPLES] * CLIENTS, ROUNDS, SHARE)


def facts() -> Facts:
    """Read off the network what the arithmetic needs."""
    task = network()
    layers = list(Meter(task).forward(torch.zeros(1, 3, 32, 32)).values())
    weights = [task.initial[layer.weight].numel() for layer in task.layers if layer.weight]
    kept = task.parameters - sum(weights[1:]) / 2
    return Facts(task.parameters, layers[0] / sum(layers), kept / task.parameters)


def table(found: dict[str, Forecast]) -> str:
    """Set the table: the paper's figures, ours in its convention, ours."""
    groups = ("MB: paper", "papers' convention", "ours", "10¹² FLOP: paper", "papers' convention")
    lines = ["| Method | " + " | ".join(groups) + " | ours |", "|---" + "|--:" * 6 + "|"]
    base, (whole_sent, whole_spent) = found["fedavg"], TABLE_4["fedavg"]
    for name, (sent, spent) in TABLE_4.items():
        cost = found[name]
        cells = [
            _cell(sent, whole_sent, 1),
            _cell(cost.paper_bytes, base.paper_bytes, 2**20),
            _cell(cost.down + cost.up, base.down + base.up, 1e6),
            _cell(spent, whole_spent, 1),
            _cell(cost.paper_flops, base.paper_flops, 1e12),
            _cell(cost.masked, base.masked, 1e12),
        ]
        lines.append(f"| {METHODS[name].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: float, whole: float, unit: float) -> str:
    return f"{value / unit:.2f} ({value / whole:.1%})"


def mib(known: Facts) -> str:
    """Say what a megabyte is."""
    size = PARTS * 4 * known.parameters
    return (
        f"The paper's MB must be 2²⁰ bytes: {PARTS} times {known.parameters:,} float32 numbers are"
        f" {size / 1e6:.2f}·10⁶ bytes or {size / 2**20:.2f}·2²⁰, against {TABLE_4['fedavg'][0]}"
        " printed. The second column is in these too, ours in 10⁶ bytes."
    )


def spaced(text: str) -> str:
    """Put a space before percent signs."""
    return re.sub(r"(?<=\d)%", " %", text)


def reasons(found: dict[str, Forecast], known: Facts) -> list[str]:
    """Explain the differences, as far as arithmetic does."""
    return [
        wrapped(f"- {spaced(text)}", "  ")
        for text in (
            _why_bytes(found, known),
            _why_flops(found, known),
            _why_fedavg(found["fedavg"], known),
            f"**FedAvg+FT**: the paper adds the fine-tuning, one participation more"
            f" ({(PARTS + 1) / PARTS:.1%}). We count what is done before use apart (`adapt`).",
            "**FedRep**: a frozen body costs its forward pass alone. The paper prints 131 % beside"
            f" two figures whose ratio is {TABLE_4['fedrep'][1] / TABLE_4['fedavg'][1]:.1%}.",
            "**Ours against the papers' convention**: masks cost bytes, and the dense weight"
            " gradients that regrowth reads cost operations. The first layer needs no gradient of"
            " its input, so a step is less than three forward passes. A forecast knows the first"
            " masks alone, which all clients share. So DM-PFL's figure in our convention lacks what"
            " personal refine trains later, and counts every mask as new. A run counts what it"
            " trains, and sends what changed of a mask.",
        )
    ]


def _why_bytes(found: dict[str, Forecast], known: Facts) -> str:
    printed = TABLE_4["dmpfl"][0] / TABLE_4["fedavg"][0]
    theirs = TABLE_4["feddst"][0] / TABLE_4["fedavg"][0]
    ours = found["dmpfl"].paper_bytes / found["fedavg"].paper_bytes
    return (
        f"**Communication of DM-PFL: {printed:.1%} printed, {ours:.1%} here.** A sparse message"
        f" holds {known.message:.1%} of the parameters: the first layer, the biases, and half of"
        f" the rest. In the paper it must be {theirs:.1%}, because FedDST sends one in every"
        f" round and costs that much. With such messages our schedule gives"
        f" {ours * theirs / known.message:.1%}. The rest is the schedule. Ours sends nothing in"
        f" {1 - ours / known.message:.1%} of the exchanges; the paper's figures take"
        f" {1 - printed / theirs:.1%}. The paper prints neither the lengths of its phases nor what"
        f" makes its messages larger. A mask of one bit per parameter is {1 / 32:.1%} of a"
        " dense message, so masks were not counted in every message, if in any."
    )


def _why_flops(found: dict[str, Forecast], known: Facts) -> str:
    printed = TABLE_4["dmpfl"][1] / TABLE_4["fedavg"][1]
    whole, sparse = found["fedavg"].paper_flops / 1e12, found["dmpfl"].paper_flops / 1e12
    more = TABLE_4["fedavg"][1] - whole
    return (
        f"**FLOPs of DM-PFL: {printed:.1%} printed, {sparse / whole:.1%} here.** The first layer is"
        f" dense and {known.first:.1%} of the forward pass, and half of the others remains:"
        f" {known.first:.3f} + {1 - known.first:.3f} / 2 = {(1 + known.first) / 2:.3f}. The paper"
        f" counts {more:.2f}·10¹² more for FedAvg than we do. If sparsity does not touch these, and"
        f" DM-PFL has them too, it costs {sparse:.2f} + {more:.2f} = {sparse + more:.2f}·10¹² or"
        f" {(sparse + more) / (whole + more):.1%}, and {TABLE_4['dmpfl'][1]} is printed. So it"
        " seems that something else is counted, and not that something else is masked."
    )


def _why_fedavg(fedavg: Forecast, known: Facts) -> str:
    printed, whole = TABLE_4["fedavg"][0], PARTS * 4 * known.parameters / 2**20
    return (
        f"**FedAvg: {fedavg.paper_bytes / 2**20:.2f} MB here, {whole:.2f} by the number of rounds,"
        f" {printed} printed.** What the first round would download is the initial model, which"
        f" both sides have: of {ROUNDS} rounds' downloads the first are free. The printed figure is"
        f" {1 - printed / whole:.1%} below {PARTS} models; we could not explain that."
    )


def figure() -> str:
    """Compute the hours of FedMask's Figure 2 from the number of parameters."""
    with torch.device("meta"):
        count = sum(value.numel() for value in VGG16().parameters())
    size = 4 * count * VGG_ROUNDS
    hours = FEDMASK.seconds(size, size) / 3600
    return (
        f"FedAvg on VGG16 ({count:,} parameters for ten classes, float32) for {VGG_ROUNDS:,} rounds"
        f" at {FEDMASK.text}: {hours:.2f} hours, and the paper has {HOURS}. So it counts both"
        ' directions, and its "2,000 epochs" are rounds.'
        " `masquerade report RUN --costs --bandwidth 10MB/s` gives these times for any run, per"
        " round and in all. The report page draws them beside the computing, as Figure 3 does."
    )


def main(page: Path) -> None:
    torch.set_num_threads(1)
    found = {name: foreseen(name) for name in TABLE_4}
    known = facts()
    text = TEXT.format(
        page=page,
        clients=CLIENTS,
        samples=SAMPLES,
        share=SHARE,
        rounds=ROUNDS,
        parameters=known.parameters,
        table=table(found),
        mib=wrapped(spaced(mib(known))),
        reasons="\n".join(reasons(found, known)),
        figure=wrapped(spaced(figure())),
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(spaced(text), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="the page to write")
    main(parser.parse_args().page)
