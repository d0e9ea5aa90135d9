"""A regression from the command's settings: from a file of numbers to its report."""

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import masquerade as mq
from masquerade.config.toml import parse
from masquerade.experiments.run import compare, start
from masquerade.export.bundle import write
from masquerade.export.from_run import find
from masquerade.export.predict import answers, open_bundle, predict
from masquerade.report.main_table import markdown
from tests.messages import Golden
from tests.support import raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app


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
def test_numbers_are_learned_and_reported(
    line: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    app(["predict", str(tmp_path / "bundle"), "--input", str(line)], standalone_mode=False)
    _, number = capsys.readouterr().out.splitlines()[0].split(": ")
    asked = predict(open_bundle(tmp_path / "bundle"), np.load(line)["x"])
    assert number == f"{asked[0, 0]:.6g}"
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


def from_python(
    model: nn.Module | mq.Task, y: "npt.NDArray[np.float32] | None" = None
) -> mq.Result:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3)).astype(np.float32)
    y = (x @ [1.0, -2.0, 0.5]).astype(np.float32) if y is None else y
    data = mq.partition(mq.from_arrays(x, y), clients=4, by="iid", seed=1)
    evaluate = mq.Evaluate(every=0, degrees=(0,))
    method = mq.methods.FedAvg(local_epochs=2)
    return mq.run(method, model, data, 8, evaluate=evaluate, progress=False)


def test_a_module_from_python_learns_numbers_by_squared_error(
    tmp_path: Path, golden: Golden
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    result = from_python(model)
    summary, _ = result.summaries
    assert (summary.metric, summary.better, list(summary.metrics)) == ("mae", "lower", ["rmse"])
    assert summary.accuracy.own.mean < 0.1
    result.save(tmp_path / "saved")
    again = mq.load_result(
        tmp_path / "saved", method=mq.methods.FedAvg(local_epochs=2), model=model
    )
    assert isinstance(again, mq.Result)
    x = torch.ones(2, 3)
    assert torch.equal(again.client(1).predict(x), result.client(1).predict(x))
    with raises("E202") as refusal:
        result.client(1).predict_label(x)
    golden(refusal.value)


def test_several_numbers_are_learned_too() -> None:
    y = np.random.default_rng(1).normal(size=(160, 2)).astype(np.float32)
    assert from_python(nn.Linear(3, 2), y).summaries[0].metric == "mae"


@pytest.mark.parametrize(
    "model", [mq.Task(nn.Linear(3, 1)), nn.Linear(3, 2)], ids=["cross entropy", "outputs"]
)
def test_what_does_not_fit_numbers_is_refused(model: nn.Module | mq.Task, golden: Golden) -> None:
    with raises("E202") as refusal:
        from_python(model)
    golden(refusal.value)


def test_a_method_is_checked_on_numbers() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)), rng.normal(size=80)
    data = mq.partition(mq.from_arrays(x, y), clients=6, by="iid", seed=1)
    assert mq.check(mq.methods.FedAvg(local_epochs=1), nn.Linear(3, 1), data).holds
