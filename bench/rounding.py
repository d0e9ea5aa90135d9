"""Write a page of what rounding messages costs in accuracy and saves in bytes, on digits.

    python bench/rounding.py docs/results/wire.md --seeds 1 2 3

Settings are those of `runs/digits.toml`, which were chosen without any rounding.
"""

import argparse
import datetime
from dataclasses import replace
from pathlib import Path

import torch

from masquerade.config import toml as configuration
from masquerade.config.resolve import resolve, trainings
from masquerade.evaluation.evaluate import Evaluator
from masquerade.reproduce.page import wrapped
from masquerade.results import AVERAGED, Summary
from masquerade.simulation.build import simulating
from masquerade.simulation.server import train as rounds

SHOWN = ("fedavg", "dmpfl")
WIRES = ("same", "bfloat16", "int8")

TEXT = """# What rounding messages costs

Every number in a message is rounded to another type (`train.message_dtype`), down and up. Both
sides go on with the rounded numbers. Test data, mean over clients and seeds ± the standard
deviation over seeds.

{made}

```sh
python bench/rounding.py {page} --seeds {seeds}
```

`same` is the network's own type, float32 here. MB are per client, down and up, masks included, over
all of training. The share is that of the same method at `same`.

| method | numbers as | own data % | shift averaged % | MB | share |
|---|---|--:|--:|--:|--:|
{rows}

The sizes of single messages are measured by `python bench/wire.py`.
"""


def trained(name: str, wire: str, seed: int) -> Summary:
    """Train a method; return the summary of its default view."""
    config = configuration.parse(configuration.read_file(Path("runs/digits.toml")))
    train = replace(config.train, message_dtype=wire, seeds=(seed,))
    config = replace(
        config, methods=(name,), train=train, evaluate=replace(config.evaluate, every=0)
    )
    (training,) = trainings(config)
    with simulating(resolve(config, training)) as simulation:
        progress = rounds(simulation.server, simulation.engine, simulation.begin())
        summaries, _ = Evaluator.of(simulation).final(progress)
    return summaries[0]


def mean_and_range(values: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    figures = torch.tensor(values, dtype=torch.float64)
    return f"{float(figures.mean()):.2f} ± {float(figures.std(correction=0)):.2f}"


def main(page: Path, seeds: list[int]) -> None:
    rows, whole = [], {}
    for name in SHOWN:
        for wire in WIRES:
            found = [trained(name, wire, seed) for seed in seeds]
            sent = [one.costs.train.bytes.both / 1e6 for one in found]
            mean = sum(sent) / len(sent)
            whole.setdefault(name, mean)
            own = mean_and_range([one.accuracy.own.mean for one in found])
            shift = mean_and_range([one.accuracy.shift[AVERAGED].mean for one in found])
            share = f"{100 * mean / whole[name]:.1f} %"
            rows.append(f"| {name} | {wire} | {own} | {shift} | {mean:.3f} | {share} |")
            print(rows[-1], flush=True)
    one, today = found[0], datetime.date.today().isoformat()
    made = f"{one.data}, {one.network}, {one.clients} clients, {one.rounds} rounds, seeds"
    listed = " ".join(map(str, seeds))
    text = TEXT.format(
        made=wrapped(f"{made} {listed}. Made on {today} with torch {torch.__version__} by"),
        seeds=listed,
        page=page,
        rows="\n".join(rows),
    )
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    main(options.page, options.seeds)
