"""Write a page of what false updates do to models, and what defends against them, on MNIST.

    python bench/attacks.py

Four of twenty clients attack in every round. Results are files beside the page, one per method:
what is there is not done again, so that an interrupted call goes on.
"""

import argparse
import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from masquerade.config import toml as configuration
from masquerade.config.resolve import TrainingSpec, resolve, trainings
from masquerade.core.part import Message, Part
from masquerade.core.random import fold, uniform
from masquerade.data import Federation
from masquerade.engine.base import Engine, Job, Outcome
from masquerade.evaluation.evaluate import Evaluator
from masquerade.reproduce.page import wrapped
from masquerade.simulation.build import simulating
from masquerade.simulation.server import train as rounds

ROOT = Path(__file__).resolve().parents[1]
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
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "clip": {"clip_updates": 1.0},
    "median": {"aggregation": "median", "min_contributors": 3},
    "trimmed mean": {"aggregation": "trimmed_mean", "trim": 0.3, "min_contributors": 3},
    "trimmed mean, clip": {
        "aggregation": "trimmed_mean",
        "trim": 0.3,
        "min_contributors": 3,
        "clip_updates": 1.0,
    },
}
HOPELESS = 5.0
"""Points: a defence that loses more under one attack is not tried with the methods that follow."""
THIN = 3
"""Contributors below which no rule can tell who is false."""

Record = dict[str, Any]

TEXT = """# False updates

{attackers} of {clients} clients send false updates in every round, and honest ones try to learn.
Accuracy is that of the {honest} honest clients' models on their own data, averaged over clients.
The mask budgets of methods and the refusal of numbers that are not finite are always on.

{made}

```sh
python bench/attacks.py
```

Settings are those of [`runs/attacks.toml`](../../runs/attacks.toml); every figure is in
[`attacks`](attacks). What a setting does is on [the page on defences](../defences.md).

## The recommended defence

Of those tried, the one whose worst loss over all methods and attacks is least on **validation**
data, against the clean run without a defence:

```toml
[train]
{chosen}
```

| defence | methods | worst loss, points | mean loss, points | cost without attackers, points |
|---|--:|--:|--:|--:|
{tried}

One that lost more than {hopeless:g} points was not tried with the methods that follow.

## Test data

Percent, honest clients. Δ is the difference from the clean run without a defence, in points. A dash
is an attack that a method has no place for: no masks are sent, or no numbers.

| method | attack | undefended | Δ | defended | Δ | |
|---|---|--:|--:|--:|--:|---|
{rows}

{verdict}

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
                count.flatten() for part in uploads.values() for count in contributors(part)
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
    values = {name: value.clone() for name, value in part.values.items()}
    keep = {name: bits.clone() for name, bits in part.keep.items()}
    held = {name: part.held(name) for name in keep}
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


def applies(attack: str, uploads: Message) -> bool:
    """Tell whether a method sends anything that an attack can change."""
    parts = list(uploads.values())
    bits = any(value.dtype is torch.bool for part in parts for value in part.values.values())
    numbers = any(value.is_floating_point() for part in parts for value in part.values.values())
    if attack in ("random masks", "mask inflation"):
        return bits or any(part.keep for part in parts)
    return numbers if attack in ("×100", "one 1e38") else True


def with_flipped_labels(data: Federation) -> Federation:
    """Return data in which attackers have learned wrong labels."""
    y = data.y.clone()
    for id in ATTACKERS:
        y[data.train[id]] = 9 - y[data.train[id]]
    return replace(data, y=y)


def trained(spec: TrainingSpec, attack: str, defence: str) -> Record:
    """Train, and measure honest clients on validation and on test data."""
    data = with_flipped_labels(spec.federation) if attack == "label flip" else spec.federation
    train = replace(spec.train, **DEFENCES[defence])
    with simulating(replace(spec, federation=data, train=train)) as made:
        one = made.server.make_job(made.begin(), torch.tensor([1]), made.server.round("train", 0))
        if not applies(attack, made.engine.work(one).uploads):
            return {"applies": False}
        engine = Attacked(made.engine, attack, [])
        made = replace(made, engine=engine)
        state = rounds(made.server, engine, made.begin())
        evaluator, figures = Evaluator.of(made), {}
        for split in SPLITS:
            own = getattr(made.federation, split)
            scores = evaluator.measure(state, spec.views[0], own, models=False).scores
            honest = [
                float(score.double().mean())
                for id, score in zip(made.server.known, scores, strict=True)
                if id not in ATTACKERS and len(score)
            ]
            figures[split] = sum(honest) / len(honest)
        thin = float((torch.cat(engine.contributors) < THIN).double().mean())
    about = {"date": datetime.date.today().isoformat(), "torch": torch.__version__}
    return figures | {"refused": state.refused, "thin": thin, "applies": True} | about


def run(source: Path, folder: Path, wanted: Sequence[str]) -> None:
    """Do what is missing, of some methods or of all."""
    config = configuration.parse(configuration.read_file(source))
    folder.mkdir(parents=True, exist_ok=True)
    for training in trainings(config):
        (name,) = training.names
        if wanted and name not in wanted:
            continue
        spec, file, found = resolve(config, training), folder / f"{name}.json", read(folder, name)
        before = {each: read(folder, each) for each in config.methods[: config.methods.index(name)]}
        for defence in DEFENCES:
            if defence != "none" and max(losses(before, defence), default=0.0) > HOPELESS:
                continue
            for attack in ATTACKS:
                key = f"{defence}: {attack}"
                if key not in found:
                    found[key] = trained(spec, attack, defence)
                    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                    print(f"{name}, {key}: {found[key]}", flush=True)


def read(folder: Path, name: str) -> Record:
    """Read what is done of a method."""
    file = folder / f"{name}.json"
    found: Record = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found


def losses(results: dict[str, Record], defence: str) -> list[float]:
    """Return how much honest clients lose on validation data, over methods and attacks tried."""
    tried = [
        (found["none: none"], found[f"{defence}: {attack}"])
        for found in results.values()
        for attack in ATTACKS
        if attack != "none" and f"{defence}: {attack}" in found
    ]
    return [clean["validation"] - one["validation"] for clean, one in tried if one["applies"]]


def page(source: Path, folder: Path) -> str:
    """Return the page of the results in a folder."""
    config = configuration.parse(configuration.read_file(source))
    results = {name: read(folder, name) for name in config.methods}
    worst = {name: max(losses(results, name)) for name in DEFENCES}
    chosen = min((name for name in DEFENCES if name != "none"), key=worst.__getitem__)
    tried, missed, rows = [], [], []
    for name in DEFENCES:
        lost = losses(results, name)
        cost = [
            found["none: none"]["validation"] - found[f"{name}: none"]["validation"]
            for found in results.values()
            if f"{name}: none" in found
        ]
        shown = f"**{name}**" if name == chosen else name
        figures = " | ".join(f"{each:.1f}" for each in (max(lost), mean(lost), mean(cost)))
        tried.append(f"| {shown} | {len(cost)} | {figures} |")
    for method, found in results.items():
        title, clean = configuration.title_of(method, config), found["none: none"]["test"]
        for attack in ATTACKS:
            bare, defended = found[f"none: {attack}"], found[f"{chosen}: {attack}"]
            if not bare["applies"]:
                rows.append(f"| {title} | {attack} | – | | – | | |")
                continue
            gap = defended["test"] - clean
            miss = gap < -3
            missed += [f"{title} under {attack} ({gap:+.1f})"] * miss
            rows.append(
                f"| {title} | {attack} | {bare['test']:.1f} | {bare['test'] - clean:+.1f} | "
                f"{defended['test']:.1f} | {gap:+.1f} | {'missed' if miss else ''} |"
            )
    thin = [
        f"| {configuration.title_of(name, config)} | {100 * found['none: none']['thin']:.1f} % |"
        for name, found in results.items()
    ]
    said = "With the recommended defence honest clients are within 3 points of the clean run"
    verdict = (
        f"{said}, under every attack." if not missed else f"{said}, but for {'; '.join(missed)}."
    )
    one = next(iter(results.values()))["none: none"]
    data = config.data
    about = f"MNIST, {data.fraction:.0%} of it, {data.clients} clients, {data.partition}, "
    about += (
        f"{config.train.rounds} rounds, one seed; made on {one['date']} with torch {one['torch']}:"
    )
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in DEFENCES[chosen].items())
    return TEXT.format(
        attackers=len(ATTACKERS),
        clients=data.clients,
        honest=data.clients - len(ATTACKERS),
        made=wrapped(about),
        chosen=settings,
        tried="\n".join(tried),
        rows="\n".join(rows),
        verdict=wrapped(verdict),
        attacks="\n".join(
            f"| {name} | {text} |" for name, text in ATTACKS.items() if name != "none"
        ),
        hopeless=HOPELESS,
        thin=THIN,
        coverage="\n".join(thin),
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, nargs="?", default=ROOT / "runs/attacks.toml")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/attacks.md")
    parser.add_argument("--method", action="append", default=[], help="only this one, no page")
    given = parser.parse_args()
    run(given.source, given.out.with_suffix(""), given.method)
    if not given.method:
        made = page(given.source, given.out.with_suffix(""))
        given.out.write_text(made, encoding="utf-8")
