"""The comparison with other frameworks: bare loops do the work that we do, and the command runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from masquerade.core import mask
from tests.support import advance, measure

HERE = Path(__file__).parents[2] / "bench" / "peers"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch):
    """Let the scripts of the folder find one another."""
    monkeypatch.syspath_prepend(str(HERE))


def plain_layers() -> list[nn.Module]:
    """Our network for digits, in plain PyTorch."""
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return [*layers, nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]


def tiny(folder: Path) -> None:
    """Write three clients of five, eight and three images, in float64."""
    import protocol

    from masquerade.models import build

    rng = np.random.default_rng(1)
    arrays = {}
    for prefix, ends in (("", [5, 13, 16]), ("test_", [4, 8, 12])):
        arrays[f"{prefix}x"] = rng.normal(size=(ends[-1], 1, 8, 8))
        arrays[f"{prefix}y"] = rng.integers(0, 10, ends[-1])
        arrays[f"{prefix}ends"] = np.array(ends)
    model = build("digits_cnn", (1, 8, 8), 10, seed=1)
    weights = [value.detach().double() for value in model.parameters()]
    protocol.write(folder, arrays, weights)


@pytest.mark.usefixtures("peers")
@pytest.mark.parametrize("method", ["ditto", "apfl", "fedrep", "dmpfl"])
def test_a_bare_loop_ends_with_the_same_personal_models(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch holds all of a client's samples, so that no order of them can make a difference."""
    import bare_methods
    import protocol
    import run_ours

    # Weights that just grew are all zero: which of them are the largest is our choice.
    monkeypatch.setattr(bare_methods, "top", mask.top)
    monkeypatch.setitem(protocol.NETWORKS, "digits_cnn", plain_layers)
    tiny(tmp_path)
    data = protocol.Data.read(str(tmp_path))
    phases = ["dual", "global", "personal"] if method == "dmpfl" else []
    work = protocol.Work(
        str(tmp_path), "digits_cnn", method, 3, 10, 0.05, 1, 2, 0, "cpu", 1, "float32", phases
    )
    plain = protocol.network(work.network, data)
    personal = getattr(bare_methods, method)(work, data, plain, protocol.Ledger(work))
    theirs = [[value.detach().clone() for value in personal(id).parameters()] for id in range(3)]
    with run_ours.made(work, data) as simulation:
        progress = simulation.begin()
        while progress.number < work.total:
            advance(simulation, progress)
        none = [torch.empty(0, dtype=torch.int64)] * 3
        models = measure(simulation, progress, simulation.spec.views[0], none).models
    for ours, bare in zip(models, theirs, strict=True):
        for left, right in zip(ours["params"].values.values(), bare, strict=True):
            assert torch.allclose(left, right, rtol=0, atol=1e-9)
    # Training moved them, and differently.
    assert not torch.allclose(theirs[0][-2], data.initial[-2])
    assert not torch.allclose(theirs[0][-2], theirs[1][-2])


def test_the_command_compares_and_writes_its_page(tmp_path: Path) -> None:
    page = tmp_path / "peers.md"
    command = [sys.executable, str(HERE), "--quick", "--only", "s1", "--page", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "| Masquerade (masquerade " in text
    assert "| bare PyTorch loop (torch " in text
    # Three rounds of two clients with twenty samples, in batches of ten.
    assert text.count("| 12 |") == 2


@pytest.mark.usefixtures("peers")
def test_missed_bars_and_unequal_work_are_said(tmp_path: Path) -> None:
    import runpy

    import page
    import protocols

    command = runpy.run_path(str(HERE / "__main__.py"))
    protocol = protocols.PROTOCOLS["s1"].sized(None, False, "real")
    report = {"seconds": 1.0, "steps": 6300, "evaluations": 5, "accuracy": 90.0}
    found = {
        "ours": [report] * 3,
        "bare": [report] * 3,
        "pfl": [report | {"seconds": 2.9, "steps": 6299}] * 3,
        "flower:2": [report | {"seconds": 15.1, "accuracy": 80.0}] * 3,
    }
    assert page.ratios(found["pfl"], found["ours"])[1] == 2.9
    (slow,) = command["missed"](protocol, found)
    assert "ours is 2.90 × as fast as pfl" in slow
    steps, accuracy = command["unequal"](protocol, found)
    assert "pfl took {6299} steps" in steps
    assert "flower:2 ends at 80.0 %" in accuracy
