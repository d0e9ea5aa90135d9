"""A model that is read back from a run directory is the model that the run had, of every method."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from masquerade.config import toml as configuration
from masquerade.config.resolve import LoadedConfig, alone, settle, trainings
from masquerade.core.part import Message
from masquerade.evaluation.evaluate import Evaluator
from masquerade.experiments import run as experiment
from masquerade.export import from_run as exporting
from masquerade.methods import METHODS


@pytest.mark.parametrize("wire", ["same", "int8"])
def test_a_model_read_from_a_run_answers_as_the_run_had_it(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(24, 4)).astype(np.float32)
    y, client = (x @ rng.normal(size=(4, 3))).argmax(1), np.arange(24) % 2
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=client)
    # What is rounded on the way matters to the few views that hand on a download.
    names = list(METHODS) if wire == "same" else ["fedem", "dmpfl_plus", "fedselect"]
    table: dict[str, Any] = {
        "methods": names,
        "data": {"name": str(tmp_path / "mine.npz"), "partition": "client"},
        "train": {"model": "mlp", "rounds": 1, "message_dtype": wire},
        "evaluate": {"every": 0, "draws": 1},
        "compute": {"engine": "loop"},
    }
    held: dict[str, list[Message]] = {}

    def watched(*given: Any) -> Any:
        summaries, personal = final(*given)
        held.update(personal)
        return summaries, personal

    final = Evaluator.final
    monkeypatch.setattr(Evaluator, "final", watched)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = settle(LoadedConfig.of(configuration.parse(table))).config
        for training in trainings(config):
            held.clear()
            path = tmp_path / training.folder
            experiment.start(alone(config, training), path)
            assert held, training.folder
            for view, models in held.items():
                found = exporting.find(path, 1, view).model
                expected = found.method.predict(found.task, models[1], found.x)
                assert set(found.parts) == set(models[1]), (training.folder, view)
                assert torch.equal(found.predict(found.x), expected), (training.folder, view)
