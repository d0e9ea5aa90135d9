"""Write a page of what false updates do to models, and what defends against them, on MNIST.

    python bench/attacks.py --jobs 8                  # trains what is missing, writes the page
    python bench/attacks.py --device cuda --jobs 14 --minutes 8
    python bench/attacks.py --page                    # writes the page from what is saved
    python bench/attacks.py --quick --jobs 2          # tiny, on digits, to see that it runs

Four of twenty clients attack in every round. A seed is a partition and a training. Results are
files beside the page, one per method and a line per training: what is there is not done again, so
that an interrupted call goes on. The page is written when all are there.
"""

import argparse
import datetime
import json
import math
import multiprocessing
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from masquerade.config import toml as configuration
from masquerade.config.resolve import TrainingSpec, resolve, trainings
from masquerade.config.settings import Config
from masquerade.core.part import Part
from masquerade.core.random import fold, uniform
from masquerade.data import Federation
from masquerade.engine.base import Engine, Job, Outcome
from masquerade.evaluation.evaluate import Evaluator
from masquerade.report.intervals import over_seeds
from masquerade.reproduce.page import wrapped
from masquerade.simulation.build import simulating
from masquerade.simulation.server import train as rounds
from masquerade.storage import atomic

ROOT = Path(__file__).resolve().parents[1]
SOURCE, PAGE = ROOT / "runs/attacks.toml", ROOT / "docs/results/attacks.md"
ATTACKERS = (0, 5, 10, 15)
SPLITS = ("validation", "test")
HUGE = 1e38

ATTACKS = {
    "none": "nobody attacks",
    "sign flip": "the update turned round; bits inverted",
    "×100": "the update a hundred times as long",
    "label flip": "honest training on labels y → 9 − y",
    "random masks": "masks of the right size at random, with the entries' values shuffled; bits "
    "shuffled",
    "mask inflation": "the update turned round, in a mask that holds everything; all bits ones",
    "one 1e38": "the last number of the update is 1e38",
}
NO_PLACE = {"fedavg": ("random masks", "mask inflation"), "fedmask": ("×100", "one 1e38")}
"""Attacks that change nothing of what a method sends: it sends no masks, or no numbers."""
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "clip": {"clip_updates": 1.0},
    # As many are left out at either end as there are attackers.
    "trimmed mean, clip": {
        "aggregation": "trimmed_mean",
        "trim": 0.2,
        "min_contributors": 3,
        "clip_updates": 1.0,
    },
}
THIN = 3
"""Contributors below which no rule can tell who is false."""
WITHIN = 3.0
"""Points that honest clients may lose with the recommended defence."""
QUICK = {
    "data": {"name": "digits", "fraction": 1.0},
    "train": {"model": "mlp", "rounds": 1, "seeds": [1, 2]},
}
"""Settings of `--quick`."""
QUICK_DEFENCES = ("none", "clip")

Record = dict[str, Any]


class Cell(NamedTuple):
    """One training."""

    method: str
    defence: str
    attack: str
    seed: int


Results = dict[Cell, Record]

TEXT = """# False updates

{attackers} of {clients} clients send false updates in every round, and honest ones try to learn.
Accuracy is that of the {honest} honest clients' models on their own data, averaged over clients.
The mask budgets of methods and the refusal of numbers that are not finite are always on.

{made}

```sh
python bench/attacks.py
```

{waits}Settings are those of [`runs/attacks.toml`](../../runs/attacks.toml); every honest client's
accuracy is in [`attacks`](attacks). What a setting does is on [the page on
defences](../defences.md).

{verdict}

## The recommended defence

Of those tried, the one whose worst loss over all methods and attacks is least on **validation**
data, against the clean run without a defence:

```toml
[train]
{chosen}
```

| defence | worst loss, points | under | mean loss, points | cost without attackers, points |
|---|--:|---|--:|--:|
{tried}

(± …) is half of the 95 % interval over seeds (Student's t) of the paired differences: a run's from
the clean one of its seed. The cost is the mean over methods.

## Test data

Percent, honest clients, mean over seeds. Δ is the difference from the clean run without a defence,
in points. A dash is an attack that a method has no place for: no masks are sent, or no numbers.

| method | attack | undefended | Δ | defended | Δ | |
|---|---|--:|--:|--:|--:|---|
{rows}

## Attacks

| attack | what an attacker sends |
|---|---|
{attacks}

## Thin coverage

A rule tells false values from true ones by comparing them. Of c contributors to a weight it bears
⌊(c − 1) / 2⌋ false ones. Where fewer than {thin} clients send a weight it bears none. That share of
the weights, in the clean run's last round:

| method | weights with fewer than {thin} contributors |
|---|--:|
{coverage}
"""


@dataclass
class Attacked:
    """An engine some of whose clients send false updates."""

    inner: Engine
    attack: str
    contributors: list[Tensor]
    """Of the last round: how many clients send each weight."""

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds, and replace what attackers send."""
        done = self.inner.work(job)
        places = [at for at, id in enumerate(job.ids.tolist()) if id in ATTACKERS]
        uploads = {
            name: spoiled(part, job.server.get(name, {}), places, self.attack, job.number)
            for name, part in done.uploads.items()
        }
        if job.round.kind == "train" and uploads:
            self.contributors = [
                count.flatten().cpu() for part in uploads.values() for count in contributors(part)
            ]
        return replace(done, uploads=uploads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def contributors(part: Part) -> list[Tensor]:
    """Count the clients that send each entry of a stacked part."""
    counts = []
    for name, values in part.values.items():
        held = part.held(name)
        everybody = torch.full(values.shape[1:], len(values))
        counts.append(everybody if held is None else held.sum(0))
    return counts


def spoiled(part: Part, server: Any, places: Sequence[int], attack: str, number: int) -> Part:
    """Return a stacked part in which some clients' values or masks are an attacker's."""
    whole = torch.contiguous_format
    values = {name: value.clone(memory_format=whole) for name, value in part.values.items()}
    keep = {name: bits.clone() for name, bits in part.keep.items()}
    held = {name: bits for name in keep if (bits := part.held(name)) is not None}
    for at in places:
        huge = attack == "one 1e38"
        for name, value in reversed(values.items()):
            old = server.get(name) if isinstance(server, dict) else None
            mine = value[at]
            if mine.dtype is torch.bool:
                value[at] = false_bits(mine, attack, fold(number, at, name))
            elif mine.is_floating_point():
                before = torch.zeros_like(mine) if old is None else old
                value[at] = false_numbers(mine, before, attack)
                meant = held[name][at] if name in held else torch.ones_like(mine)
                if huge and meant.any():
                    value[at].view(-1)[int(meant.flatten().nonzero()[-1])] = HUGE
                    huge = False
            if name in keep and attack == "mask inflation":
                keep[name][at] = True
            if name in keep and attack == "random masks":
                order = shuffled(keep[name][at].numel(), fold(number, at, name))
                keep[name][at] = keep[name][at].flatten()[order].view_as(keep[name][at])
                value[at] = value[at].flatten()[order].view_as(mine)
    return replace(part, values=values, keep=keep)


def false_numbers(mine: Tensor, before: Tensor, attack: str) -> Tensor:
    if attack in ("sign flip", "mask inflation"):
        return 2 * before - mine
    return before + 100 * (mine - before) if attack == "×100" else mine


def false_bits(mine: Tensor, attack: str, key: int) -> Tensor:
    if attack == "sign flip":
        return ~mine
    if attack == "mask inflation":
        return torch.ones_like(mine)
    if attack == "random masks":
        return mine.flatten()[shuffled(mine.numel(), key)].view_as(mine)
    return mine


def shuffled(count: int, key: int) -> Tensor:
    return uniform(torch.tensor(key), (count,), torch.float64).argsort()


def with_flipped_labels(data: Federation) -> Federation:
    """Return data in which attackers have learned wrong labels."""
    y = data.y.clone()
    for id in ATTACKERS:
        y[data.train[id]] = 9 - y[data.train[id]]
    return replace(data, y=y)


def cells(config: Config, defences: Sequence[str]) -> list[Cell]:
    """List what is to be trained, the seeds of one after another."""
    return [
        Cell(method, defence, attack, seed)
        for seed in config.train.seeds
        for method in config.methods
        for defence in defences
        for attack in ATTACKS
        if attack not in NO_PLACE.get(method, ())
    ]


def specified(given: dict[str, Any], cell: Cell) -> TrainingSpec:
    """Return everything that a training is made of."""
    own = {"seeds": [cell.seed], **DEFENCES[cell.defence]}
    changed = configuration.merged(given, {"train": own}) | {"methods": [cell.method]}
    config = configuration.parse(changed)
    (training,) = trainings(config)
    spec = resolve(config, training)
    if cell.attack != "label flip":
        return spec
    return replace(spec, federation=with_flipped_labels(spec.federation))


def trained(given: dict[str, Any], cell: Cell) -> Record:
    """Train, and measure honest clients on validation and on test data."""
    with simulating(specified(given, cell)) as made:
        engine = Attacked(made.engine, cell.attack, [])
        made = replace(made, engine=engine)
        state = rounds(made.server, engine, made.begin())
        evaluator, device = Evaluator.of(made), made.server.device
        figures = {}
        for split in SPLITS:
            own, view = getattr(made.federation, split), made.spec.views[0]
            scores = evaluator.measure(state, view, own, models=False).scores
            figures[split] = [
                round(float(score.double().mean()), 2) if len(score) else None
                for id, score in zip(made.server.known, scores, strict=True)
                if id not in ATTACKERS
            ]
        thin = float((torch.cat(engine.contributors) < THIN).double().mean())
    return {
        **figures,
        "refused": state.refused,
        "thin": round(thin, 5),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
    }


def bounded(end: float, given: dict[str, Any], cell: Cell) -> Record | None:
    """Do a training, if there is still time to begin it."""
    # What is refused is counted, and thousands of warnings would hide the rest.
    warnings.simplefilter("ignore")
    return trained(given, cell) if time.monotonic() < end else None


def run(given: dict[str, Any], folder: Path, wanted: list[Cell], jobs: int, most: float) -> None:
    """Train what is missing; save each as it is done."""
    results, end = read(folder), time.monotonic() + most
    missing = [cell for cell in wanted if cell not in results]
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    # A process that has met CUDA cannot be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context) as pool:
        begun = {pool.submit(bounded, end, given, cell): cell for cell in missing}
        for future in as_completed(begun):
            cell = begun[future]
            if fault := future.exception():
                failed.append(f"{', '.join(map(str, cell))}: {fault!r}")
            elif record := future.result():
                results[cell] = record
                save(folder, cell.method, results)
                print(f"{len(results)}/{len(wanted)} {', '.join(map(str, cell))}", flush=True)
    if failed:
        raise SystemExit("\n".join([f"{len(failed)} failed", *failed[:5]]))


def save(folder: Path, method: str, results: Results) -> None:
    """Write what is done of a method, a training in a line."""
    mine = sorted((cell for cell in results if cell.method == method), key=order)
    records = [cell._asdict() | results[cell] for cell in mine]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in records)
    atomic.write_file(folder / f"{method}.json", f"[\n{lines}\n]\n".encode())


def order(cell: Cell) -> tuple[int, int, int]:
    return list(DEFENCES).index(cell.defence), list(ATTACKS).index(cell.attack), cell.seed


def read(folder: Path) -> Results:
    """Read what is done."""
    records = [each for path in folder.glob("*.json") for each in json.loads(path.read_bytes())]
    return {Cell(*(each[key] for key in Cell._fields)): each for each in records}


def honest(record: Record, split: str) -> float:
    """Return the mean accuracy of honest clients."""
    return fmean(each for each in record[split] if each is not None)


@dataclass(frozen=True)
class Found:
    """What was trained of a configuration."""

    config: Config
    defences: Sequence[str]
    results: Results

    def accuracy(self, split: str, method: str, defence: str, attack: str) -> list[float]:
        """Return by seed the mean accuracy of honest clients."""
        cells = [Cell(method, defence, attack, seed) for seed in self.config.train.seeds]
        return [honest(self.results[cell], split) for cell in cells]

    def gaps(self, split: str, method: str, defence: str, attack: str) -> list[float]:
        """Return by seed the difference from the clean run without a defence, in points."""
        clean = self.accuracy(split, method, "none", "none")
        other = self.accuracy(split, method, defence, attack)
        return [one - before for one, before in zip(other, clean, strict=True)]

    def all_gaps(self, split: str, defence: str) -> dict[tuple[str, str], list[float]]:
        """Return them by method and attack."""
        pairs = [(each.method, each.attack) for each in cells(self.config, [defence])]
        return {pair: self.gaps(split, pair[0], defence, pair[1]) for pair in pairs}

    def attacked(self, split: str, defence: str) -> dict[str, list[float]]:
        """Return those with attackers, the largest loss first, by the words for it."""
        gaps = self.all_gaps(split, defence).items()
        found = sorted(((fmean(each), *pair, each) for pair, each in gaps if pair[1] != "none"))
        return {f"{self.title(method)}, {attack}": each for _, method, attack, each in found}

    def title(self, method: str) -> str:
        """Return what a method is called on the page."""
        return configuration.title_of(method, self.config)


def by_seed(several: Iterable[Sequence[float]]) -> list[float]:
    """Return the mean of several figures, for every seed."""
    return [fmean(each) for each in zip(*several, strict=True)]


def signed(gaps: Sequence[float]) -> str:
    """Write a mean difference with half of its interval."""
    return f"{fmean(gaps):+.1f} (± {over_seeds(gaps).half:.1f})"


def lost(gaps: Sequence[float]) -> str:
    """Write a mean loss with half of its interval."""
    # Zero has no sign.
    return f"{0 - fmean(gaps):.1f} (± {over_seeds(gaps).half:.1f})"


def worst(found: Found, defence: str) -> float:
    """Return the largest mean loss on validation data, over methods and attacks."""
    return -fmean(next(iter(found.attacked("validation", defence).values())))


def choose(found: Found) -> str:
    """Return the defence whose worst loss on validation data is least."""
    names = [name for name in found.defences if name != "none"]
    return min(names, key=lambda name: worst(found, name))


def tried(found: Found, chosen: str) -> Iterator[str]:
    """Show every defence on validation data, as rows of a table."""
    for name in found.defences:
        gaps = found.attacked("validation", name)
        under, largest = next(iter(gaps.items()))
        cost = by_seed(
            found.gaps("validation", each, name, "none") for each in found.config.methods
        )
        shown = f"**{name}**" if name == chosen else name
        figures = f"{lost(largest)} | {under} | {lost(by_seed(gaps.values()))} | {lost(cost)}"
        yield f"| {shown} | {figures} |"


def tested(found: Found, chosen: str) -> Iterator[str]:
    """Show every method and attack on test data, as rows of a table."""
    for method in found.config.methods:
        for attack in ATTACKS:
            row = f"| {found.title(method)} | {attack} |"
            if attack in NO_PLACE.get(method, ()):
                yield f"{row} – | | – | | |"
                continue
            gaps = [found.gaps("test", method, each, attack) for each in ("none", chosen)]
            means = [
                fmean(found.accuracy("test", method, each, attack)) for each in ("none", chosen)
            ]
            shown = " | ".join(
                f"{mean:.1f} | {signed(gap)}" for mean, gap in zip(means, gaps, strict=True)
            )
            yield f"{row} {shown} | {'missed' * (fmean(gaps[1]) < -WITHIN)} |"


def verdict(found: Found, chosen: str) -> str:
    """Say what the figures say of the three points."""
    bare, gaps = (found.attacked("test", each) for each in ("none", chosen))
    (open_to, undefended), (under, largest) = (next(iter(each.items())) for each in (bare, gaps))
    missed = [f"{name}: {lost(each)}" for name, each in gaps.items() if fmean(each) < -WITHIN]
    sure = sum(over_seeds(each).low >= -WITHIN for each in gaps.values())
    seed, single = min(((name, min(each)) for name, each in gaps.items()), key=lambda one: one[1])
    cost = by_seed(found.gaps("test", each, chosen, "none") for each in found.config.methods)
    within = f"within {WITHIN:g} points of the clean run"
    said = f"On test data, honest clients with the recommended defence stay {within} "
    said += f"under all {len(gaps)} attacks on a method, in the mean over seeds. "
    if missed:
        said = f"On test data, honest clients with the recommended defence do not stay {within} "
        said += f"under {len(missed)} of {len(gaps)} attacks on a method ({'; '.join(missed)}). "
    said += f"The largest mean loss is {lost(largest)} points ({under}); without a defence it is "
    said += f"{lost(undefended)} ({open_to}). Of the intervals {sure} lie {within} as a whole. "
    said += f"The largest loss of a single seed is {0 - single:.1f} points ({seed}). "
    return said + f"Where nobody attacks, the defence costs {lost(cost)} points."


def about(found: Found) -> str:
    """Say what was trained, when and on what."""
    data, records = found.config.data, found.results.values()
    used = [sorted({each[key] for each in records}) for key in ("date", "torch", "device")]
    dates, versions, devices = (" and ".join(each) for each in used)
    name = "MNIST" if data.name == "mnist" else data.name
    text = f"{name}, {data.fraction:.0%} of it, {data.clients} clients, {data.partition}, "
    text += f"{found.config.train.rounds} rounds, {len(found.config.train.seeds)} seeds, each a "
    text += f"partition and a training; made on {dates} with torch {versions} on {devices}:"
    return text


def coverage(found: Found) -> Iterator[str]:
    """Show how many weights have few contributors, as rows of a table."""
    for method in found.config.methods:
        clean = [Cell(method, "none", "none", seed) for seed in found.config.train.seeds]
        share = fmean(found.results[cell]["thin"] for cell in clean)
        yield f"| {found.title(method)} | {100 * share:.1f} % |"


def waits(missing: Mapping[str, int]) -> str:
    """Say which methods are not judged yet."""
    left = ", ".join(f"{title} ({count} trainings left)" for title, count in missing.items())
    text = f"Not judged here, nor in the choice of a defence: {left}. The same command goes on."
    return f"{wrapped(text)}\n\n" if missing else ""


def page(given: dict[str, Any], folder: Path, defences: Sequence[str] = tuple(DEFENCES)) -> str:
    """Return the page of the results in a folder."""
    config, results = configuration.parse(given), read(folder)
    missing = Counter(cell.method for cell in cells(config, defences) if cell not in results)
    ready = tuple(each for each in config.methods if each not in missing)
    if not ready:
        raise SystemExit(f"no method has all of its trainings in {folder}, so there is no page")
    found = Found(replace(config, methods=ready), defences, results)
    chosen = choose(found)
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in DEFENCES[chosen].items())
    return TEXT.format(
        attackers=len(ATTACKERS),
        clients=config.data.clients,
        honest=config.data.clients - len(ATTACKERS),
        made=wrapped(about(found)),
        waits=waits({found.title(method): count for method, count in missing.items()}),
        chosen=settings,
        tried="\n".join(tried(found, chosen)),
        rows="\n".join(tested(found, chosen)),
        verdict=wrapped(verdict(found, chosen)),
        attacks="\n".join(
            f"| {name} | {text} |" for name, text in ATTACKS.items() if name != "none"
        ),
        thin=THIN,
        coverage="\n".join(coverage(found)),
    )


def main() -> None:
    """Train what is missing and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, nargs="?", default=SOURCE)
    parser.add_argument("--out", type=Path, help="the page; results lie beside it")
    parser.add_argument("--only", nargs="*", default=(), metavar="METHOD")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no training after")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument("--quick", action="store_true", help="tiny, on digits, to see that it runs")
    options = parser.parse_args()
    given = configuration.read_file(options.source)
    given = configuration.merged(given, QUICK) if options.quick else given
    given = configuration.merged(given, {"compute": {"device": options.device}})
    defences = QUICK_DEFENCES if options.quick else tuple(DEFENCES)
    out = options.out or (ROOT / "out/attacks.md" if options.quick else PAGE)
    folder = out.with_suffix("")
    every = cells(configuration.parse(given), defences)
    if not options.page:
        wanted = [cell for cell in every if not options.only or cell.method in options.only]
        run(given, folder, wanted, options.jobs, 60 * options.minutes)
    left = len(set(every) - read(folder).keys())
    # Machines that only train have no scipy.
    if options.page or (not left and find_spec("scipy")):
        atomic.write_file(out, page(given, folder, defences).encode())
    else:
        print(f"{left} trainings are missing; --page writes the page when none are")


if __name__ == "__main__":
    main()
