"""Choose learning rates on validation data: one grid, and as many tries, for every training.

    python bench/choose.py runs/digits.toml --jobs 2

A training's learning rate is chosen by its default view; then, with that held, each further one
(`gate_lr`, `personal_lr`, …) on the same grid, and last the fine-tuning of its view `tuned`, by
that view. The file is written anew with what was chosen and a comment that holds every try; other
settings of its methods stay. Test data are not touched.
"""

import argparse
import dataclasses
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

from masquerade.config import resolve
from masquerade.config import toml as configuration
from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Config
from masquerade.core.method import Method
from masquerade.evaluation.accuracy import means
from masquerade.evaluation.evaluate import Evaluator
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.server import train as rounds
from masquerade.simulation.state import RunState

RATES = (0.4, 0.2, 0.1, 0.05, 0.01)
"""The grid of DM-PFL, appendix A.1.4, and two rates above it: on this data its largest was best."""
SEARCHED = re.compile(r"^(.*_)?lr$|^tune_epochs$")
"""Settings that are chosen here."""
Tries = list[tuple[dict[str, Any], Future[float]]]
"""Settings, and the score that they will have."""


@dataclasses.dataclass(frozen=True)
class Training:
    """What is searched for: a name, the method behind it, and how it is trained."""

    config: Config
    name: str
    method: Method
    rates: tuple[float, ...]

    @property
    def tuning(self) -> list[dict[str, Any]]:
        """What the fine-tuning of a view may be."""
        return [{"tune_lr": lr, "tune_epochs": n} for lr in self.rates for n in (1, 5)]

    def tries(self, pool: Executor, key: str, chosen: dict[str, Any]) -> Tries:
        """Begin one training for every rate of a kind."""
        options = [{**chosen, key: lr} for lr in self.rates]
        return [(one, pool.submit(score, self.changed(one))) for one in options]

    def changed(self, options: dict[str, Any]) -> "Training":
        """The same with other settings."""
        return dataclasses.replace(self, method=dataclasses.replace(self.method, **options))

    def spec(self) -> TrainingSpec:
        """What a simulation of it is made of."""
        seed = self.config.train.seeds[0]
        return resolve.resolve(self.config, resolve.Training(self.method, (self.name,), seed))


def search(pool: Executor, trainings: list[Training]) -> Iterator[tuple[str, dict, list[str]]]:
    """Yield every training's name, what was chosen for it, and its tries in words."""
    first = [one.tries(pool, "lr", {}) for one in trainings]
    for one, begun in zip(trainings, first, strict=True):
        words: list[str] = []
        chosen, value = best(one.name, begun, words)
        for key in vars(one.method):
            if key.endswith("_lr") and key != "tune_lr":
                found, reached = best(one.name, one.tries(pool, key, chosen), words)
                # A default that no try beats stays.
                chosen, value = (found, reached) if reached > value else (chosen, value)
        if "tune_lr" in vars(one.method):
            scores = pool.submit(tuned, one.changed(chosen)).result()
            scored = list(zip(one.tuning, scores, strict=True))
            words += [line(one.name, options, value) for options, value in scored]
            chosen |= max(scored, key=lambda pair: pair[1])[0]
        yield one.name, chosen, words


def best(name: str, begun: Tries, words: list[str]) -> tuple[dict[str, Any], float]:
    """Wait for some tries; return the best settings and their score, and write all of them down."""
    scored = [(options, trial.result()) for options, trial in begun]
    words += [line(name, options, value) for options, value in scored]
    return max(scored, key=lambda pair: pair[1])


def line(name: str, changed: dict[str, Any], value: float) -> str:
    described = ", ".join(f"{key} {value}" for key, value in changed.items())
    return f"#   {name:14} {described:34} {value:6.2f}"


def score(training: Training) -> float:
    """Train once; return the validation accuracy of the default view."""
    with simulating(training.spec()) as made:
        return evaluated(made, train(made), training.method.views[0])


def tuned(training: Training) -> list[float]:
    """Train once; return the validation accuracy of every fine-tuning."""
    with simulating(training.spec()) as made:
        progress = train(made)
    found = []
    for options in training.tuning:
        with simulating(training.changed(options).spec()) as made:
            found.append(evaluated(made, progress, "tuned"))
    return found


def train(simulation: Simulation) -> RunState:
    """Do all rounds."""
    return rounds(simulation.server, simulation.engine, simulation.begin())


def evaluated(simulation: Simulation, progress: RunState, view: str) -> float:
    """Mean over clients of the accuracy on their validation data."""
    own = list(simulation.federation.validation)
    evaluator = Evaluator.of(simulation)
    figures = means(evaluator.measure(progress, view, own).scores)
    return evaluator.over_clients.describe(figures, simulation.server.known).mean


def main(path: Path, jobs: int, rates: tuple[float, ...] = RATES) -> None:
    tables = configuration.read_file(path)
    for own in tables.get("method", {}).values():
        # What an earlier search chose must not decide what this one begins with.
        for key in [key for key in own if SEARCHED.search(key)]:
            del own[key]
    config = configuration.parse(tables)
    searched = dataclasses.replace(
        config,
        evaluate=dataclasses.replace(config.evaluate, split="validation", every=0),
        compute=dataclasses.replace(config.compute, processes=1),
    )
    trainings = [
        Training(searched, names[0], method, rates)
        for method, names in {each.method: each.names for each in resolve.trainings(config)}.items()
    ]
    with ProcessPoolExecutor(jobs) if jobs > 1 else ThreadPoolExecutor(1) as pool:
        write(path, tables, search(pool, trainings), rates)


def write(
    path: Path,
    tables: dict[str, Any],
    found: Iterable[tuple[str, dict, list[str]]],
    rates: tuple[float, ...],
) -> None:
    """Write the file anew: every try as a comment, and what was chosen as settings."""
    given = "" if rates == RATES else " --rates " + ",".join(map(str, rates))
    lines = [
        f"# Settings chosen on validation data by: python bench/choose.py {path}{given}",
        "# Every try, with the mean accuracy over clients on validation data:",
    ]
    settings = dict(tables.get("method", {}))
    for name, chosen, words in found:
        settings[name] = settings.get(name, {}) | chosen
        lines += words
        print("\n".join(words), flush=True)
    text = tomli_w.dumps(tables | {"method": settings})
    path.write_text("\n".join(lines) + "\n" + text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the configuration to choose rates for")
    parser.add_argument("--jobs", type=int, default=1, help="trainings searched at a time")
    parser.add_argument(
        "--rates",
        type=lambda text: tuple(map(float, text.split(","))),
        default=RATES,
        help="the grid, separated by commas",
    )
    arguments = parser.parse_args()
    main(arguments.path, arguments.jobs, arguments.rates)
