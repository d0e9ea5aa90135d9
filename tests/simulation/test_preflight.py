"""What is tried before any work: a network that does not fit its samples is refused by layer."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import masquerade as mq
from tests.messages import Golden
from tests.support import raises


def go(model: nn.Module, *shape: int) -> mq.Result:
    """Train on samples of a shape for no time at all."""
    x = np.random.default_rng(0).random((40, *shape), dtype=np.float32)
    data = mq.partition(mq.from_arrays(x, np.arange(40) % 2), clients=2, by="iid", seed=1)
    settings = mq.Evaluate(every=0, degrees=(0,))
    return mq.run(mq.methods.FedAvg(local_epochs=1), model, data, 1, evaluate=settings)


class Own(nn.Module):
    """A network whose layer does not fit further in."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(10, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).flatten(1))


UNFIT = {
    "first layer": (nn.Linear(5, 2), (3,), ("5 inputs", "3 inputs")),
    "not flat": (nn.Sequential(nn.Linear(16, 2)), (1, 4, 4), ("`0`", "nn.Flatten()")),
    "further in": (Own(), (1, 4, 4), ("`head`", "16 inputs")),
    "channels": (nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 2, 3))), (1, 4, 4), ("1 channel",)),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_layer_of_another_width_is_named_with_the_width_it_needs(
    case: str, golden: Golden
) -> None:
    model, shape, named = UNFIT[case]
    with raises("E202", *named) as refusal:
        go(model, *shape)
    golden(refusal.value)


@pytest.mark.parametrize("width", [1, 2])
def test_labels_that_are_not_flat_are_refused(width: int) -> None:
    x = np.random.default_rng(0).random((40, 3), dtype=np.float32)
    data = mq.from_arrays(x, np.zeros((40, width), dtype=np.int64))
    federation = mq.partition(data, clients=2, by="iid", seed=1)
    with raises("E202", f"[n, {width}]"):
        mq.run(mq.methods.FedAvg(local_epochs=1), nn.Linear(3, 2), federation, 1)


def test_tokens_need_a_network_that_reads_them(golden: Golden) -> None:
    tokens = np.arange(120).reshape(40, 3) % 7
    data = mq.partition(mq.from_arrays(tokens, np.arange(40) % 2), clients=2, by="iid", seed=1)
    with raises("E202", "char_lstm") as refusal:
        mq.run(mq.methods.FedAvg(local_epochs=1), nn.Linear(3, 2), data, 1)
    golden(refusal.value)


def test_any_other_error_of_a_network_is_passed_on_with_what_was_tried() -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("own")

    with pytest.raises(ValueError, match="own") as fault:
        go(Broken(3, 2), 3)
    assert "x [3, 3] float32" in fault.value.__notes__[0]
