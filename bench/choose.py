"""Choose learning rates on validation data: one grid, and as many tries, for every training.

    python bench/choose.py runs/digits.toml

A training's rate is chosen by its default view; what only a view has (fine-tuning rate and epochs)
is chosen by that view, on the training already chosen. The file is written anew with what was
chosen and a comment that holds every try. Test data are not touched.
"""

import argparse
import dataclasses
from pathlib import Path

import tomli_w

from masquerade import config as configuration
from masquerade.config import Config
from masquerade.core.method import Method
from masquerade.experiment import Training, arrange, simulate
from masquerade.methods import METHODS
from masquerade.simulation import carry_on

RATES = (0.4, 0.2, 0.1, 0.05, 0.01)
"""The grid of DM-PFL, appendix A.1.4, and two rates above it: on this data its largest was best."""
TUNING = [{"tune_rate": rate, "tune_epochs": epochs} for rate in RATES for epochs in (1, 5)]
"""What the view `tuned` of FedAvg may be."""


def score(config: Config, method: Method, name: str, tuning: list[dict]) -> tuple[float, dict]:
    """Train once; return the validation accuracy of the default view, and of each tuning."""
    config = dataclasses.replace(
        config, evaluate=dataclasses.replace(config.evaluate, split="validation", every=0)
    )
    training = Training(method, (name,), config.train.seeds[0])
    with simulate(**arrange(config, training)) as simulation:
        progress = carry_on(simulation, simulation.begin())
        own = list(simulation.federation.validation)
        default = judged(simulation, progress, method.views[0], own)
    tuned = {}
    for place, options in enumerate(tuning):
        other = dataclasses.replace(training, method=dataclasses.replace(method, **options))
        with simulate(**arrange(config, other)) as simulation:
            tuned[place] = judged(simulation, progress, "tuned", own)
    return default, tuned


def judged(simulation, progress, view, own) -> float:
    """Mean over clients of the accuracy on their validation data."""
    scores = simulation.judge(progress, view, own).scores
    return simulation.spread([float(s.mean()) if len(s) else None for s in scores])["mean"]


def main(path: Path) -> None:
    tables = configuration.read_file(path)
    tables.pop("method", None)
    config = configuration.parse(tables)
    lines = [
        f"# Settings chosen on validation data by: python bench/choose.py {path}",
        "# Every try, with the mean accuracy over clients on validation data (seed "
        f"{config.train.seeds[0]}):",
    ]
    chosen: dict[str, dict] = {}
    for method, names in configuration.trainings(config).items():
        name = names[0]
        tuning = TUNING if any(METHODS[other].view == "tuned" for other in names) else []
        tries = {}
        for rate in RATES:
            tries[rate] = score(config, dataclasses.replace(method, rate=rate), name, tuning)
            lines.append(f"#   {name:8} rate {rate:<5} {tries[rate][0]:6.2f}")
            print(lines[-1], flush=True)
        best = max(RATES, key=lambda rate: tries[rate][0])
        chosen[name] = {"rate": best}
        for place, options in enumerate(tuning):
            lines.append(f"#   {name:8} tuned {options} {tries[best][1][place]:6.2f}")
            print(lines[-1], flush=True)
        if tuning:
            place = max(range(len(tuning)), key=lambda place: tries[best][1][place])
            chosen[name] |= tuning[place]
    text = tomli_w.dumps(tables | {"method": chosen})
    path.write_text("\n".join(lines) + "\n" + text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the configuration to choose rates for")
    main(parser.parse_args().path)
