"""Dropout from the keys of batches: how much it drops, and that both engines drop the same."""

import pytest
import torch
from torch import nn

from masquerade.core.dropout import Dropout, noise
from masquerade.core.random import normal
from masquerade.core.task import Task
from masquerade.methods import Ditto, FedAvg
from tests.support import simulate

KEY = torch.tensor(7)


def dropped(share: float, x: torch.Tensor, key: torch.Tensor = KEY) -> torch.Tensor:
    return Task(Dropout(share))({}, x, train=True, key=key)[0]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5])
def test_the_share_is_dropped_and_the_mean_stays(share: float) -> None:
    x = torch.ones(100, 1000)
    found = dropped(share, x)
    # 100,000 entries: five standard deviations of a share are at most 0.008.
    assert float((found == 0).double().mean()) == pytest.approx(share, abs=0.008)
    assert float(found.mean()) == pytest.approx(1, abs=0.016)
    assert found[found != 0].unique().tolist() == pytest.approx([1 / (1 - share)])


def test_noise_is_spread_evenly_over_entries_that_share_a_hash() -> None:
    drawn = noise(KEY, torch.Size((50_000, 4))).long() + 32_768
    counts = drawn.flatten().bincount(minlength=65_536).reshape(16, -1).sum(1)
    # 12,500 are expected in each of sixteen; five standard deviations are 541.
    assert (counts - 12_500).abs().max() < 541
    off_diagonal = torch.corrcoef(drawn.double().T) - torch.eye(4)
    assert off_diagonal.abs().max() < 0.025


def test_a_sample_loses_the_same_whatever_follows_it() -> None:
    x = normal(3, (9, 5, 3))
    assert torch.equal(dropped(0.5, x)[:4], dropped(0.5, x[:4]))


def test_layers_and_keys_drop_differently_and_use_drops_nothing() -> None:
    x = torch.ones(8, 50)
    assert not torch.equal(dropped(0.5, x), dropped(0.5, x, KEY + 1))
    twice = Task(nn.Sequential(Dropout(0.5), Dropout(0.5)))
    share = float((twice({}, torch.ones(100, 1000), train=True, key=KEY)[0] == 0).double().mean())
    assert share == pytest.approx(0.75, abs=0.008)
    assert torch.equal(twice({}, x)[0], x)


@pytest.mark.parametrize(
    "method", [FedAvg(local_epochs=2), Ditto(local_epochs=1, personal_epochs=2)]
)
def test_both_engines_drop_the_same(method: FedAvg | Ditto) -> None:
    layers = nn.Linear(6, 8), Dropout(0.25), nn.ReLU(), nn.Linear(8, 6), Dropout(0.5)
    model = nn.Sequential(*layers, nn.Linear(6, 3)).double()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(normal(4, tuple(value.shape)))
    (one, loop), (two, batched) = (
        simulate(method, task=Task(model), rounds=2, engine=engine)
        for engine in ("loop", "batched")
    )
    assert (one.engine.name, two.engine.name) == ("loop", "batched")
    left, right = loop.tensors(), batched.tensors()
    numbers = [name for name, value in left.items() if value.is_floating_point()]
    assert numbers
    for name in numbers:
        assert torch.allclose(left[name], right[name], rtol=0, atol=1e-9), name


def test_processes_drop_the_same() -> None:
    model = nn.Sequential(nn.Linear(6, 8), Dropout(0.5), nn.Linear(8, 3)).double()
    _, alone = simulate(FedAvg(local_epochs=1), task=Task(model), rounds=1)
    _, together = simulate(FedAvg(local_epochs=1), task=Task(model), rounds=1, processes=2)
    left, right = alone.tensors(), together.tensors()
    assert all(torch.equal(left[name], right[name]) for name in left)
