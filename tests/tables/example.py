"""A small table for tests: two numbers, two categories, some cells missing."""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

import masquerade as mq
from masquerade.core.features import Feature
from masquerade.data import Dataset, Federation
from masquerade.tables.layout import Layout

NAN = float("nan")
COLUMNS = (
    Feature("age"),
    Feature("sex", ("f", "m")),
    Feature("pressure"),
    Feature("ward", ("a", "b", "c")),
)
WIDTH = 2 + 2 + 3


@cache
def table() -> Dataset:
    """Sixty rows of three hospitals; one cell in seven of `age` and `ward` is missing."""
    draw = torch.Generator().manual_seed(1)
    age = 50 + 10 * torch.randn(60, generator=draw)
    pressure = 120 + 20 * torch.randn(60, generator=draw)
    sex, ward = (torch.randint(0, most, (60,), generator=draw) for most in (2, 3))
    y = (age > 50).long()
    x = torch.stack([age, sex.float(), pressure, ward.float()], 1)
    x[::7, 0], x[3::7, 3] = NAN, NAN
    whole = mq.from_arrays(torch.zeros(60, 4), y, [f"h{place % 3}" for place in range(60)])
    named = {"features": COLUMNS, "impute": "median", "class_names": ("young", "old")}
    named["layout"] = Layout(("y",))
    return replace(whole, x=x, **named)


def federation() -> Federation:
    """The three hospitals."""
    return mq.partition(table(), None, "client", seed=1)


def linear() -> nn.Module:
    """A linear network whose weights are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Linear(WIDTH, 2)


def own_rows(data: Federation, client: int) -> Tensor:
    """The training samples of a client."""
    return data.x[data.train[client]]
