"""Readings of DM-PFL's personal refine, which its paper leaves open, on validation data.

    python bench/readings.py --device cuda --precision bfloat16     # measures, then writes the page
    python bench/readings.py --page                                 # writes it from what is saved
    python bench/readings.py --quick                                # digits, to see that it runs

The setting is that of `runs/dmpfl/table1`, with its search's split: 15 % of each client's data
validate, the test data stay unseen. A course of the shared phases (how gently masks are readjusted,
how many rounds they take) is trained once, and every reading of personal refine goes on from it.
Which reading is best is decided by the mean of the six degrees of shift.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

from masquerade.config import resolve as plan
from masquerade.config import toml as configuration
from masquerade.config.resolve import TrainingSpec
from masquerade.evaluation.evaluate import Evaluator
from masquerade.methods import DMPFL
from masquerade.reproduce.page import wrapped
from masquerade.simulation.build import simulating

ROOT = Path(__file__).resolve().parents[1]
SAVED = ROOT / "docs/results/dmpfl-readings"
"""A file for every course, so that they can be measured side by side."""
VIEWS = ("personal", "adaptive", "global")
COURSES: list[dict[str, Any]] = [
    {"readjust": 0.3, "dual": 150},
    {"readjust": 0.05, "dual": 150},
    {"readjust": 0.01, "dual": 150},
    {"readjust": 0.01, "dual": 60},
    {"readjust": 0.01, "dual": 30},
    {"readjust": 0.01, "dual": 12},
]
"""Readjustment ratios, and how many of 300 rounds are dual; global refine has the others."""
IN_ROUNDS: list[dict[str, Any]] = [
    {},
    {"restart": True, "refine_lr_scale": 0.1},
]
"""Readings that spend the last quarter of the rounds on personal refine."""
AT_THE_END: list[dict[str, Any]] = [
    {"refine_epochs": 5},
    {"restart": True, "refine_epochs": 1, "refine_lr_scale": 0.0},
    *(
        {"restart": True, "refine_epochs": epochs, "refine_lr_scale": rate}
        for rate in (1.0, 0.3)
        for epochs in (1, 5, 15)
    ),
]
"""Readings in which every client refines once, after all rounds; a rate of 0 shows its mask."""


def settings(device: str, precision: str, quick: bool) -> TrainingSpec:
    """Return what simulations of all readings share."""
    table = configuration.read_file(ROOT / "runs/dmpfl/table1/table.toml")
    row = configuration.read_file(ROOT / "runs/dmpfl/table1/dmpfl.toml")
    search = {name: dict(table["search"]["over"][name]) for name in ("data", "evaluate")}
    del search["evaluate"]["degrees"]
    over = search | {
        "method": {"dmpfl": {"lr": 0.1}},
        "compute": {"device": device, "precision": precision},
    }
    tables = configuration.merged(row, over)
    if quick:
        tables = configuration.merged(tables, {k: table["quick"][k] for k in ("data", "train")})
    config = configuration.parse(tables)
    (training,) = plan.trainings(config)
    return dataclasses.replace(plan.resolve(config, training), views=VIEWS, names=())


def measured(
    course: dict[str, Any], shared: TrainingSpec, done: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Train a course once, and every reading that is not done from where it leaves the course."""
    rounds = shared.train.rounds
    dual = course["dual"] * rounds // 300
    early = rounds - rounds // 4
    state: tuple[Any, ...] | None = None
    for until, readings in ((early, IN_ROUNDS), (rounds, AT_THE_END)):
        missing = [each for each in readings if each not in done]
        if not missing:
            continue
        phases = (dual, until - dual, rounds - until)
        changes = {"iterations": 1, "phases": phases, "readjust": course["readjust"]}
        method: DMPFL = dataclasses.replace(shared.method, **changes)
        with simulating(dataclasses.replace(shared, method=method)) as made:
            progress = made.begin()
            if state is not None:
                progress.restore(*state)
            while progress.number < until:
                made.advance(progress)
            state = (until, progress.tensors(), progress.facts())
        for reading in missing:
            read = dataclasses.replace(method, **reading)
            with simulating(dataclasses.replace(shared, method=read)) as made:
                progress = made.begin()
                progress.restore(*state)
                while progress.number < rounds:
                    made.advance(progress)
                summaries, _ = Evaluator.of(made).final(progress)
            shift = {each.view: each.accuracy.shift for each in summaries}
            found = {
                view: {degree: found.mean for degree, found in shift[view].items()}
                for view in VIEWS
            }
            rest = {"dual": dual, "global": until - dual}
            yield {"course": course | rest, "reading": reading, "accuracy": found}


def page(saved: list[dict[str, Any]]) -> str:
    """Return the page: every reading, and the best of each view."""
    heads = ("readjust", "rounds of dual masks", "rounds of global refine", "personal refine")
    columns = [f"{view}, {degree}" for view in VIEWS for degree in ("own", "100 %", "averaged")]
    made = "; ".join(sorted({each["made"] for each in saved}))
    lines = [
        "# Readings of DM-PFL's personal refine",
        "",
        wrapped(
            "The paper leaves open how personal refine is done. Each row is one way, after the dual"
            " masks and global refine beside it, in the setting of [Table 1](dmpfl-table1.md)."
            " `python bench/readings.py` wrote this page. Accuracy (%) on validation data, one"
            f" seed. {made}."
        ),
        "",
        f"| {' | '.join((*heads, *columns))} |",
        "|---" * (len(heads) + len(columns)) + "|",
    ]
    runs = [run for each in saved for run in each["runs"]]
    for run in runs:
        cells = [*(str(run["course"][key]) for key in ("readjust", "dual", "global")), said(run)]
        for view in VIEWS:
            found = run["accuracy"][view]
            cells += [f"{found[degree]:.2f}" for degree in ("0", "100", "averaged")]
        lines.append(f"| {' | '.join(cells)} |")
    for view in VIEWS[:2]:
        best = max(runs, key=lambda run: run["accuracy"][view]["averaged"])
        course = best["course"]
        lines += [
            "",
            wrapped(
                f"Best averaged over six degrees in the view `{view}`:"
                f" {best['accuracy'][view]['averaged']:.2f}, by readjust {course['readjust']},"
                f" {course['dual']} rounds of dual masks, {course['global']} of global refine;"
                f" {said(best)}."
            ),
        ]
    asked = len(COURSES) * (len(IN_ROUNDS) + len(AT_THE_END))
    if len(runs) < asked:
        lines += ["", f"{asked - len(runs)} of {asked} readings are not measured yet."]
    return "\n".join(lines) + "\n"


def said(run: dict[str, Any]) -> str:
    """Describe a reading."""
    reading = run["reading"]
    epochs = reading.get("refine_epochs", 0)
    words = [
        f"{epochs} epoch{'s'[: epochs > 1]} at every client at the end"
        if epochs
        else "in the rounds left",
        "from zero" if reading.get("restart") else "from the weights of the dual masks",
        f"lr × {reading.get('refine_lr_scale', 1.0):g}",
    ]
    return ", ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--course", type=int, action="append", help="which, from 0; all by default")
    parser.add_argument("--out", type=Path, default=SAVED)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as elsewhere:
        out = Path(elsewhere) / "readings" if given.quick else given.out
        out.mkdir(parents=True, exist_ok=True)
        if not given.page:
            shared = settings(given.device, given.precision, given.quick)
            for course in given.course or range(len(COURSES)):
                measure(course, shared, out / f"course-{course}.json", given.precision)
        text = page([json.loads(path.read_text()) for path in sorted(out.glob("*.json"))])
        out.with_suffix(".md").write_text(text)
        print(text)
    return 0


def measure(course: int, shared: TrainingSpec, path: Path, precision: str) -> None:
    """Do what is missing of a course; write every reading as soon as it is done."""
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    made = f"torch {torch.__version__}, {where}, {precision}, {date.today()}"
    saved: dict[str, Any] = {"made": made, "runs": []}
    if path.is_file():
        saved = json.loads(path.read_text())
    done = [run["reading"] for run in saved["runs"]]
    for run in measured(COURSES[course], shared, done):
        saved["runs"].append(run)
        path.write_text(json.dumps(saved, indent=1) + "\n")
        means = {view: run["accuracy"][view]["averaged"] for view in VIEWS}
        told = ", ".join(f"{view} {mean:.1f}" for view, mean in means.items())
        print(f"{run['course']}; {said(run)}: averaged {told}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
