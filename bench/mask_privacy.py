"""Label inference from masks: what a curious server learns of clients' labels from masks alone.

    python bench/mask_privacy.py --data mnist   # writes raw figures and the page, in minutes
    python bench/mask_privacy.py                # only writes the page

Every method whose uploads have masks or bits is trained as its settings are by default. The server
reads its masks and bits, and no value. What it decides by is found on other clients or seeds than
it is judged on. A training and attack that has its file beside the page is not done again.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from masquerade.config import toml
from masquerade.config.resolve import Training, resolve
from masquerade.config.settings import Compute, Config, Data, Evaluate, Train
from masquerade.engine.base import Engine, Job, Outcome
from masquerade.errors import MasqueradeError
from masquerade.methods import METHODS
from masquerade.report.tables import half_width
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.server import train

PAGE = Path(__file__).resolve().parents[1] / "docs/results/mask-privacy.md"
RAW = PAGE.with_suffix("")
PARTITIONS = {"pathological:2": "two classes per client", "dirichlet:0.3": "Dirichlet 0.3"}
SEEDS = (1, 2, 3)
CLIENTS, FRACTION, ROUNDS = 40, 0.08, 6
FOLDS, STRENGTHS = 5, (0.01, 0.1, 1.0, 10.0)
Record = dict[str, Any]

TEXT = """# What masks tell of labels

A curious server reads the masks and bits that clients send, and no value. It infers each client's
label mix, and tells a client again from a later mask.

| column | says |
|---|---|
| pair | clients with two classes whose pair is named exactly, in percent; chance {pair_chance} |
| error | mean total variation between the inferred mix and the true one, in percent; Dir(0.3) |
| constant | the same error of the best guess that is the same for all clients |
| last layer | read by how much is kept of each class's row, by a rule found on other seeds |
| all masks | read by a server that knows the labels of four fifths of the other clients |
| again | clients told by a mask of the first rounds from one of the last; chance {again_chance} |
| (…) | half of the 95 % interval over seeds (Student's t) |

- {data}, {clients} clients, {rounds} rounds, all clients in each, network `mlp`.
- Methods are as they were by default on that day; seeds {seeds}, each a partition and a training.
- A mask that is the same for all clients tells nothing of one, and is left out.
- Methods without a row send no mask: they send values, which tell more. A dash is not measured yet.

So a mask is no protection by itself. [Privacy](../privacy.md) says what is.

`python bench/mask_privacy.py` wrote this page from the files in [`mask-privacy`](mask-privacy),
and `python bench/mask_privacy.py --data mnist` those.

{table}
"""


@dataclass
class Watched:
    """An engine that notes the masks and bits of every upload."""

    engine: Engine
    seen: list[dict[str, Tensor]] = field(default_factory=list)
    """By round: bits [clients, …] by name, of what differs between clients."""
    masked: bool = False
    """Whether an upload had masks or bits."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds."""
        outcome = self.engine.work(job)
        found: dict[str, Tensor] = {}
        for part, own in outcome.uploads.items():
            for name, values in own.values.items():
                held = own.held(name)
                if held is not None:
                    found[f"{part}/{name}"] = held
                if values.dtype is torch.bool:
                    found[f"{part}/{name}="] = values if held is None else values & held
        self.masked |= bool(found)
        if job.round.kind == "train" and not self.masked:
            raise NoMasks
        self.seen.append({n: bits.clone() for n, bits in found.items() if differs(bits)})
        return outcome


class NoMasks(Exception):
    """A method sends values alone."""


def differs(bits: Tensor) -> bool:
    """Tell whether clients differ in some bits."""
    return bool((bits != bits[:1]).any())


@dataclass(frozen=True, eq=False)
class Attacked:
    """What the server has of one training, and the truth."""

    rows: Tensor
    """[clients, classes, features]: how much of each class's row in the last layer is kept."""
    masks: Tensor
    """[clients, entries]: all bits, averaged over rounds."""
    first: Tensor
    last: Tensor
    """[clients, entries]: those of the first and the last round that have the same masks."""
    mix: Tensor
    """[clients, classes]: the truth, of training labels."""


def attacked(made: Simulation, seen: list[dict[str, Tensor]]) -> Attacked | None:
    """Put together what a server has seen; None where no mask tells clients apart."""
    told = [each for each in seen if each]
    if not told:
        return None
    names = dict.fromkeys(name for each in told for name in each)
    mean = {
        name: torch.stack([each[name].float() for each in told if name in each]).mean(0)
        for name in names
    }
    task, data = made.server.task, made.federation
    head = next(each for each in reversed(task.layers) if each.weight).weight
    rows = [
        value.flatten(2).mean(2)
        for name, value in mean.items()
        if name.rstrip("=").endswith(f"/{head}")
    ]
    classes = data.classes or 0
    nothing = torch.zeros(len(next(iter(mean.values()))), classes)
    counts = [data.y[own].bincount(minlength=classes).double() for own in data.train]
    # Masks that come once, at a setup, are in the profile alone.
    several = [set(each) for each in told]
    begun, ended = next(
        (
            (one, other)
            for one, other in itertools.combinations(range(len(told)), 2)
            if several[one] == several[other] and one + 1 < other
        ),
        (0, len(told) - 1),
    )
    later = max(place for place in range(ended, len(told)) if several[place] == several[begun])
    return Attacked(
        rows=_apart(torch.stack(rows or [nothing], -1)),
        masks=torch.cat([value.flatten(1) for value in mean.values()], 1),
        first=_flat(told[begun]),
        last=_flat(told[later]),
        mix=torch.stack([count / count.sum() for count in counts]),
    )


def _flat(masks: dict[str, Tensor]) -> Tensor:
    return torch.cat([bits.flatten(1).float() for bits in masks.values()], 1)


def _apart(rows: Tensor) -> Tensor:
    """Describe rows of classes: by how much more is kept than by other clients, and other rows."""
    others = rows - rows.mean(0)
    scaled = others / others.std(0).clamp_min(1e-9)
    return torch.cat([scaled, scaled - scaled.mean(1, keepdim=True)], -1)


def from_rows(judged: Attacked, others: list[Attacked]) -> Tensor:
    """Infer mixes from the last layer, by a line through what other trainings had."""
    x = torch.cat([each.rows.flatten(0, 1) for each in others]).double()
    y = torch.cat([each.mix.flatten() for each in others])
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    design = torch.cat([x, ones], 1)
    gram = design.T @ design + 1e-3 * torch.eye(design.shape[1], dtype=torch.float64)
    slope = torch.linalg.solve(gram, design.T @ y)
    return _mixes(judged.rows.double() @ slope[:-1] + slope[-1])


def from_masks(judged: Attacked) -> Tensor:
    """Infer the mixes of each fifth of the clients from those of the others, by ridge regression.

    How strongly it is regularized is chosen on the clients whose labels the server knows.
    """
    masks, found = judged.masks.double(), torch.empty_like(judged.mix)
    fold = torch.arange(len(masks)) % FOLDS
    for part in range(FOLDS):
        known, asked = fold != part, fold == part
        scores = {each: _left_out(masks[known], judged.mix[known], each) for each in STRENGTHS}
        best = min(scores, key=scores.__getitem__)
        found[asked] = _ridge(masks[known], judged.mix[known], masks[asked], best)
    return found


def _ridge(x: Tensor, y: Tensor, asked: Tensor, strength: float) -> Tensor:
    mean = x.mean(0)
    x, asked = x - mean, asked - mean
    gram = x @ x.T
    weight = strength * gram.diagonal().mean().clamp_min(1e-12)
    dual = torch.linalg.solve(gram + weight * torch.eye(len(x), dtype=x.dtype), y - y.mean(0))
    return _mixes(asked @ x.T @ dual + y.mean(0))


def _left_out(x: Tensor, y: Tensor, strength: float) -> float:
    """Return the error on each third of clients, by what the others tell."""
    fold = torch.arange(len(x)) % 3
    errors = [
        variation(
            _ridge(x[fold != part], y[fold != part], x[fold == part], strength), y[fold == part]
        )
        for part in range(3)
    ]
    return float(torch.cat(errors).mean())


def _mixes(scores: Tensor) -> Tensor:
    """Make shares of scores: none negative, and one in all."""
    shares = scores.clamp_min(1e-6)
    return shares / shares.sum(1, keepdim=True)


def variation(one: Tensor, other: Tensor) -> Tensor:
    """Return the total variation between mixes."""
    return (one - other).abs().sum(1) / 2


def pairs(found: Tensor, truth: Tensor) -> list[bool]:
    """Tell of clients with two classes whether these are the two that are named."""
    two = (truth > 0).sum(1) == 2
    named, real = (each[two].topk(2).indices.sort().values for each in (found, truth))
    return (named == real).all(1).tolist()


def again(seen: Attacked) -> list[bool]:
    """Tell whether the first mask that is nearest to a client's last one is its own."""
    first, last = (each - each.mean(0) for each in (seen.first, seen.last))
    first, last = (each / each.norm(dim=1, keepdim=True).clamp_min(1e-12) for each in (first, last))
    nearest = (last @ first.T).argmax(1)
    return (nearest == torch.arange(len(nearest))).tolist()


def trained(name: str, data: str, partition: str, seed: int) -> Attacked | None:
    """Train a method, and return what its server has seen of masks."""
    config = Config(
        methods=(name,),
        data=Data(name=data, clients=CLIENTS, partition=partition, fraction=FRACTION, seed=seed),
        train=Train(model="mlp", rounds=ROUNDS, seeds=(seed,)),
        evaluate=Evaluate(every=0, degrees=(0,)),
        compute=Compute(engine="batched", clients_per_chunk=CLIENTS),
    )
    spec = resolve(config, Training(toml.method_of(name, config), (name,), seed))
    with simulating(spec) as made:
        watched = Watched(made.engine)
        train(made.server, watched, made.begin())
        return attacked(made, watched.seen)


def judge(found: dict[int, Attacked]) -> list[Record]:
    """Attack every training; the rule for the last layer is found on those of other seeds."""
    records = []
    for seed, own in found.items():
        others = [each for other, each in found.items() if other != seed]
        constant = torch.cat([each.mix for each in others]).mean(0).expand_as(own.mix)
        rows, masks = from_rows(own, others), from_masks(own)
        records.append(
            {
                "seed": seed,
                "pair, last layer": pairs(rows, own.mix),
                "pair, all masks": pairs(masks, own.mix),
                "error, last layer": _rounded(variation(rows, own.mix)),
                "error, all masks": _rounded(variation(masks, own.mix)),
                "error, constant": _rounded(variation(constant, own.mix)),
                "again": again(own),
            }
        )
    return records


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def candidates() -> Iterable[str]:
    """List one name of every training that METHODS has."""
    seen: list[Any] = []
    for name, entry in METHODS.items():
        made = entry.method(**dict(entry.settings))
        if made not in seen and not entry.like:
            seen.append(made)
            yield name


def run(data: str) -> None:
    """Train and attack everything that has no file yet."""
    for name, partition in itertools.product(candidates(), PARTITIONS):
        path = RAW / f"{name}-{partition.replace(':', '-')}.json"
        if path.is_file():
            continue
        found: dict[int, Attacked] = {}
        for seed in SEEDS:
            try:
                seen = trained(name, data, partition, seed)
            except NoMasks:
                break
            except MasqueradeError as error:  # A method that needs another network.
                print(f"{name}: {error}", flush=True)
                break
            if seen is None:
                break
            found[seed] = seen
        if len(found) < len(SEEDS):
            continue
        RAW.mkdir(parents=True, exist_ok=True)
        record = {
            "method": name,
            "partition": partition,
            "clients": CLIENTS,
            "rounds": ROUNDS,
            "seeds": judge(found),
        }
        path.write_text(json.dumps(record, indent=None) + "\n", encoding="utf-8")
        print(name, partition, flush=True)


COLUMNS = {
    "pair, last layer": "pathological:2",
    "pair, all masks": "pathological:2",
    "error, last layer": "dirichlet:0.3",
    "error, all masks": "dirichlet:0.3",
    "error, constant": "dirichlet:0.3",
    "again": "dirichlet:0.3",
}
"""Columns of the page, and the partition that each is of."""


def write(page: Path = PAGE) -> None:
    """Write the page of what has its file."""
    records: dict[str, dict[str, Record]] = {}
    for path in sorted(RAW.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        records.setdefault(record["method"], {})[record["partition"]] = record
    lines = [["method", *COLUMNS], ["---", *["--:"] * len(COLUMNS)]]
    for name in METHODS:
        if name in records:
            own = records[name]
            cells = [_cell(own.get(part), column) for column, part in COLUMNS.items()]
            lines.append([METHODS[name].title, *cells])
    some = next(iter(next(iter(records.values())).values()))
    text = TEXT.format(
        data=f"MNIST ({FRACTION:.0%} of its samples)",
        clients=some["clients"],
        rounds=some["rounds"],
        seeds=", ".join(str(each["seed"]) for each in some["seeds"]),
        pair_chance=f"{100 / 45:.1f}",
        again_chance=f"{100 / some['clients']:.1f}",
        table="\n".join("| " + " | ".join(line) + " |" for line in lines),
    )
    page.write_text(text, encoding="utf-8")


def _cell(record: Record | None, column: str) -> str:
    if record is None:
        return "–"
    each = [100 * statistics.fmean(own[column]) for own in record["seeds"] if own[column]]
    if not each:
        return "–"
    around = f" ({half_width(each):.1f})" if len(each) > 2 else ""
    return f"{statistics.fmean(each):.1f}{around}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", help="mnist, or a file or folder that has it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.data:
        run(given.data)
    write()
