"""User-level privacy: the mean of clipped updates equals a loop, and holders are not counted."""

import pytest
import torch

from masquerade.core import Part
from masquerade.core.dp_mean import DPMean
from masquerade.core.random import normal, uniform


@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_the_mean_of_clipped_updates_equals_a_loop(bound):
    old = {"w": normal(1, (4, 3), torch.float64), "b": normal(2, (3,), torch.float64)}
    values = {n: normal(7, (5, *v.shape), torch.float64) for n, v in old.items()}
    keep = {"w": uniform(3, (5, 4, 3)) < 0.5}
    rule = DPMean(noise_multiplier=0.0, max_grad_norm=bound, expected=8)
    found = rule.reduce(Part(values, keep), torch.tensor([9, 1, 1, 1, 1]), old)
    total = {name: torch.zeros_like(value) for name, value in old.items()}
    for client in range(5):
        own = {n: values[n][client] - old[n] for n in old}
        own["w"] = own["w"] * keep["w"][client]
        norm = sum(value.square().sum() for value in own.values()).sqrt()
        for name, value in own.items():
            total[name] += value * min(1.0, bound / float(norm))
    for name, value in total.items():
        torch.testing.assert_close(found[name], old[name] + value / 8, atol=1e-12, rtol=0)


def test_noise_is_the_same_where_nobody_holds_a_coordinate():
    old = {"w": torch.zeros(2, 20_000)}
    held = torch.zeros(3, 2, 20_000, dtype=torch.bool)
    held[:, 0] = True
    part = Part({"w": torch.zeros(3, 2, 20_000)}, {"w": held})
    rule = DPMean(noise_multiplier=2.0, max_grad_norm=3.0, expected=4)
    found = rule.reduce(part, torch.ones(3), old)["w"]
    for row in found:
        assert float(row.std()) == pytest.approx(2.0 * 3.0 / 4, rel=0.03)


def test_one_client_moves_the_sum_by_no_more_than_the_bound():
    old = {"w": torch.zeros(50)}
    rule = DPMean(noise_multiplier=0.0, max_grad_norm=0.25, expected=1)
    for size in (1e-3, 1.0, 1e30):
        part = Part({"w": size * normal(1, (1, 50))})
        assert float(rule.reduce(part, torch.ones(1), old)["w"].norm()) <= 0.25 * (1 + 1e-6)
