"""Datasets of bare labels, and what lies with the clients of a federation."""

import numpy as np
import torch

from masquerade.data.dataset import Dataset, from_arrays
from masquerade.data.partition.federation import Federation


def labeled(sizes: list[int], clients: int = 1) -> Dataset:
    """Return a dataset with so many samples of each class, in mixed order."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return from_arrays(np.zeros((len(y), 1)), y, np.arange(len(y)) % clients)


def owned(federation: Federation) -> list[torch.Tensor]:
    parts = zip(federation.train, federation.validation, federation.test, strict=True)
    return [torch.cat(part) for part in parts]


def sizes_of(federation: Federation) -> np.ndarray:
    return np.array([len(samples) for samples in owned(federation)])


def classes_of(federation: Federation) -> list[set[int]]:
    return [set(federation.y[samples].tolist()) for samples in owned(federation)]
