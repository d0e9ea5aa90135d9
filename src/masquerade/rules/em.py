"""The mix of classes that explains samples best, and how much better than another one.

EM by Saerens, Latinne and Decaestecker (2002), on likelihoods that a model gives.
"""

import math

import torch
from torch import Tensor

STEPS = 50
"""Steps of EM; the mix moves by less than a sample long before."""
LEAST = 1e-6
"""The least share of a class in a mix of test data."""
QUANTILE = 1.645
"""The normal quantile of 95 %: evidence that chance gives in one set of twenty is none."""


def em(likelihoods: Tensor, mix: Tensor) -> Tensor:
    """Return the mix that explains samples best, from log likelihoods [samples, classes]."""
    shares = torch.softmax(likelihoods, -1)
    for _ in range(STEPS):
        # The mean of all posteriors, each a row of `shares * mix` over its sum.
        mix = (mix * ((1 / (shares @ mix)) @ shares) / len(shares)).clamp(min=LEAST)
        mix = mix / mix.sum()
    return mix


def log_evidence(likelihoods: Tensor, mix: Tensor) -> float:
    """Return how well a mix explains samples, in nats."""
    return float(torch.logsumexp(likelihoods + mix.log(), -1).sum())


def gained(likelihoods: Tensor, found: Tensor, mix: Tensor) -> float:
    """Return by how many nats a mix explains samples better than another."""
    return log_evidence(likelihoods, found) - log_evidence(likelihoods, mix)


def chance(free: int) -> float:
    """Return the nats that a fitted mix with so many free numbers gains by chance, at 95 %.

    Half of the quantile of chi-squared (Wilks), by Wilson and Hilferty: 8.5 for ten classes.
    """
    part = 2 / (9 * free)
    return free * (1 - part + QUANTILE * math.sqrt(part)) ** 3 / 2
