"""What mixed precision changes: the same trainings with products in float32, TF32 and bfloat16.

    python bench/precision.py runs/precision/digits.toml     # minutes on a CPU
    python bench/precision.py runs/precision/cifar10.toml    # on a GPU, which has TF32 too
    python bench/precision.py                                # only write the page

Results are files beside the page, one per training, precision and seed: what is there is not done
again. `--set train.rounds=300` and `--set train.seeds=[1,2,3]` make it longer.
"""

import argparse
import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from masquerade.config import toml as configuration
from masquerade.config.resolve import Training, alone, resolve, trainings
from masquerade.config.settings import Config
from masquerade.evaluation.evaluate import Evaluator
from masquerade.report.tables import half_width
from masquerade.reproduce.page import wrapped
from masquerade.reproduce.table import settings
from masquerade.results import Summary
from masquerade.results.json_records import to_json
from masquerade.simulation.build import simulating
from masquerade.simulation.server import train as rounds

Record = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
PRECISIONS = {"cuda": ("float32", "tf32", "bfloat16"), "cpu": ("float32", "bfloat16")}

TEXT = """# What mixed precision changes

The same trainings, seed by seed, with products in other precisions (`compute.precision`). Weights,
sums and losses stay float32. A CPU has no TF32 and takes float32 for it.

| column | says |
|---|---|
| Δ | the difference from float32 with the same seed, averaged over seeds |
| (…) | half of the 95 % interval over seeds (Student's t); a smaller difference may be chance |
| seconds | training and evaluation on a GPU, by the clock; none of a CPU, which is shared |

`python bench/precision.py` wrote this page from the files in [`precision`](precision).

{sections}
"""

FIGURES: dict[str, Callable[[Record], float]] = {
    "own data": lambda result: float(result["accuracy"]["shift"]["0"]["mean"]),
    "100 % shift": lambda result: float(result["accuracy"]["shift"]["100"]["mean"]),
}


def train(config: Config, training: Training) -> tuple[list[Record], Record]:
    """Train and evaluate; return the summaries by name, and what they were made on."""
    with simulating(resolve(config, training)) as simulation:
        evaluator, progress = Evaluator.of(simulation), simulation.begin()
        rounds(simulation.server, simulation.engine, progress, evaluator.between_rounds)
        summaries, _ = evaluator.final(progress)
        cuda = simulation.server.device.type == "cuda"
        made = {
            "date": datetime.date.today().isoformat(),
            "device": torch.cuda.get_device_name() if cuda else "CPU",
            "torch": torch.__version__,
            "engine": simulation.engine.name,
        }
    return [short(summary) for summary in summaries], made


def short(summary: Summary) -> Record:
    """Return what the page needs of a summary."""
    return {
        "view": summary.view,
        "seed": summary.seed,
        "rounds": summary.rounds,
        "accuracy": to_json(summary.accuracy),
        "seconds": summary.costs.total_seconds,
        "memory": dict(summary.costs.memory),
        "diverged": summary.diverged,
    }


def run(source: Path, assignments: Sequence[str], folder: Path) -> None:
    """Do what is missing of a configuration in every precision that its device has."""
    tables = configuration.apply(configuration.read_file(source), assignments)
    path = source.resolve()
    named = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    device = configuration.parse(tables).compute.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    for precision in PRECISIONS[device]:
        chosen = (f"compute.precision={precision}", f"compute.device={device}")
        config = configuration.parse(configuration.apply(tables, chosen))
        for training in trainings(config):
            # As a file gives it back, so that the two can be compared.
            own = json.loads(json.dumps(settings(alone(config, training))))
            files = [
                folder / f"{source.stem}-{name}-{precision}-seed{training.seed}.json"
                for name in training.names
            ]
            if all(file.is_file() and _read(file)["settings"] == own for file in files):
                continue
            summaries, made = train(config, training)
            for name, file, summary in zip(training.names, files, summaries, strict=True):
                title = configuration.title_of(name, config)
                record = {"source": named, "title": title, "precision": precision}
                record |= {"made": made, "result": summary, "settings": own}
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
                figures = ", ".join(f"{name} {read(summary):.2f}" for name, read in FIGURES.items())
                print(f"{file.stem}: {figures}, {summary['seconds']:.1f} s", flush=True)


def _read(file: Path) -> Record:
    found: Record = json.loads(file.read_text(encoding="utf-8"))
    return found


def write(page: Path) -> None:
    """Write the page from the results that lie beside it."""
    found = [_read(file) for file in sorted(page.with_suffix("").glob("*.json"))]
    if not found:
        raise SystemExit(f"nothing was done yet: there is no file in {page.with_suffix('')}")
    sources = dict.fromkeys(record["source"] for record in found)
    parts = [section([each for each in found if each["source"] == source]) for source in sources]
    page.write_text(TEXT.format(sections="\n\n".join(parts)), encoding="utf-8")


def section(records: list[Record]) -> str:
    """Return the table of one configuration, and on what it was made."""
    rounds = {record["result"]["rounds"] for record in records}
    source = records[0]["source"]
    if len(rounds) > 1:
        raise SystemExit(f"results of {source} have {sorted(rounds)} rounds; remove the older ones")
    data = records[0]["settings"]["data"]
    made = {(r["made"]["device"], r["made"]["torch"], r["made"]["date"]) for r in records}
    where = "; ".join(f"{device}, torch {torch}, {date}" for device, torch, date in sorted(made))
    head = ["method", "products in", "seeds", *FIGURES, *(f"Δ {name}" for name in FIGURES)]
    rows = [[*head, "seconds"]]
    for title in dict.fromkeys(record["title"] for record in records):
        own = [record for record in records if record["title"] == title]
        by_seed = {
            precision: {
                r["result"]["seed"]: r["result"] for r in own if r["precision"] == precision
            }
            for precision in PRECISIONS["cuda"]
        }
        rows += [row(title, name, by_seed) for name, results in by_seed.items() if results]
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    table = "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
    title = f"{data['name']}, {data['clients']} clients, {data['partition']}"
    return (
        f"## {title}, {rounds.pop()} rounds\n\n"
        f"{wrapped(f'`python bench/precision.py {source}`: {where}.')}\n\n{table}"
    )


def row(title: str, precision: str, by_seed: dict[str, dict[int, Record]]) -> list[str]:
    """Return the cells of a method in a precision; differences are taken seed by seed."""
    results, exact = by_seed[precision], by_seed["float32"]
    cells = [title, precision, ", ".join(str(seed) for seed in results)]
    cells += [_shown([read(one) for one in results.values()]) for read in FIGURES.values()]
    for read in FIGURES.values():
        pairs = [(read(one), read(exact[seed])) for seed, one in results.items() if seed in exact]
        alike = precision == "float32" or not pairs
        cells.append("–" if alike else _shown([one - other for one, other in pairs], "+.2f"))
    seconds = [one["seconds"] for one in results.values() if "cuda" in one["memory"]]
    return [*cells, f"{sum(seconds) / len(seconds):.1f}" if seconds else "–"]


def _shown(values: list[float], form: str = ".2f") -> str:
    half = half_width(values)
    within = "" if half is None else f" ({half:.2f})"
    return f"{sum(values) / len(values):{form}}{within}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, nargs="?", help="a configuration")
    parser.add_argument("--set", action="append", default=[], help="section.key=value")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/precision.md")
    given = parser.parse_args()
    if given.source is not None:
        run(given.source, given.set, given.out.with_suffix(""))
    write(given.out)


if __name__ == "__main__":
    main()
