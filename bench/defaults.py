"""Defaults of the four systems: what their papers leave open, tried on validation data.

    python bench/defaults.py --device cuda --jobs 8     # runs what is missing, then writes the page
    python bench/defaults.py --only mnist/fedmask       # one system on one problem
    python bench/defaults.py --page                     # writes the page from what is saved

On `mnist` and `cifar10` ten clients hold two classes each; samples that validate come from the
original training part, and the original test part is never read. `mnist_few` and `cifar10_few` are
the little data of FedSelect's paper, on a smaller network than its own. `table1` is the setting of
DM-PFL's Table 1 with the validation data of its search. A seed is a partition and a training. A
trial is its changes to the class's defaults; the first of each system is version 0.1's.
"""

import argparse
import dataclasses
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from masquerade.config import resolve
from masquerade.config import toml as configuration
from masquerade.evaluation.evaluate import Evaluator
from masquerade.results import AVERAGED, Summary
from masquerade.simulation.build import simulating
from masquerade.simulation.server import train as rounds
from masquerade.storage import atomic

ROOT = Path(__file__).resolve().parents[1]
SAVED = ROOT / "docs/results/defaults"
"""A file for every problem and system."""
SEEDS = (1, 2, 3)
PROBLEMS: dict[str, dict[str, Any]] = {
    name: {
        "data": {
            "name": name,
            "clients": 10,
            "partition": "pathological:2",
            "fraction": 0.1,
            "merge": False,
        },
        "train": {"model": model, "rounds": 30, "batch_size": 20},
        "evaluate": {"every": 10, "degrees": [0, 100], "split": "validation"},
    }
    for name, model in (("mnist", "mnist_cnn"), ("cifar10", "cifar_cnn"))
}
FEW: dict[str, dict[str, Any]] = {
    f"{name}_few": {
        "data": {
            "name": name,
            "clients": 10,
            "partition": "fedselect:2:20:100:20",
            "partition_per_seed": True,
        },
        "train": {"model": model, "rounds": 30, "batch_size": 20},
        "evaluate": {"every": 10, "degrees": [0, 100], "split": "validation"},
    }
    for name, model in (("mnist", "mnist_conv"), ("cifar10", "lenet"))
}
"""FedSelect's own: twenty training samples of two classes each. The test pool is never read."""
RELEASE = {"momentum": 0.9, "weight_decay": 5e-4, "clip": 10.0}
PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "clip": math.inf}
EQUAL = {
    "scores": "equal",
    "scale": 0.001,
    "weights": "signed",
    "lr_schedule": "constant",
    "keep_scores": False,
}
OLD_MASK: dict[str, Any] = {**EQUAL, "prune_by": "size", "keep_off": False, "round_mean": True}
CHANGE = {**OLD_MASK, "prune_by": "change"}
SPREAD = {
    "scores": "spread",
    "scale": 0.6,
    "weights": "scaled",
    "lr_schedule": "cosine",
    "keep_scores": False,
}
KEPT = {**CHANGE, **SPREAD, "keep_scores": True}
FROM_OWN = {"mask_start": "own", "anneal": True, "readjust_every": 3}
FROM_GLOBAL = {"mask_start": "global", "anneal": False, "readjust_every": 1}
TRIALS: dict[str, list[dict[str, Any]]] = {
    "local": [{}],
    "fedavg": [{}],
    "dmpfl": [
        FROM_OWN,
        FROM_GLOBAL,
        {**FROM_GLOBAL, "restart": True, "refine_lr_scale": 0.3},
        {**FROM_GLOBAL, "readjust": 0.5},
    ],
    "pfedgate": [
        PLAIN,
        RELEASE,
        {**RELEASE, "lr": 0.05, "gate_lr": 0.05},
        {**RELEASE, "lr": 0.05},
        {**RELEASE, "lr": 0.02},
        {**RELEASE, "lr": 0.02, "gate_lr": 0.02},
    ],
    "pfedgate_sample": [
        PLAIN,
        RELEASE,
        {**RELEASE, "lr": 0.02},
    ],
    "fedmask": [
        OLD_MASK,
        CHANGE,
        {**OLD_MASK, "prune_by": "value"},
        {**CHANGE, "keep_off": True},
        {**CHANGE, "round_mean": False},
        {**CHANGE, "pruned_layers": 0},
        {**CHANGE, "group_lasso": 0.0},
        {**CHANGE, "weights": "drawn"},
        {**CHANGE, "lr": 0.02},
        {**CHANGE, "lr": 0.5},
        {**CHANGE, "lr": 0.02, "momentum": 0.9},
        {**CHANGE, "lr": 0.005, "momentum": 0.9},
        {**CHANGE, "lr": 0.02, "momentum": 0.9, "group_lasso": 0.0},
        {**CHANGE, "lr": 0.02, "momentum": 0.9, "keep_off": True},
        {**CHANGE, "lr": 0.02, "momentum": 0.9, "round_mean": False},
        {**CHANGE, **SPREAD},
        {**CHANGE, **SPREAD, "scale": 0.2},
        {**CHANGE, **SPREAD, "scale": 2.0},
        {**CHANGE, "keep_scores": True},
        KEPT,
        {**KEPT, "scale": 0.2},
        {**KEPT, "scale": 2.0},
        {**KEPT, "lr_schedule": "constant"},
        {**KEPT, "group_lasso": 0.0},
        {**KEPT, "round_mean": False},
        {**KEPT, "keep_off": True},
        {**KEPT, "prune_by": "size"},
        {**KEPT, "lr": 0.02, "momentum": 0.9},
        {**KEPT, "pruned_layers": 0},
        {**KEPT, "scale": 2.0, "keep_off": True},
        {**KEPT, "scale": 6.0, "keep_off": True},
        {**KEPT, "scale": 2.0, "keep_off": True, "group_lasso": 0.0},
    ],
    "fedselect": [
        {"share_of": "survivors"},
        {"share_of": "all"},
    ],
}
READINGS = [
    FROM_OWN,
    FROM_GLOBAL,
    {**FROM_GLOBAL, "restart": True, "refine_lr_scale": 0.3},
    {**FROM_GLOBAL, "restart": True, "refine_lr_scale": 0.1},
]
"""Of DM-PFL, in the setting of its Table 1."""


def table1() -> dict[str, Any]:
    """Return the setting of DM-PFL's Table 1, with the data of its search and all degrees."""
    folder = ROOT / "runs/dmpfl/table1"
    base = configuration.read_file(folder / "base.toml")
    over = configuration.read_file(folder / "table.toml")["search"]["over"]
    evaluate = {"every": 0, "split": "validation"}
    return configuration.merged(base, {"data": over["data"], "evaluate": evaluate})


def wanted(only: Sequence[str]) -> list[tuple[str, str]]:
    """List the problems and systems that are meant; all where none is named."""
    every = [(problem, name) for problem in PROBLEMS for name in TRIALS if name != "fedselect"]
    every += [(problem, name) for problem in FEW for name in ("local", "fedavg", "fedselect")]
    every.append(("table1", "dmpfl"))
    if not only:
        return every
    chosen = [pair for pair in every if "/".join(pair) in only or pair[0] in only]
    if not chosen:
        raise SystemExit(f"nothing is called {' '.join(only)}; write mnist, or mnist/fedmask")
    return chosen


def trials(problem: str, name: str) -> list[dict[str, Any]]:
    """Return what is tried of a system on a problem."""
    return READINGS if problem == "table1" else TRIALS[name]


def trial(problem: str, name: str, changes: dict[str, Any], seed: int, how: dict[str, Any]) -> Any:
    """Train once; return the accuracy of every view on own data and under full shift."""
    given = table1() if problem == "table1" else (PROBLEMS | FEW)[problem]
    seeded = {"data": {"seed": seed}} if problem in PROBLEMS else {}
    own = {"methods": [name], "method": {name: changes}, "train": {"seeds": [seed]}}
    config = configuration.parse(configuration.merged(given, {**own, **seeded, "compute": how}))
    (training,) = resolve.trainings(config)
    spec = resolve.resolve(config, training)
    with simulating(dataclasses.replace(spec, views=spec.method.views, names=())) as made:
        evaluator = Evaluator.of(made)
        state = made.begin()
        rounds(made.server, made.engine, state, evaluator.between_rounds)
        summaries, _ = evaluator.final(state)
    return {
        "changes": plain(changes),
        "seed": seed,
        "diverged": summaries[0].diverged,
        "views": {each.view: figures(each) for each in summaries},
    }


def figures(summary: Summary) -> dict[str, Any]:
    """Return what is kept of a view: own data, full shift, all degrees, and the course of it."""
    accuracy = summary.accuracy
    return {
        "own": round(accuracy.own.mean, 3),
        "shifted": round(accuracy.shift["100"].mean, 3),
        "averaged": round(accuracy.shift[AVERAGED].mean, 3),
        "over_rounds": [round(point.own, 2) for point in summary.history],
        "density": round(summary.model.density, 4),
    }


def plain(changes: dict[str, Any]) -> dict[str, Any]:
    """Return changes for JSON, which has no infinity."""
    return {key: "inf" if value == math.inf else value for key, value in changes.items()}


def read(problem: str, name: str) -> list[dict[str, Any]]:
    """Read what is saved of a system on a problem."""
    path = SAVED / f"{problem}-{name}.json"
    return list(json.loads(path.read_text())) if path.is_file() else []


def run(pairs: Sequence[tuple[str, str]], jobs: int, how: dict[str, Any], most: float) -> None:
    """Run the trials that are missing, the seeds of one after another; save each as it is done."""
    saved = {pair: read(*pair) for pair in pairs}
    done = {pair: [(one["changes"], one["seed"]) for one in saved[pair]] for pair in pairs}
    missing = [
        (pair, changes, seed)
        for seed in SEEDS
        for pair in pairs
        for changes in trials(*pair)
        if (plain(changes), seed) not in done[pair]
    ]
    end = time.monotonic() + most
    SAVED.mkdir(parents=True, exist_ok=True)
    # A process that has met CUDA cannot be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context) as pool:
        begun = {pool.submit(bounded, end, *pair, *rest, how): pair for pair, *rest in missing}
        for future in as_completed(begun):
            pair, found = begun[future], future.result()
            if found is not None:
                saved[pair].append(found)
                ordered = sorted(saved[pair], key=lambda one: order(pair, one))
                atomic.write_file(SAVED / f"{'-'.join(pair)}.json", lines(ordered).encode())
                print("/".join(pair), json.dumps(found), flush=True)


def bounded(end: float, *job: Any) -> Any:
    """Do a job, if there is still time to begin it."""
    return trial(*job) if time.monotonic() < end else None


def order(pair: tuple[str, str], one: dict[str, Any]) -> tuple[int, int]:
    """Return the place of a result: by trial, then by seed."""
    known = [plain(changes) for changes in trials(*pair)]
    place = known.index(one["changes"]) if one["changes"] in known else len(known)
    return place, one["seed"]


def lines(results: Sequence[dict[str, Any]]) -> str:
    """Return results as JSON, one a line."""
    return "[\n" + ",\n".join(json.dumps(one) for one in results) + "\n]\n"


PAGE = """# Defaults of the four systems

What the papers leave open was tried on validation data. The methods' pages say what follows.
`python bench/defaults.py` wrote this page. Of {all} trainings {done} are done. The others wait for
the same command.

| problem | is |
|---|---|
| `mnist`, `cifar10` | ten clients with two classes each |
| `mnist_few`, `cifar10_few` | the little data of FedSelect's paper, on a smaller network |
| `table1` | the setting of DM-PFL's Table 1, with the validation data of its search |

- Figures are accuracy (%), the mean over clients and seeds, with the least and the most of the
  seeds in parentheses.
- "changes" are a trial's changes to the class's defaults. "before" is own data in rounds 10 and
  20, where it was evaluated.
- About a quarter of the validation samples of `cifar10` lies in the test pool of DM-PFL's Table 1.
  So nothing is chosen by `cifar10` alone.

"""


def page() -> str:
    """Return the page: for every problem and system its trials, seeds taken together."""
    parts, done, every = [], 0, 0
    for problem, name in wanted(()):
        saved = read(problem, name)
        done, every = done + len(saved), every + len(trials(problem, name)) * len(SEEDS)
        if saved:
            parts.append(f"## {problem}, {name}\n\n{table(problem, name, saved)}\n")
    return PAGE.format(all=every, done=done) + "\n".join(parts)


def table(problem: str, name: str, saved: Sequence[dict[str, Any]]) -> str:
    """Return the trials of a system as a table, a row for every trial and view."""
    rows = ["| changes | view | seeds | own data | before | full shift | all degrees | density |"]
    rows.append("|---|---|---|--:|--:|--:|--:|--:|")
    for changes in trials(problem, name):
        found = [one for one in saved if one["changes"] == plain(changes)]
        if not found:
            continue
        named = ", ".join(f"`{key}` {value}" for key, value in plain(changes).items()) or "none"
        seeds = ", ".join(str(one["seed"]) for one in found)
        lost = sum(one["diverged"] is not None for one in found)
        for view in found[0]["views"]:
            shown = [one["views"][view] for one in found]
            cells = [spread([one[key] for one in shown]) for key in ("own", "shifted", "averaged")]
            earlier = zip(*(one["over_rounds"][:-1] for one in shown), strict=True)
            cells.insert(1, ", ".join(f"{statistics.fmean(each):.1f}" for each in earlier))
            density = statistics.fmean(one["density"] for one in shown)
            note = f" ({lost} diverged)" if lost else ""
            rows.append(
                f"| {named} | {view} | {seeds}{note} | {' | '.join(cells)} | {density:.2f} |"
            )
    return "\n".join(rows)


def spread(values: Sequence[float]) -> str:
    """Write the mean of some values, with the least and the most."""
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} ({min(values):.1f}–{max(values):.1f})" if len(values) > 1 else mean


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=(), metavar="PROBLEM[/SYSTEM]")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no trial after")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    given = parser.parse_args()
    if not given.page:
        how = {"device": given.device, "precision": given.precision}
        run(wanted(given.only), given.jobs, how, 60 * given.minutes)
    atomic.write_file(SAVED.with_suffix(".md"), page().encode())


if __name__ == "__main__":
    main()
