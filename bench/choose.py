"""Choose learning rates on validation data: one grid, and as many tries, for every training.

    python bench/choose.py runs/digits.toml --jobs 2

A training's rate is chosen by its default view; then, with that held, each further rate that it has
(`gate_rate`, `personal_rate`, …) on the same grid, and last the fine-tuning of its view `tuned`, by
that view. The file is written anew with what was chosen and a comment that holds every try; other
settings of its methods stay. Test data are not touched.
"""

import argparse
import dataclasses
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

from masquerade import config as configuration
from masquerade.config import Config
from masquerade.core.method import Method
from masquerade.experiment import Training, arrange, simulate
from masquerade.simulation import carry_on

RATES = (0.4, 0.2, 0.1, 0.05, 0.01)
"""The grid of DM-PFL, appendix A.1.4, and two rates above it: on this data its largest was best."""
TUNING = [{"tune_rate": rate, "tune_epochs": epochs} for rate in RATES for epochs in (1, 5)]
"""What the fine-tuning of a view may be."""


def choose(given: tuple[Config, str, Method]) -> tuple[str, dict[str, Any], list[str]]:
    """Return a training's name, what was chosen for it, and every try in words."""
    config, name, method = given
    rates = [key for key in vars(method) if key == "rate" or key.endswith("_rate")]
    words, chosen = [], {}
    for key in [key for key in rates if key != "tune_rate"]:
        tries = [{**chosen, key: rate} for rate in RATES]
        found = [score(config, name, dataclasses.replace(method, **one)) for one in tries]
        chosen = tries[found.index(max(found))]
        words += [line(name, one, value) for one, value in zip(tries, found, strict=True)]
    if "tune_rate" in rates:
        method = dataclasses.replace(method, **chosen)
        found = tuned(config, name, method)
        words += [line(name, one, value) for one, value in zip(TUNING, found, strict=True)]
        chosen |= TUNING[found.index(max(found))]
    return name, chosen, words


def line(name: str, changed: dict[str, Any], value: float) -> str:
    described = ", ".join(f"{key} {value}" for key, value in changed.items())
    return f"#   {name:14} {described:34} {value:6.2f}"


def score(config: Config, name: str, method: Method) -> float:
    """Train once; return the validation accuracy of the default view."""
    with simulate(**arrange(config, Training(method, (name,), config.train.seeds[0]))) as made:
        return judged(made, carry_on(made, made.begin()), method.views[0])


def tuned(config: Config, name: str, method: Method) -> list[float]:
    """Train once; return the validation accuracy of every fine-tuning."""
    training = Training(method, (name,), config.train.seeds[0])
    with simulate(**arrange(config, training)) as made:
        progress = carry_on(made, made.begin())
    found = []
    for options in TUNING:
        other = dataclasses.replace(training, method=dataclasses.replace(method, **options))
        with simulate(**arrange(config, other)) as made:
            found.append(judged(made, progress, "tuned"))
    return found


def judged(simulation: Any, progress: Any, view: str) -> float:
    """Mean over clients of the accuracy on their validation data."""
    own = list(simulation.federation.validation)
    scores = simulation.judge(progress, view, own).scores
    return simulation.spread([float(s.mean()) if len(s) else None for s in scores])["mean"]


def main(path: Path, jobs: int) -> None:
    tables = configuration.read_file(path)
    config = configuration.parse(tables)
    searched = dataclasses.replace(
        config,
        evaluate=dataclasses.replace(config.evaluate, split="validation", every=0),
        compute=dataclasses.replace(config.compute, workers=1),
    )
    given = [(searched, names[0], one) for one, names in configuration.trainings(config).items()]
    if jobs == 1:
        write(path, tables, map(choose, given))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            write(path, tables, pool.map(choose, given))


def write(path: Path, tables: dict[str, Any], found: Iterable[tuple[str, dict, list[str]]]) -> None:
    """Write the file anew: every try as a comment, and what was chosen as settings."""
    lines = [
        f"# Settings chosen on validation data by: python bench/choose.py {path}",
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
    arguments = parser.parse_args()
    main(arguments.path, arguments.jobs)
