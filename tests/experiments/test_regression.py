"""A regression from the command's settings: from a file of numbers to its report."""

from pathlib import Path

import numpy as np
import pytest

from masquerade.config.toml import parse
from masquerade.experiments.run import compare, start
from masquerade.export.bundle import write
from masquerade.export.from_run import find
from masquerade.export.predict import answers, open_bundle, predict
from masquerade.report.tables import markdown
from tests.support import raises


@pytest.fixture
def line(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3)).astype(np.float32)
    np.savez(tmp_path / "line.npz", x=x, y=(x @ [1.0, -2.0, 0.5]).astype(np.float32))
    return tmp_path / "line.npz"


def tables(line: Path, **sections: dict[str, object]) -> dict[str, object]:
    return {
        "methods": ["fedavg"],
        "data": {"name": str(line), "clients": 4, **sections.get("data", {})},
        "train": {"model": "logistic", "rounds": 8, **sections.get("train", {})},
        "evaluate": {"every": 0, "degrees": [0, 100], **sections.get("evaluate", {})},
    }


@pytest.mark.usefixtures("plain_pages")
def test_numbers_are_learned_and_reported(line: Path, tmp_path: Path) -> None:
    (summary,) = start(parse(tables(line)), tmp_path / "run", page=True)
    # A linear network learns a line: its error is far below the spread of the targets.
    spread = float(np.std(np.load(line)["y"]))
    assert summary.accuracy.own.mean < spread / 20
    assert (summary.metric, summary.better, summary.majority) == ("mae", "lower", None)
    assert list(summary.metrics) == ["rmse"]
    assert summary.metrics["rmse"].own.mean >= summary.accuracy.own.mean
    text = markdown([summary])
    assert "MAE · line" in text
    assert "| RMSE |" in text
    assert "ccuracy" not in text
    assert "MAE · line" in (tmp_path / "run" / "report.html").read_text()
    # What is exported gives numbers, as the model does.
    found = find(tmp_path / "run", 1)
    write(tmp_path / "bundle", found.model, found.card, found.labels)
    outputs = predict(open_bundle(tmp_path / "bundle"), found.model.x.numpy())
    expected = found.model.predict(found.model.x)
    np.testing.assert_allclose(outputs, expected.numpy(), rtol=1e-5)
    (first, *_) = answers(open_bundle(tmp_path / "bundle"), outputs)
    assert first == {"output": outputs[0].tolist()}
    assert "MAE on test data" in found.card.text()


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("data", "partition", "dirichlet:0.3"),
        ("data", "partition", "pathological"),
        ("evaluate", "metrics", ["auroc"]),
        ("train", "class_weights", "balanced"),
    ],
)
def test_what_needs_classes_is_refused_and_leaves_nothing(
    line: Path, tmp_path: Path, section: str, key: str, value: object
) -> None:
    with raises("E202"):
        compare(tmp_path / "run", parse(tables(line, **{section: {key: value}})))
    assert not (tmp_path / "run").exists()
