"""Defaults that work: with nothing set but its name, each of the four systems is worth training.

Two classes for each of ten clients of digits: what a client learns alone is hard to beat there, and
one model for everybody is not enough. Defaults are chosen on other data (`bench/defaults.py`).
"""

import math
from functools import cache
from statistics import fmean
from typing import Any

import pytest

import masquerade as mq
from masquerade.data import Federation, load, partition, share
from masquerade.methods import METHODS
from masquerade.models import build

SYSTEMS = ("dmpfl", "pfedgate", "fedmask", "fedselect")
BELOW_LOCAL = 5
"""Points that a system may be below a client that trains alone."""


@cache
def own(name: str, seed: int, rounds: int, data: Federation, **changes: Any) -> float:
    """Return the mean accuracy on own data."""
    entry = METHODS[name]
    result = mq.run(
        entry.method(**dict(entry.settings) | changes),
        build("digits_cnn", (1, 8, 8), 10, seed),
        data,
        rounds,
        seed=seed,
        views=[entry.view],
        evaluate=mq.Evaluate(every=0, degrees=(0,)),
    )
    return result.summaries[0].accuracy.own.mean


@cache
def few(part: float) -> Federation:
    """Five clients share a part of the digits, two classes each."""
    return partition(share(load("digits"), part, 1), 5, "pathological:2", 1)


@pytest.mark.parametrize(
    ("name", "rounds"), [("dmpfl", 8), ("fedmask", 8), ("fedselect", 3)], ids=lambda it: str(it)
)
def test_after_a_few_rounds_the_defaults_are_ahead_of_fedavg(name: str, rounds: int) -> None:
    data = few(0.15)
    assert own(name, 1, rounds, data) > own("fedavg", 1, rounds, data) + 25


def test_after_a_few_rounds_the_optimizer_of_pfedgate_is_ahead_of_plain_sgd() -> None:
    # Its gate needs more rounds than a test has to be ahead of FedAvg.
    data = few(0.3)
    plain = own("pfedgate", 1, 3, data, momentum=0.0, weight_decay=0.0, clip=math.inf)
    assert own("pfedgate", 1, 3, data) > plain + 10


@pytest.mark.drill
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_defaults_are_worth_training_over_three_seeds(name: str) -> None:
    seeds = (1, 2, 3)
    data = {seed: partition(load("digits"), 10, "pathological:2", seed) for seed in seeds}
    found, fedavg, local = (
        fmean(own(each, seed, 30, data[seed]) for seed in seeds)
        for each in (name, "fedavg", "local")
    )
    print(f"{name} {found:.1f}, FedAvg {fedavg:.1f}, Local {local:.1f}")
    assert fedavg < found
    assert local - BELOW_LOCAL <= found
