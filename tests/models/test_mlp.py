"""The multilayer perceptron."""

import pytest
import torch

from masquerade.core.task import Task
from masquerade.models import MLP


def test_inputs_of_any_shape_are_flattened() -> None:
    task = Task(MLP(12, hidden=(5,), classes=3))
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(task(task.initial, x)[0], task(task.initial, x.flatten(1))[0])


def test_relu_stands_between_layers_and_not_behind_the_last() -> None:
    task = Task(MLP(2, hidden=(2,), classes=2))
    values = {
        "layers.0.weight": torch.eye(2),
        "layers.0.bias": torch.zeros(2),
        "layers.1.weight": torch.tensor([[1.0, 0.0], [0.0, -1.0]]),
        "layers.1.bias": torch.tensor([0.5, 0.0]),
    }
    # The hidden layer keeps 2 and cuts −3 off; the last gives 1 × 0 + 0.5 and −1 × 2.
    output, _ = task(values, torch.tensor([[-3.0, 2.0]]))
    assert output.tolist() == [[0.5, -2.0]]


def test_layers_are_as_wide_as_asked() -> None:
    widths = [layer[0] for layer in Task(MLP(7, hidden=(6, 5), classes=4)).shapes.values()]
    assert widths == [6, 6, 5, 5, 4, 4]


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_norm_stands_before_the_relu_and_counts_to_the_layer_above_it(norm: str) -> None:
    task = Task(MLP(3, hidden=(8, 4), classes=2, norm=norm))
    assert [layer.kind for layer in task.layers] == ["linear", "norm", "linear", "norm", "linear"]
    assert task.last(1) == ("layers.2.weight", "layers.2.bias")
    # Were the norm behind the ReLU, a bias of −100 would leave only zeros; before it, it is undone.
    values = {**task.fresh(0), "layers.0.0.bias": torch.full((8,), -100.0)}
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    output, _ = task(values, x, train=True)
    assert not torch.allclose(output[0], output[1])
