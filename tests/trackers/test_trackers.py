"""Trackers: what they log is what the records and the summary have; names, runs, missing packages.

TensorBoard's files are read back with its own reader; MLflow and Weights & Biases are stand-ins
with the interfaces that are called.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

import masquerade as mq
from masquerade.experiments.callbacks import Run
from masquerade.trackers.parse import parse
from tests.experiments.test_callbacks import Noting, go
from tests.experiments.test_resume import Halt, HaltAfter
from tests.messages import Golden
from tests.support import federation, network, raises

pytestmark = pytest.mark.usefixtures("plain_pages")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the scalars of a run by TensorBoard's own reader: name → (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), purge_orphaned_data=True)
    read.Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def expected(noting: Noting, result: mq.Result) -> dict[str, list[tuple[int, float]]]:
    """Return what has to be logged of the curves, from the records themselves."""
    found: dict[str, list[tuple[int, float]]] = {}

    def put(name: str, step: int, value: float) -> None:
        found.setdefault(name, []).append((step, value))

    for each in noting.told:
        if isinstance(each, mq.EvaluationRecord):
            put("cost/up", each.round, each.up)
            for view, own in each.views.items():
                put(f"own/{view}", each.round, own.mean)
                put(f"own_std/{view}", each.round, own.std)
        if isinstance(each, mq.RoundRecord):
            put("round/clients", each.round, len(each.clients))
            put("round/up", each.round, each.costs["up"])
            put("round/masked", each.round, each.costs["masked"])
    for each in result.summaries:
        put(f"own/{each.view}", each.rounds, each.accuracy.own.mean)
        put(f"final/{each.view}/own", each.rounds, each.accuracy.own.mean)
        put(f"final/{each.view}/up", each.rounds, each.costs.train.bytes.up)
        put(f"final/{each.view}/density", each.rounds, each.model.density)
    return found


def settings(folder: Path) -> str:
    """Read the one text of a run by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    (event,) = read.Tensors("settings/text_summary")
    text: str = event.tensor_proto.string_val[0].decode()
    return text


def test_event_files_have_the_settings_once_and_the_numbers_of_records_and_summary(
    tmp_path: Path,
) -> None:
    noting = Noting()
    result = go(None, [mq.trackers.TensorBoard(tmp_path / "logs"), noting])
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["dmpfl-seed7"]
    logged = scalars(tmp_path / "logs" / "dmpfl-seed7")
    for name, points in expected(noting, result).items():
        # Events hold single precision.
        steps, values = zip(*points, strict=True)
        assert [step for step, _ in logged[name]] == list(steps), name
        assert [value for _, value in logged[name]] == pytest.approx(values, rel=1e-6), name
    text = settings(tmp_path / "logs" / "dmpfl-seed7")
    assert "| method.local_epochs | 1 |" in text
    assert "| train.seeds | [7] |" in text
    assert "| evaluate.every | 2 |" in text


def test_rounds_that_are_done_again_after_a_stop_are_shown_once(tmp_path: Path) -> None:
    # Nothing is committed before the stop, so that all rounds are done again.
    tracker = mq.trackers.TensorBoard(tmp_path / "logs")
    with pytest.raises(Halt):
        go(tmp_path / "run", [tracker, HaltAfter(3)], commit_every=1000.0)
    go(tmp_path / "run", [mq.trackers.TensorBoard(tmp_path / "logs")], commit_every=1000.0)
    logged = scalars(tmp_path / "logs" / "dmpfl-seed7")
    assert [step for step, _ in logged["round/clients"]] == [1, 2, 3, 4]


def test_trainings_of_a_comparison_are_runs_of_their_own(tmp_path: Path) -> None:
    compared = mq.compare(
        [mq.methods.FedAvg(local_epochs=1, lr=0.1), mq.methods.FedAvg(local_epochs=1, lr=0.2)],
        network(),
        federation(),
        1,
        seeds=(3,),
        batch_size=4,
        evaluate=mq.Evaluate(every=0, degrees=(0,)),
        compute=mq.Compute(engine="loop"),
        callbacks=[mq.trackers.TensorBoard(tmp_path)],
    )
    names = {f"fedavg_lr={lr}-seed3" for lr in (0.1, 0.2)}
    assert {path.name for path in tmp_path.iterdir()} == names
    for result in compared.results:
        logged = scalars(tmp_path / f"fedavg_lr={vars(result.method)['lr']}-seed3")
        for each in result.summaries:
            own = pytest.approx(each.accuracy.own.mean, rel=1e-6)
            assert logged[f"final/{each.view}/own"] == [(1, own)]


@dataclass
class Client:
    """Stands in for `mlflow.MlflowClient`; it refuses the names that MLflow refuses."""

    tracking_uri: str | None = None
    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, SimpleNamespace] = field(default_factory=dict)

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        found = self.experiments.get(name)
        return SimpleNamespace(experiment_id=found) if found else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments) + 1))

    def create_run(self, experiment_id: str, *, run_name: str) -> SimpleNamespace:
        assert experiment_id in self.experiments.values()
        run = SimpleNamespace(name=run_name, params={}, metrics={}, status="RUNNING")
        run_id = f"id{len(self.runs)}"
        self.runs[run_id] = run
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(
        self, run_id: str, metrics: Sequence[Any] = (), params: Sequence[Any] = ()
    ) -> None:
        run = self.runs[run_id]
        assert run.status == "RUNNING"
        assert len(params) <= 100
        for each in (*metrics, *params):
            assert re.fullmatch(r"[/\w.\- ]+", each.key)
        for each in params:
            assert isinstance(each.value, str)
            assert run.params.setdefault(each.key, each.value) == each.value
        for each in metrics:
            assert type(each.value) is float
            assert each.timestamp > 0
            run.metrics.setdefault(each.key, []).append((each.step, each.value))

    def set_terminated(self, run_id: str, status: str = "FINISHED") -> None:
        self.runs[run_id].status = status


@dataclass
class Metric:
    """Stands in for `mlflow.entities.Metric`."""

    key: str
    value: float
    timestamp: int
    step: int


@dataclass
class Param:
    """Stands in for `mlflow.entities.Param`."""

    key: str
    value: str


class Refused(Exception):
    """Stands in for `mlflow.MlflowException`."""


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Put a stand-in in the place of MLflow."""
    client, module, entities = Client(), ModuleType("mlflow"), ModuleType("mlflow.entities")

    def made(tracking_uri: str | None = None) -> Client:
        client.tracking_uri = tracking_uri
        return client

    vars(module).update(MlflowClient=made, MlflowException=Refused, entities=entities)
    vars(entities).update(Metric=Metric, Param=Param)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return client


def test_mlflow_gets_settings_curves_and_summary(mlflow: Client) -> None:
    noting = Noting()
    tracker = mq.trackers.MLflow("masks", tracking_uri="file:here")
    result = go(None, [tracker, noting])
    assert mlflow.tracking_uri == "file:here"
    assert list(mlflow.experiments) == ["masks"]
    (run,) = mlflow.runs.values()
    assert (run.name, run.status) == ("dmpfl-seed7", "FINISHED")
    assert run.params["method"] == "dmpfl"
    assert run.params["method.local_epochs"] == "1"
    for name, points in expected(noting, result).items():
        assert run.metrics[name] == points


def test_classes_may_be_called_anything(mlflow: Client) -> None:
    x, y = np.arange(40.0, dtype=np.float32)[:, None], np.array(["<50 (%)", ">50 (%)"] * 20)
    data = mq.partition(mq.from_arrays(x, y), 2, mq.IID())
    evaluate = mq.Evaluate(every=0, degrees=(0,), metrics=("recall",))
    method = mq.methods.Local(local_epochs=1)
    tracker = mq.trackers.MLflow()
    result = mq.run(method, nn.Linear(1, 2), data, 1, evaluate=evaluate, callbacks=[tracker])
    (run,) = mlflow.runs.values()
    recalls = [found.own.mean for found in result.summaries[0].metrics.values()]
    logged = {name: points for name, points in run.metrics.items() if "recall" in name}
    assert list(logged.values()) == [[(1, value)] for value in recalls]


def test_a_store_that_mlflow_cannot_use_is_refused_before_training(
    mlflow: Client, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def made(tracking_uri: str | None) -> Client:
        raise Refused("unsupported URI 'sqlite:///mlflow.db'. See elsewhere.")

    monkeypatch.setattr(sys.modules["mlflow"], "MlflowClient", made)
    with raises("E202", "sqlite:///mlflow.db") as refusal:
        parse(["mlflow"])
    golden(refusal.value)


def test_a_training_that_failed_is_no_finished_run(mlflow: Client) -> None:
    tracker = mq.trackers.MLflow()
    with pytest.raises(Halt):
        go(None, [tracker, HaltAfter(2)])
    assert [run.status for run in mlflow.runs.values()] == ["FAILED"]
    go(None, [tracker])
    assert [run.status for run in mlflow.runs.values()] == ["FAILED", "FINISHED"]


class Wandb(ModuleType):
    """Stands in for `wandb`: runs that are begun one after another."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[WandbRun] = []

    def init(self, **given: Any) -> "WandbRun":
        assert all(run.exit_code is not None for run in self.runs), "a run is still open"
        self.runs.append(WandbRun(given))
        return self.runs[-1]


@dataclass
class WandbRun:
    """Stands in for a run of Weights & Biases, whose steps never go back."""

    given: dict[str, Any]
    history: dict[int, dict[str, float]] = field(default_factory=dict)
    summary: dict[str, float] = field(default_factory=dict)
    exit_code: int | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        assert step >= max(self.history, default=0)
        self.history.setdefault(step, {}).update(values)

    def finish(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    """Put a stand-in in the place of Weights & Biases."""
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_settings_curves_and_summary(wandb: Wandb) -> None:
    noting = Noting()
    result = go(None, [mq.trackers.WandB("masks", mode="offline", tags=["a"]), noting])
    (run,) = wandb.runs
    assert run.exit_code == 0
    given = {key: run.given[key] for key in ("project", "name", "mode", "tags")}
    assert given == {"project": "masks", "name": "dmpfl-seed7", "mode": "offline", "tags": ["a"]}
    assert run.given["config"]["method.local_epochs"] == 1
    for name, points in expected(noting, result).items():
        for step, value in points:
            there = run.summary if name.startswith("final/") else run.history[step]
            assert there[name] == value


def test_after_a_training_that_failed_the_next_is_a_run_of_its_own(wandb: Wandb) -> None:
    tracker = mq.trackers.WandB("masks")
    with pytest.raises(Halt):
        go(None, [tracker, HaltAfter(2)])
    assert [run.exit_code for run in wandb.runs] == [1]
    go(None, [tracker])
    assert [run.exit_code for run in wandb.runs] == [1, 0]
    assert [max(run.history) for run in wandb.runs] == [2, 4]


class Failing(mq.Callback):
    """Fails at the end, and once more when it is told of that."""

    def on_end(self, run: Run, result: mq.Result) -> None:
        raise ValueError("at the end")

    def on_error(self, run: Run, error: BaseException) -> None:
        raise OSError("when told")


def test_an_error_at_the_end_closes_every_tracker_and_is_not_hidden(
    wandb: Wandb, mlflow: Client, tmp_path: Path
) -> None:
    folder = mq.trackers.TensorBoard(tmp_path)
    with pytest.raises(ValueError, match="at the end") as fault:
        go(None, [Failing(), mq.trackers.WandB("masks"), mq.trackers.MLflow(), folder])
    assert "OSError: when told" in fault.value.__notes__[0]
    assert [run.exit_code for run in wandb.runs] == [1]
    assert [run.status for run in mlflow.runs.values()] == ["FAILED"]
    assert len(scalars(tmp_path / "dmpfl-seed7")["round/clients"]) == 4


def test_a_tracker_that_ended_its_run_is_not_failed_by_those_after_it(wandb: Wandb) -> None:
    with pytest.raises(ValueError, match="at the end"):
        go(None, [mq.trackers.WandB("masks"), Failing()])
    assert [run.exit_code for run in wandb.runs] == [0]


@pytest.mark.parametrize("name", ["tensorboard:logs", "mlflow", "wandb:masks"])
def test_a_package_that_is_missing_is_named_with_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, kind, None)
    with raises("E202") as error:
        parse([name])
    assert f"pip install 'masquerade[{kind}]'" in str(error.value)


@pytest.mark.parametrize("name", ["tensorboard", "tensorboard:", "wandb", "comet:x", ""])
def test_what_names_no_tracker_is_refused(name: str) -> None:
    with raises("E201"):
        parse([name])


def test_a_tracker_that_lacks_its_project_is_not_taken_for_a_misspelling(golden: Golden) -> None:
    with raises("E201", "wandb:PROJECT") as refusal:
        parse(["wandb"])
    golden(refusal.value)


def test_trackers_are_made_as_the_command_names_them(mlflow: Client, wandb: Wandb) -> None:
    found = parse(["tensorboard:a:b", "mlflow", "mlflow:masks", "wandb:gates"])
    assert isinstance(found[0], mq.trackers.TensorBoard)
    assert found[0].folder == Path("a:b")
    assert [vars(each).get("experiment") for each in found[1:3]] == ["masquerade", "masks"]
    assert vars(found[3])["project"] == "gates"
    # Nothing is begun before a training is.
    assert (mlflow.runs, wandb.runs) == ({}, [])
