"""The convolutional networks."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from masquerade.core.sgd import gradient
from masquerade.core.task import Task
from masquerade.core.tree import Tree, split
from masquerade.models import CifarCNN, DigitsCNN, DropoutCNN, LeNet, MnistCNN

Network = type[CifarCNN] | type[MnistCNN] | type[DigitsCNN] | type[DropoutCNN]


# DigitsCNN: conv 9×16+16 and 9×16×32+32, linear 128×64+64 and 64×10+10; norms add 2×(16+32).
CASES: list[tuple[Callable[[], nn.Module], tuple[int, ...], int]] = [
    (CifarCNN, CifarCNN.shape, 797_962),
    (partial(CifarCNN, norm="batch"), CifarCNN.shape, 797_962 + 2 * (64 + 64)),
    (MnistCNN, MnistCNN.shape, 1_663_370),
    (DropoutCNN, DropoutCNN.shape, 1_626_442),
    (LeNet, (3, 32, 32), 256_830),
    (partial(LeNet, (1, 28, 28), 62, (2048,)), (1, 28, 28), 2_278_334),
    (DigitsCNN, DigitsCNN.shape, 13_706),
    (partial(DigitsCNN, shape=(1, 28, 28)), (1, 28, 28), 13_706 + (1568 - 128) * 64),
    (partial(DigitsCNN, norm="group"), DigitsCNN.shape, 13_802),
    (partial(DigitsCNN, norm="batch"), DigitsCNN.shape, 13_802),
]


@pytest.mark.parametrize(("make", "shape", "count"), CASES)
def test_network_has_the_stated_number_of_parameters_and_uses_them(
    make: Callable[[], nn.Module], shape: tuple[int, ...], count: int
) -> None:
    task = Task(make())
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))

    params, buffers = split(task.fresh(0), task.parameter_names)

    def square(trees: dict[str, Tree]) -> tuple[Tensor, Tree]:
        return task({**trees["params"], **buffers}, x)[0].square().sum(), {}

    grads, _, _ = gradient(square, {"params": params})
    assert task.parameters == count
    assert all(grad.any() for grad in grads["params"].values())


@pytest.mark.parametrize("network", [CifarCNN, MnistCNN, DigitsCNN, DropoutCNN])
def test_there_is_one_logit_per_class(network: Network) -> None:
    assert network(classes=3).eval()(torch.zeros(2, *network.shape)).shape == (2, 3)


@pytest.mark.parametrize("norm", ["none", "group", "batch"])
def test_only_a_norm_undoes_the_scale_of_the_input(norm: str) -> None:
    task = Task(DigitsCNN(norm=norm))
    # Without its bias the first convolution passes the scale on to what follows.
    values = {**task.fresh(0), "conv1.bias": torch.zeros(16)}
    x = torch.randn(4, *DigitsCNN.shape, generator=torch.Generator().manual_seed(0))
    one, ten = (task(values, scale * x, train=True)[0] for scale in (10, 100))
    assert torch.allclose(one, ten, atol=1e-3) is (norm != "none")
