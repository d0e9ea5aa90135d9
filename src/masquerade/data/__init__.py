"""Samples, how they are partitioned over clients, and what clients are tested on."""

from masquerade.data.dataset import Dataset, from_arrays
from masquerade.data.partition.federation import Federation, partition, share
from masquerade.data.partition.names import describe, parse
from masquerade.data.partition.papers import Groups, Lottery, Outliers, PerClass
from masquerade.data.partition.rules import IID, ByClient, Dirichlet, Pathological, Shards
from masquerade.data.readers.frame import from_frame
from masquerade.data.shift import shift_sets
from masquerade.data.source import load

__all__ = [
    "IID",
    "ByClient",
    "Dataset",
    "Dirichlet",
    "Federation",
    "Groups",
    "Lottery",
    "Outliers",
    "Pathological",
    "PerClass",
    "Shards",
    "describe",
    "from_arrays",
    "from_frame",
    "load",
    "parse",
    "partition",
    "share",
    "shift_sets",
]
