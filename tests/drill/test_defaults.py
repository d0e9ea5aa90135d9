"""Defaults that work: with nothing set but its name, each of the four systems is worth training.

Two classes for each of ten clients of digits: what a client learns alone is hard to beat there, and
one model for everybody is not enough. Defaults are chosen on other data (`bench/defaults.py`).
"""

from functools import cache
from statistics import fmean

import pytest

import masquerade as mq
from masquerade.data import load, partition
from masquerade.methods import METHODS
from masquerade.models import build

SYSTEMS = ("dmpfl", "pfedgate", "fedmask", "fedselect")
BELOW_LOCAL = 5
"""Points that a system may be below a client that trains alone."""


@cache
def own(name: str, seed: int, rounds: int) -> float:
    """Return the mean accuracy on own data; the seed is a partition and a training."""
    entry = METHODS[name]
    result = mq.run(
        entry.method(**dict(entry.settings)),
        build("digits_cnn", (1, 8, 8), 10, seed),
        partition(load("digits"), 10, "pathological:2", seed),
        rounds,
        seed=seed,
        views=[entry.view],
        evaluate=mq.Evaluate(every=0, degrees=(0,)),
    )
    return result.summaries[0].accuracy.own.mean


def assert_worth_training(name: str, seeds: tuple[int, ...], rounds: int) -> None:
    found, fedavg, local = (
        fmean(own(each, seed, rounds) for seed in seeds) for each in (name, "fedavg", "local")
    )
    assert fedavg < found, f"{name} {found:.1f}, FedAvg {fedavg:.1f}"
    assert local - BELOW_LOCAL <= found, f"{name} {found:.1f}, Local {local:.1f}"


@pytest.mark.parametrize("name", ["dmpfl", "pfedgate", "fedmask"])
def test_a_few_rounds_of_the_defaults_are_worth_training(name: str) -> None:
    assert_worth_training(name, (1,), 8)


@pytest.mark.drill
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_defaults_are_worth_training_over_three_seeds(name: str) -> None:
    assert_worth_training(name, (1, 2, 3), 30)
