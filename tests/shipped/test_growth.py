"""`bench/scaling.py` and `bench/precision.py`: what they measure, and what their pages say."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from masquerade.models import MLP

ROOT = Path(__file__).parents[2]
Record = dict[str, Any]


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts of the folder be found."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))


def point(clients: int, memory: int, **more: int) -> Record:
    """A point whose start takes the square of its clients, its evaluation grows with them."""
    seconds = {
        "build": clients**2,
        "first round": 9,
        "round": 0.5,
        "evaluation": clients,
        "commit": 1,
    }
    held = {
        "before": 5,
        **dict.fromkeys(("build", "first round", "round", "evaluation", "commit"), memory),
    }
    sizes = {"disk": 10 * clients, "states": 4 * clients, "data": 0, "exactly": 7}
    fixed = {"method": "FedAvg", "parameters": 10, "cohort": 2, "engine": "loop"}
    return fixed | {"clients": clients, "seconds": seconds, "memory": held | more, **sizes}


def measurements(place: str, *points: Record) -> Record:
    return {
        "place": place,
        "device": f"a {place}",
        "torch": "2",
        "date": "2026-01-01",
        "command": "measure",
        "work": {"train": 1, "test": 1, "batch": 1, "epochs": 1},
        "axes": [{"name": "clients", "values": [10, 40], "fixed": {"parameters": 10, "cohort": 2}}],
        "points": list(points),
    }


def test_exponents_are_those_of_the_figures(tmp_path: Path) -> None:
    from scaling_page import powers, said, write

    cpu = measurements("CPU", point(10, 2_000_005), point(40, 4_000_005))
    known = powers(cpu, cpu["axes"][0], "FedAvg")
    # From 10 to 40: 100 → 1600 is 4², 10 → 40 is 4¹, 2 MB → 4 MB beyond what was there is √4.
    wanted = {"start": 2, "round": 0, "evaluation": 1, "commit": 0, "memory of rounds": 0.5}
    assert known == pytest.approx(wanted | {"bytes on disk": 1})
    assert said(cpu)[0] == (
        "**Clients** (CPU). No growth: round, commit; less than linear: memory of rounds; "
        "linear: evaluation, bytes on disk; more than linear: start."
    )
    # A GPU's own memory stands before that of the process.
    gpu_memory = {"round on the GPU": 1_000_000, "evaluation on the GPU": 1, "commit on the GPU": 1}
    gpu = measurements("GPU", point(10, 9, **gpu_memory), point(40, 9, **gpu_memory))
    assert powers(gpu, gpu["axes"][0], "FedAvg")["memory of rounds"] == 0
    folder = tmp_path / "scaling"
    folder.mkdir()
    for name, each in (("cpu", cpu), ("cuda", gpu)):
        (folder / f"{name}.json").write_text(json.dumps(each), encoding="utf-8")
    write(tmp_path / "scaling.md")
    page = (tmp_path / "scaling.md").read_text(encoding="utf-8")
    assert "| clients | CPU | FedAvg | 2.00 | 0.00 | 1.00 | 0.00 | 0.50 | 1.00 |" in page
    assert "| 40 | FedAvg | loop | 1,600 | 9 | 0.5 | 40 | 1 | 4 | 4 | 4 | 0.0004 |" in page
    drawn = (tmp_path / "scaling.svg").read_text(encoding="utf-8")
    assert drawn.count(">FedAvg</text>") == drawn.count(">solid: CPU, dashed: GPU</text>") == 1


def test_networks_have_the_parameters_that_were_asked_for() -> None:
    from scaling import AXES, CLASSES, FEATURES, Point

    for wanted in AXES[1].values:
        hidden = Point("FedAvg", 1, wanted, 1).hidden()
        with torch.device("meta"):
            network = MLP(FEATURES, (hidden, hidden), CLASSES)
        count = sum(value.numel() for value in network.parameters())
        assert math.isclose(count, wanted, rel_tol=0.01)


def test_the_quick_size_measures_every_axis_and_each_point_has_its_own_peak(tmp_path: Path) -> None:
    page = tmp_path / "scaling.md"
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "scaling.py"), "--quick", "--out", str(page)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "scaling" / "cpu.json").read_text(encoding="utf-8"))["points"]
    assert len(found) == 8
    for each in found:
        assert min(each["seconds"].values()) > 0
        # A commit has the states of a cohort, and the model.
        assert each["disk"] > each["states"] * each["cohort"] / each["clients"]
    large, last = max(found, key=lambda each: each["states"]), found[-1]
    # The last process is smaller than one before it, by what that had to hold at least.
    assert large["memory"]["round"] - last["memory"]["round"] > large["states"] > 4e6
    assert page.read_text(encoding="utf-8").count("\n## Against ") == 3


def test_differences_are_taken_seed_by_seed() -> None:
    from precision import row

    def result(own: float, shifted: float, *where: str) -> Record:
        shift = {"0": {"mean": own}, "100": {"mean": shifted}}
        memory = dict.fromkeys(("process", *where), 1.0)
        return {"accuracy": {"shift": shift}, "seconds": 2.0, "memory": memory}

    by_seed = {
        "float32": {1: result(70, 40), 2: result(80, 50), 3: result(0, 0)},
        "tf32": {},
        "bfloat16": {1: result(71, 40, "cuda"), 2: result(81, 48, "cuda")},
    }
    # Own data +1 with both seeds, so no spread; shifted 0 and −2, half of whose range is 1.
    cells = row("FedAvg", "bfloat16", by_seed)
    assert cells[5:] == ["+1.00 (0.00)", "-1.00 (1.00)", "2.0"]
    # 70, 80 and 0: 4.303 · 43.589 / √3; 40, 50 and 0: 4.303 · 26.458 / √3.
    exact = row("FedAvg", "float32", by_seed)
    assert exact[3:] == ["50.00 (108.28)", "30.00 (65.72)", "–", "–", "–"]


def test_precisions_are_trained_once_each_and_stand_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from precision import run, write

    tiny = ("train.rounds=1", "train.seeds=[1]", "train.model=logistic", "evaluate.draws=1")
    tiny += ("method.dmpfl.first_dense=false", "method.fedavg.tune_epochs=1")
    for _ in range(2):
        run(ROOT / "runs" / "precision" / "digits.toml", tiny, tmp_path / "precision")
    assert len(capsys.readouterr().out.splitlines()) == 4
    write(tmp_path / "precision.md")
    page = (tmp_path / "precision.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith(("| FedAvg+FT", "| DM-PFL"))]
    assert [line.split(" | ")[1] for line in lines] == ["float32", "bfloat16"] * 2
    files = sorted((tmp_path / "precision").iterdir())
    first, second = (json.loads(file.read_text())["settings"] for file in files[:2])
    assert first == second
    assert "`python bench/precision.py runs/precision/digits.toml`: " in page
