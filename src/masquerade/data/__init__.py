"""Samples, how they are spread over clients, and what clients are tested on."""

from masquerade.data.dataset import Dataset, from_arrays
from masquerade.data.partition import (
    IID,
    ByClient,
    Dirichlet,
    Federation,
    Pathological,
    PerClass,
    describe,
    parse,
    partition,
    share,
)
from masquerade.data.shift import shift_sets
from masquerade.data.source import load

__all__ = [
    "IID",
    "ByClient",
    "Dataset",
    "Dirichlet",
    "Federation",
    "Pathological",
    "PerClass",
    "describe",
    "from_arrays",
    "load",
    "parse",
    "partition",
    "share",
    "shift_sets",
]
