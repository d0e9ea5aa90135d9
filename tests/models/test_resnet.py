"""ResNet-18: its size, its names, its stems, and training it batched over clients."""

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import Batch, Round, Task, tree
from masquerade.core.sgd import sgd_step
from masquerade.core.tree import State
from masquerade.engine.vmapped import mapped as over_clients
from masquerade.models import ResNet18, build
from tests.support import raises


def test_its_tensors_have_the_names_of_torchvision() -> None:
    with torch.device("meta"):
        names = list(ResNet18().state_dict())
    # 20 convolutions, 20 norms of 5 tensors each, weight and bias of the last layer.
    assert len(names) == 20 + 20 * 5 + 2
    for name in ("conv1.weight", "bn1.running_var", "layer1.0.conv2.weight", "fc.bias"):
        assert name in names
    assert "layer4.0.downsample.1.num_batches_tracked" in names
    assert not any(name.startswith("layer1.0.downsample") for name in names)
    assert names[0] == "conv1.weight"


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("cifar", 32)])
def test_the_stem_decides_how_large_features_are(stem: str, side: int) -> None:
    seen: list[tuple[int, ...]] = []
    model = ResNet18(3, stem=stem).eval()
    model.get_submodule("layer1").register_forward_hook(
        lambda module, given, found: seen.append(tuple(found.shape))
    )
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    assert seen == [(1, 64, side, side)]


def test_images_of_other_channels_fit_and_other_shapes_are_refused() -> None:
    with torch.no_grad():
        assert build("resnet18", (1, 28, 28), 4, 0).eval()(torch.zeros(2, 1, 28, 28)).shape == (
            2,
            4,
        )
    with raises("E202", "`resnet18`", "(64,)"):
        build("resnet18", (64,), 10, 0)


class Small(nn.Module):
    """The stem of the network alone, with its norm: enough to train in no time."""

    def __init__(self) -> None:
        super().__init__()
        whole = ResNet18(stem="cifar")
        self.conv1, self.bn1, self.fc = whole.conv1, whole.bn1, nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.fc(torch.relu(self.bn1(self.conv1(x))).mean((2, 3)))
        return logits


def test_training_with_batch_norm_is_the_same_batched_over_clients() -> None:
    task, one = Task(Small().double()), torch.ones((), dtype=torch.float64)
    x = torch.randn(2, 5, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, keys = torch.arange(10).reshape(2, 5) % 3, torch.zeros(2, dtype=torch.int64)
    step, round = sgd_step(task, lr=0.1), Round("train", "train", one, one, one)

    def train(values: State, x: Tensor, y: Tensor, key: Tensor) -> State:
        return step({"params": values}, Batch(x, y, None, key), round)["params"]

    values = tree.stack([task.initial] * 2)
    together = over_clients(2, train, values, x, y, keys)
    for client in range(2):
        alone = train(task.initial, x[client], y[client], keys[client])
        for name, value in alone.items():
            torch.testing.assert_close(together[name][client], value, rtol=0, atol=1e-9)
        assert not torch.equal(alone["bn1.running_mean"], task.initial["bn1.running_mean"])
