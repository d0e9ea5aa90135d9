"""FedMask over draws of its frozen weights: settings, each with eight draws, on validation data.

    python bench/draws.py --jobs 8               # runs what is missing, then writes the page
    python bench/draws.py --mnist FILE.npz       # MNIST from a file with x_train and y_train
    python bench/draws.py --page                 # writes the page from what is saved

A seed is the images, their partition, the network's draw and the training: all differ.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

import masquerade as mq
from masquerade.data import Federation, from_arrays
from masquerade.methods import METHODS
from masquerade.models import build
from masquerade.storage import atomic

ROOT = Path(__file__).resolve().parents[1]
SAVED = ROOT / "docs/results/fedmask-draws.json"
SEEDS = range(1, 9)
ROUNDS = 30
EQUAL = {
    "scores": "equal",
    "scale": 0.001,
    "weights": "signed",
    "lr_schedule": "constant",
    "keep_scores": False,
    "keep_off": False,
}
"""The defaults before."""
TRIALS: dict[str, tuple[str, dict[str, Any]]] = {
    "Local": ("local", {}),
    "FedAvg": ("fedavg", {}),
    "defaults": ("fedmask", {}),
    "before": ("fedmask", EQUAL),
    "scores begin anew": ("fedmask", {"keep_scores": False}),
    "bits may come back": ("fedmask", {"keep_off": False}),
}
PROBLEMS = ("mnist8", "digits")
ON_DIGITS = ("Local", "FedAvg", "defaults", "before")
"""Digits decide nothing, so that little is run there."""


def small_mnist(images: np.ndarray, labels: np.ndarray, seed: int) -> Federation:
    """Shrink 3000 training images to 8 × 8, as large as digits; 1080 train, and 1800 validate."""
    chosen = np.random.default_rng(100 + seed).permutation(len(labels))[:3000]
    inner = images.reshape(-1, 28, 28)[chosen, 2:26, 2:26].astype(np.float32) / 255
    means = inner.reshape(-1, 1, 8, 3, 8, 3).mean((3, 5))
    data = from_arrays(means, labels[chosen].astype(np.int64), name="mnist8")
    return mq.partition(data, 10, "pathological:2", seed, split=(0.36, 0.6, 0.04))


def federation(problem: str, seed: int, mnist: str) -> Federation:
    """Return ten clients with two classes each."""
    if problem == "digits":
        return mq.partition(mq.load("digits"), 10, "pathological:2", seed)
    if mnist:
        with np.load(mnist) as file:
            return small_mnist(file["x_train"], file["y_train"], seed)
    whole = mq.load("mnist")
    # The original training part comes first.
    return small_mnist(whole.x[:60_000].numpy(), whole.y[:60_000].numpy(), seed)


def train(problem: str, trial: str, seed: int, mnist: str, end: float) -> dict[str, Any] | None:
    """Train once, if there is still time to begin; return the accuracy on own data."""
    if time.time() > end:
        return None
    torch.set_num_threads(1)
    name, changes = TRIALS[trial]
    found = mq.run(
        METHODS[name].method(**changes),
        build("digits_cnn", (1, 8, 8), 10, seed),
        federation(problem, seed, mnist),
        ROUNDS,
        seed=seed,
        evaluate=mq.Evaluate(every=10, degrees=(0,), split="validation"),
        compute=mq.Compute(device="cpu", engine="batched"),
        progress=False,
    )
    one = found.summaries[0]
    course = [round(point.own, 2) for point in one.history]
    own = round(one.accuracy.own.mean, 2)
    return {"problem": problem, "trial": trial, "seed": seed, "own": own, "course": course}


def run(problems: Sequence[str], jobs: int, minutes: float, mnist: str) -> None:
    """Run what is missing; save each training as it is done."""
    saved = json.loads(SAVED.read_text()) if SAVED.is_file() else []
    done = {(one["problem"], one["trial"], one["seed"]) for one in saved}
    missing = [
        (problem, trial, seed)
        for trial in TRIALS
        for problem in problems
        for seed in SEEDS
        if (problem == "mnist8" or trial in ON_DIGITS) and (problem, trial, seed) not in done
    ]
    end = time.time() + 60 * minutes
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        begun = [pool.submit(train, *job, mnist, end) for job in missing]
        for future in as_completed(begun):
            if found := future.result():
                saved.append(found)
                saved.sort(key=lambda one: (one["problem"], one["trial"], one["seed"]))
                text = ",\n".join(json.dumps(one) for one in saved)
                atomic.write_file(SAVED, f"[\n{text}\n]\n".encode())
                print(json.dumps(found), flush=True)


PAGE = """# FedMask over draws of its frozen weights

`python bench/draws.py` wrote this page. Ten clients have two classes each; `digits_cnn`, {rounds}
rounds, validation data. A seed is the images, their partition, the draw of the network and the
training. Figures are accuracy on own data (%), of the view `personal` or the only one.

| problem | is |
|---|---|
| `mnist8` | MNIST's training images at 8 × 8, 1080 to train and 1800 to validate; it chooses |
| `digits` | the embedded digits; decides nothing |

"""


def page() -> str:
    """Return the page: for each problem a row for every trial."""
    saved = json.loads(SAVED.read_text())
    parts = []
    for problem in PROBLEMS:
        head = "| trial | settings | mean | worst | below Local | seeds 1 to 8 |"
        rows = [f"## {problem}", "", head, "|---|---|--:|--:|--:|---|"]
        local = figures(saved, problem, "Local")
        for trial, (_, changes) in TRIALS.items():
            if found := figures(saved, problem, trial):
                named = ", ".join(f"`{key}` {value}" for key, value in changes.items())
                mean, all_ = statistics.fmean(found.values()), found.values()
                below = statistics.fmean(local[seed] - own for seed, own in found.items())
                each = ", ".join(f"{own:.1f}" for own in all_)
                cells = [trial, named, f"{mean:.1f}", f"{min(all_):.1f}", f"{below:.1f}", each]
                rows.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(rows) + "\n")
    return PAGE.format(rounds=ROUNDS) + "\n".join(parts)


def figures(saved: list[dict[str, Any]], problem: str, trial: str) -> dict[int, float]:
    """Return what is saved of a trial, by seed."""
    mine = [one for one in saved if (one["problem"], one["trial"]) == (problem, trial)]
    return {one["seed"]: one["own"] for one in mine}


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, choices=PROBLEMS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="begin no training after")
    parser.add_argument("--mnist", default="", metavar="FILE.npz")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    given = parser.parse_args()
    if not given.page:
        run(given.problems, given.jobs, given.minutes, given.mnist)
    atomic.write_file(SAVED.with_suffix(".md"), page().encode())


if __name__ == "__main__":
    main()
