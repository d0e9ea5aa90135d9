"""How the constants of `evaluate.prior` were chosen: on digits' validation data.

    python bench/priors.py --seeds 1 2

Clients train on three quarters of their training samples, the last quarter is what rules know of
(`reference`), and validation samples are evaluated: rules are judged as they will be on test data,
which are not touched. Printed is the accuracy, averaged over clients and partitions, of methods
under candidates: mixes that outputs might contain, EM without any abstention, and thresholds.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from unittest.mock import patch

import torch
from torch import Tensor

import masquerade as mq
from masquerade.config.resolve import federation_of, task_of
from masquerade.config.settings import Data, Train
from masquerade.core.metric import RuleClient
from masquerade.core.random import choose, fold
from masquerade.methods import METHODS
from masquerade.rules import prior
from masquerade.rules.em import em
from masquerade.rules.label_mix import label_mix, label_mix_of

KINDS = ("gaussian_noise", "defocus_blur", "contrast", "brightness")
SEVERITY = 5
TRAINED = {"fedavg": "global", "fedavg_ft": "tuned", "ditto": "personal", "dmpfl": "personal"}
THRESHOLDS = (-2.0, -3.0, -4.0, -6.0)
CASES = ("0", "20", "40", "60", "80", "100")


def uniform(outputs: Tensor, client: RuleClient) -> Tensor:
    """Take the outputs to contain the uniform mix."""
    return torch.log_softmax(outputs, -1) + label_mix(client.labels, outputs.shape[1]).log()


def mean_output(outputs: Tensor, client: RuleClient) -> Tensor:
    """Take the mean output at home for the mix that outputs contain."""
    contained = torch.softmax(client.reference.double(), -1).mean(0)
    return uniform(outputs, client) - contained.log()


def always(outputs: Tensor, client: RuleClient) -> Tensor:
    """Take what EM finds, whatever speaks against it."""
    known = label_mix_of(client, outputs)
    likelihoods = known.likelihoods(outputs)
    return likelihoods + em(likelihoods, known.mix).log()


def batch_at(threshold: float) -> Callable[[Tensor, RuleClient], Tensor]:
    """Return the rule `batch` with another threshold of feature shift."""

    def rule(outputs: Tensor, client: RuleClient) -> Tensor:
        with patch("masquerade.rules.label_mix.LESS_SURE", threshold):
            return prior.batch(outputs, client)

    return rule


def federation(partition: str, seed: int) -> mq.Federation:
    """Split training samples once more; what is called test data here are validation samples."""
    data, _ = federation_of(Data(clients=20, partition=partition, seed=seed))
    held = [choose(fold(seed, id), own, len(own) // 4) for id, own in enumerate(data.train)]
    train = [own[~torch.isin(own, out)] for own, out in zip(data.train, held, strict=True)]
    return replace(data, train=tuple(train), validation=tuple(held), test=data.validation)


def judged(
    partition: str, seeds: list[int], rounds: int
) -> dict[tuple[str, str], list[list[float]]]:
    """Return by method and rule the figures of every partition."""
    functions = {"uniform": uniform, "mean_output": mean_output, "always": always}
    functions |= {f"batch {threshold:g}": batch_at(threshold) for threshold in THRESHOLDS}
    rules = {name: mq.OutputRule(each, reference=True) for name, each in functions.items()}
    evaluate = mq.Evaluate(
        every=0,
        draws=3,
        corruptions=KINDS,
        severities=(SEVERITY,),
        prior=("own", "evidence", "online"),
    )
    found: dict[tuple[str, str], list[list[float]]] = {}
    for seed in seeds:
        data = federation(partition, seed)
        for name in ("fedavg", "ditto", "dmpfl"):
            entry = METHODS[name]
            _, task = task_of(Train(), entry, data, 1)
            method = entry.method(**dict(entry.settings))
            done = mq.run(method, task, data, rounds, evaluate=evaluate, rules=rules)
            for summary in done.summaries:
                if TRAINED.get(summary.method) != summary.view:
                    continue
                figures = {"none": summary.accuracy}
                figures |= {rule: each.accuracy for rule, each in summary.rules.items()}
                for rule, accuracy in figures.items():
                    row = [accuracy.shift[degree].mean for degree in CASES]
                    row += [accuracy.corruption[kind][str(SEVERITY)].mean for kind in KINDS]
                    found.setdefault((summary.title, rule), []).append(row)
    return found


def main() -> None:
    """Train, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partition", default="dirichlet:0.3")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    headings = ["Method", "Rule", *(f"{degree} %" for degree in CASES), *KINDS]
    print("| " + " | ".join(headings) + " |\n|---|---" + "|--:" * (len(headings) - 2) + "|")
    for (title, rule), rows in judged(given.partition, given.seeds, given.rounds).items():
        values = [f"{fmean(column):.1f}" for column in zip(*rows, strict=True)]
        print("| " + " | ".join([title, rule, *values]) + " |")


if __name__ == "__main__":
    main()
