"""FedMask's Tables 2 and 3: bits over frozen weights beside trained weights, at a single client.

On digits in seconds, with every `make test`; on MNIST by `make drill`. The folder MASQUERADE_DATA
holds the four original idx files, there or in `mnist`, packed by gzip or not. Settings were chosen
on training images that were not trained on; test images only evaluate.
"""

import gzip
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.config.settings import Evaluate
from masquerade.core import Method, Task
from masquerade.core.random import normal
from masquerade.data import Federation, load
from masquerade.methods import FedAvg, FedMask
from masquerade.models import MLP, RowLSTM, build
from tests.real import convert
from tests.support import advance, built, measure

Data = tuple[Tensor, Tensor, int]
"""Images, labels, and how many of them, the first ones, are for training."""
GATED = {"lr": 0.1, "momentum": 0.9, "clip": 1.0}
"""How an LSTM is trained, with or without masks."""


def central(method: Method, model: nn.Module, data: Data, batch: int) -> float:
    """Train at one client, in one round; return the accuracy on the other images, in percent."""
    x, y, count = data
    train, test = torch.arange(len(x)).split([count, len(x) - count])
    federation = Federation("central", x, y, 10, (train,), (test,), (test,))
    made = built(
        method,
        Task(model),
        federation,
        rounds=1,
        batch_size=batch,
        evaluate=Evaluate(every=0, degrees=(0,)),
    )
    progress = made.begin()
    advance(made, progress)
    return float(measure(made, progress, method.views[0], [test]).scores[0].mean())


def mlp(inputs: int) -> nn.Module:
    return _drawn(lambda: MLP(inputs, (256, 128)))


def lstm(row: int, seed: int = 1) -> nn.Module:
    return _drawn(lambda: RowLSTM(row, 64), seed)


def cnn() -> nn.Module:
    """Make two convolutions and the linear layer that reads them."""
    return _drawn(
        lambda: nn.Sequential(
            nn.Conv2d(1, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1024, 10),
        )
    )


def _drawn(make: Any, seed: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: nn.Module = make()
        return model


BITS = {
    "pruned_layers": 0,
    "lr": 0.1,
    "scores": "equal",
    "scale": 0.001,
    "weights": "signed",
    "lr_schedule": "constant",
    "keep_scores": False,
    "keep_off": False,
}
"""No structure: the tables are about bits alone. The rest is as when the tables were made."""


def bits(**settings: Any) -> FedMask:
    return FedMask(**BITS | settings)


@pytest.fixture(scope="module")
def digits() -> Data:
    dataset = load("digits")
    return dataset.x, dataset.y, 1200


def test_digits_bits_come_near_trained_weights_and_an_lstm_loses_most(digits: Data) -> None:
    trained = central(FedAvg(lr=0.1, local_epochs=6), mlp(64), digits, 10)
    masked = central(bits(local_epochs=6), mlp(64), digits, 10)
    assert trained > 85
    assert masked > trained - 3
    gates = {**GATED, "local_epochs": 8}
    real = central(FedAvg(**gates), lstm(8), digits, 20)
    gated = central(bits(real=(), scale=0.003, **gates), lstm(8), digits, 20)
    partial = central(bits(scale=0.003, **gates), lstm(8), digits, 20)
    assert real - gated > 3 * (trained - masked)
    assert gated < partial < real


def idx(folder: Path, name: str) -> Tensor:
    """Read an idx file of bytes: two zeros, 8, the number of axes, their sizes, the bytes."""
    packed = folder / f"{name}.gz"
    raw = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    assert raw[:3] == b"\0\0\x08"
    sizes = [int.from_bytes(raw[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(raw[3])]
    body = bytearray(raw[4 + 4 * len(sizes) :])
    assert len(body) == math.prod(sizes)
    return torch.frombuffer(body, dtype=torch.uint8).reshape(sizes)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Data:
    root = os.environ.get("MASQUERADE_DATA")
    if not root:
        pytest.skip("MASQUERADE_DATA names no folder with the original MNIST files")
    folder = Path(root) / "mnist" if (Path(root) / "mnist").is_dir() else Path(root)
    if (Path(root) / "load.py").exists():  # Copies for development, in a form of their own.
        folder = tmp_path_factory.mktemp("mnist")
        convert.mnist(Path(root), folder)
    parts = [("train", 20_000), ("t10k", 10_000)]
    x = torch.cat([idx(folder, f"{part}-images-idx3-ubyte")[:count] for part, count in parts])
    y = torch.cat([idx(folder, f"{part}-labels-idx1-ubyte")[:count] for part, count in parts])
    return (x[:, None] / 255 - 0.1307) / 0.3081, y.to(torch.int64), 20_000


@pytest.mark.drill
def test_table_2_bits_come_near_trained_weights_on_mnist(mnist: Data) -> None:
    found = {
        "CNN": central(FedAvg(lr=0.1, local_epochs=2), cnn(), mnist, 32),
        "CNN masked": central(bits(local_epochs=2), cnn(), mnist, 32),
        "MLP": central(FedAvg(lr=0.1, local_epochs=5), mlp(784), mnist, 32),
        # At the paper's λ_R a tenth of its weights is left, and it loses more: docs/methods.
        "MLP masked": central(
            bits(local_epochs=5, scale=3e-4, group_lasso=2e-5), mlp(784), mnist, 32
        ),
    }
    print(found)
    assert all(found[name] - found[f"{name} masked"] < 1.5 for name in ("CNN", "MLP"))


@pytest.mark.drill
def test_table_3_an_lstm_loses_most_and_a_real_gate_gives_half_of_it_back_on_mnist(
    mnist: Data,
) -> None:
    gates = {**GATED, "local_epochs": 5}
    methods = {
        "LSTM": FedAvg(**gates),
        "masked": bits(real=(), scale=3e-3, **gates),
        "partial": bits(scale=3e-3, **gates),
    }
    # One run's accuracy varies by a point or so, hence three. The half is not robust: a smaller
    # λ_R or a falling rate gives a third back, as the method's page says.
    found = {
        name: [central(method, lstm(28, seed), mnist, 50) for seed in (1, 2, 3)]
        for name, method in methods.items()
    }
    print(found)
    trained, masked, partial = (sum(runs) / len(runs) for runs in found.values())
    # Several times the 1.5 points that Table 2 allows other networks.
    assert trained - masked > 3 * 1.5
    assert partial - masked > (trained - masked) / 2


@pytest.mark.drill
def test_vgg16_does_a_round_with_two_clients() -> None:
    x, y = normal(1, (6, 3, 32, 32)), torch.arange(6) % 2
    parts = torch.arange(6).split(3)
    federation = Federation("noise", x, y, 10, parts, parts, parts)
    task = Task(build("vgg16", (3, 32, 32), 10, seed=1))
    method = FedMask(pruned_layers=8, local_epochs=1)
    made = built(
        method, task, federation, rounds=1, batch_size=3, evaluate=Evaluate(every=0, degrees=(0,))
    )
    progress = made.begin()
    costs = advance(made, progress).costs
    # 134,301,514 bits each way for each of the two clients, before the few that changed are coded.
    for way in ("down", "up"):
        assert costs[f"values_{way}"] == 2 * -(-134_301_514 // 8)
        assert costs[way] < costs[f"values_{way}"] / 100
    # A fifth of the last eight layers, one of which has 102,760,448 weights.
    kept = progress.rows.state["structure"]["classifier.0.weight"].sum((1, 2))
    assert kept.tolist() == [20_552_089] * 2
    assert progress.diverged is None
