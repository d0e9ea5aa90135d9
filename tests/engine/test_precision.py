"""Shorter types for products: close to the exact run, and nothing else changes."""

import pytest
import torch

from masquerade.core import Task
from masquerade.engine.precision import numbers
from tests.support import federation, network


def test_products_are_short_and_outputs_are_not() -> None:
    task, data = Task(network().float()), federation()
    exact, _ = task(task.initial, data.x)
    with numbers("bfloat16"):
        short, _ = task(task.initial, data.x)
    again, _ = task(task.initial, data.x)
    assert short.dtype == exact.dtype
    assert torch.equal(again, exact)
    assert not torch.equal(short, exact)
    # Eight bits behind the point, over a few layers.
    torch.testing.assert_close(short, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_cpu_knows_no_other_short_type(precision: str) -> None:
    task, data = Task(network().float()), federation()
    with numbers(precision):
        inside, _ = task(task.initial, data.x)
    assert torch.equal(inside, task(task.initial, data.x)[0])
