"""A toy federation and a small network, whose numbers depend on nothing but this text."""

import torch
from torch import nn

from masquerade.core.method import Method
from masquerade.core.random import fold, normal
from masquerade.data import Federation
from masquerade.methods import BNN
from masquerade.models import BinaryMLP

SIZES = (7, 12, 3, 9, 16, 5)
"""Training samples per client: ragged, some smaller than a batch of 4."""
BUDGETS = (1.0, 0.6, 1.0, 0.6, 1.0, 0.6)


def federation() -> Federation:
    """Make six ragged clients, six features, three classes."""
    x = normal(1, (2 * sum(SIZES), 6))
    y = (x @ normal(2, (6, 3))).argmax(1)
    splits: tuple[list[torch.Tensor], ...] = ([], [], [])
    place = 0
    for size in SIZES:
        for split, count in zip(splits, (size, size // 2, size - size // 2), strict=True):
            split.append(torch.arange(place, place + count))
            place += count
    train, validation, test = map(tuple, splits)
    return Federation("toy", x, y, 3, train, validation, test)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Make a small network of three layers."""
    layers = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(normal(fold(3, name), tuple(value.shape)) * 0.4)
    return model.to(dtype)


def network_of(method: Method) -> nn.Module:
    """Make the network of the toy, or the binary one where a method needs signs."""
    if not isinstance(method, BNN):
        return network()
    model = BinaryMLP(6, (8,), 3)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "layer" in name.split(".")[-2]:
                value.copy_(normal(fold(3, name), tuple(value.shape)))
    return model.double()
