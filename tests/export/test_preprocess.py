"""Exported models take raw inputs and do to them what was done in training."""

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import masquerade as mq
from masquerade.config.normalize import parse
from masquerade.core import Task
from masquerade.core.preprocess import Preprocess
from masquerade.data import Federation
from masquerade.export import from_run, sparse
from masquerade.export import predict as answering
from masquerade.methods import DMPFL, FedAvg, FedMask
from masquerade.models import build
from tests.export.test_bundle import call
from tests.support import raises

METHODS = {"dense": FedAvg(local_epochs=1), "masked": DMPFL(local_epochs=1, first_dense=False)}


@cache
def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of three channels in bytes, and their classes."""
    digits = mq.load("digits")
    x = torch.cat([digits.x * scale for scale in (255, 120, 40)], dim=1)
    return x[:300].to(torch.uint8), digits.y[:300]


def clients(x: torch.Tensor) -> Federation:
    return mq.partition(mq.from_arrays(x, images()[1]), 3, "iid", seed=1)


def network(name: str, shape: tuple[int, ...]) -> nn.Module:
    """A network whose weights are the same each time; the convolution pads with zeros."""
    if name == "mlp":
        return build(name, shape, 10, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(128, 10))


def personal(method: mq.Method, name: str, own: Preprocess, x: torch.Tensor) -> mq.Personal:
    task = Task(network(name, tuple(x.shape[1:])), preprocess=own)
    return mq.run(method, task, clients(x), 1, batch_size=50).client(0)


def answered(bundle: Path, x: torch.Tensor, folder: Path) -> torch.Tensor:
    """What `masquerade predict` answers."""
    np.save(folder / "x.npy", x.numpy())
    where = folder / "y.npy"
    where.unlink(missing_ok=True)
    call("predict", bundle, "--input", folder / "x.npy", "--out", where, "--quiet")
    return torch.from_numpy(np.load(where))


KINDS = list(itertools.product(("unit", "standard", "0.5:0.5"), ("mlp", "cnn"), METHODS))
OFTEN = [
    ("unit", "mlp", "masked"),
    # A convolution pads with zeros what has its mean subtracted.
    ("standard", "cnn", "masked"),
    ("0.5:0.5", "cnn", "dense"),
    ("0.5:0.5", "mlp", "masked"),
]
"""Every preprocessing, network and method; all of them together are a drill."""


def marked(kind: tuple[str, ...]) -> Any:
    return pytest.param(*kind, marks=[] if kind in OFTEN else pytest.mark.drill)


@pytest.mark.parametrize(("normalize", "name", "method"), list(map(marked, KINDS)))
def test_a_bundle_answers_raw_bytes_as_its_model_does(
    normalize: str, name: str, method: str, tmp_path: Path
) -> None:
    x = images()[0]
    mine = personal(METHODS[method], name, parse(normalize), x)
    mine.export(tmp_path / "bundle", x[:8])
    expected = mine.predict(x[:40])
    found = answered(tmp_path / "bundle", x[:40], tmp_path)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # What is done to inputs matters, or nothing was tested.
    other = mine.task.with_preprocess(parse("none"))
    assert not torch.allclose(mine.method.predict(other, mine.parts, x[:40]), expected, atol=1e-2)


@pytest.mark.parametrize("normalize", ["none", "standard"])
def test_a_model_of_numbers_answers_numbers_and_bytes_as_it_does_itself(
    normalize: str, tmp_path: Path
) -> None:
    raw = images()[0]
    x = raw[:, :1] / 255
    mine = personal(METHODS["dense"], "mlp", parse(normalize), x)
    mine.export(tmp_path / "bundle", x[:8])
    for given in (x[:40], raw[:40, :1]):
        found = answered(tmp_path / "bundle", given, tmp_path)
        torch.testing.assert_close(found, mine.predict(given), rtol=1e-5, atol=1e-5)


def test_manifest_and_card_say_what_the_model_does_itself(tmp_path: Path) -> None:
    x, said = images()[0], {}
    for normalize in ("unit", "0.5:0.25"):
        mine = personal(METHODS["dense"], "mlp", parse(normalize), x)
        mine.export(tmp_path / normalize, x[:8])
        said[normalize] = answering.open_bundle(tmp_path / normalize).manifest["input"]["meaning"]
        assert f"| inputs | {said[normalize]} |" in (tmp_path / normalize / "card.md").read_text()
    assert said["unit"] == "pixels from 0 to 255, which the model scales to 0 to 1 itself"
    assert said["0.5:0.25"] == (
        "pixels from 0 to 255 as the data have them; the model does this itself: bytes are divided "
        "by 255, then mean 0.5 is subtracted and the rest divided by std 0.25"
    )


def trained(folder: Path) -> Path:
    """A run of FedMask on standardized digits, of which two clients are novel."""
    path = folder / "fedmask-1"
    settings = ("data.normalize=standard", "data.novel=0.25", "method.local_epochs=1")
    options = [word for each in settings for word in ("--set", each)]
    sizes = ("--rounds", 1, "--clients", 8, "--model", "mlp")
    call("run", "--method", "fedmask", *sizes, *options, "--out", path, "--quiet")
    return path


def test_a_run_directory_gives_the_model_with_its_fitted_constants(tmp_path: Path) -> None:
    path, x = trained(tmp_path), mq.load("digits").x[:20]
    assert 'normalize = "standard"' in (path / "config.toml").read_text()
    summary = json.loads((path / "summary.json").read_text())[0]
    client = summary["per_client"]["ids"][0]
    model = from_run.find(path, client).model
    assert summary["preprocessing"]["text"] in model.meaning
    call("export", path, "--client", client, "--out", tmp_path / "bundle", "--quiet")
    found = answered(tmp_path / "bundle", x, tmp_path)
    torch.testing.assert_close(found, model.predict(x), rtol=1e-5, atol=1e-5)
    # Weights alone come with what is to be done to inputs: a network with both answers the same.
    for form in ("dense", "packed", "seeded"):
        file = tmp_path / f"{form}.safetensors"
        call("export", path, "--client", client, "--format", form, "--out", file, "--quiet")
        task = Task(build("mlp", (1, 8, 8), 10, 7), preprocess=sparse.read_preprocess(file))
        (weights,) = sparse.read(file)
        assert torch.equal(task(weights, x)[0], model.predict(x)), form


def test_weights_alone_cannot_carry_code_of_ones_own() -> None:
    task = Task(build("mlp", (1, 8, 8), 10, 7), preprocess=torch.relu)
    with raises("E202", "`relu`"):
        sparse.packed([task.initial], task.preprocess)


def test_a_function_of_ones_own_is_exported_in_the_graph(tmp_path: Path) -> None:
    def inverted(x: torch.Tensor) -> torch.Tensor:
        return 1 - x.float() / 255

    x = images()[0]
    mine = personal(FedMask(local_epochs=1), "mlp", inverted, x)
    mine.export(tmp_path / "bundle", x[:8])
    found = answered(tmp_path / "bundle", x[:40], tmp_path)
    torch.testing.assert_close(found, mine.predict(x[:40]), rtol=1e-5, atol=1e-5)
