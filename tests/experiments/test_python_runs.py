"""`mq.run` with a directory: interrupted and called again, it ends in the same bits."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import masquerade as mq
from masquerade.core import tree
from masquerade.data.registry import NAMED
from masquerade.experiments.callbacks import Run
from masquerade.experiments.result import Result
from masquerade.export import predict
from masquerade.results import RoundRecord
from tests.experiments.test_resume import Halt, HaltAfter, timeless
from tests.messages import Golden
from tests.support import federation, network, raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app


pytestmark = pytest.mark.usefixtures("plain_pages")


class Counting(mq.Callback):
    """Counts the rounds that are trained."""

    rounds = 0

    def on_round(self, run: Run, record: RoundRecord) -> None:
        self.rounds += 1


def go(
    out: Path | None, stop: int | None = None, lr: float = 0.1, told: mq.Callback | None = None
) -> Result:
    return mq.run(
        mq.methods.DMPFL(local_epochs=2, lr=lr),
        network(),
        federation(),
        rounds=8,
        batch_size=4,
        participation=0.5,
        compute=mq.Compute(engine="loop", commit_every=0),
        out=out,
        callbacks=[HaltAfter(stop), told or Counting()],
    )


def test_the_same_call_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    whole = go(None)
    for stop in (2, 5):
        with pytest.raises(Halt):
            go(tmp_path / "run", stop)
    resumed = go(tmp_path / "run")
    for one, other in zip(whole.summaries, resumed.summaries, strict=True):
        assert timeless(one.to_json()) == timeless(other.to_json())
    left, right = tree.named(whole.personal), tree.named(resumed.personal)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert (tmp_path / "run" / "summary.json").is_file()


def test_a_finished_run_gives_its_result_and_its_models_without_training(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    done, again = (go(tmp_path / "run", told=told) for told in (first, second))
    assert (first.rounds, second.rounds) == (8, 0)
    for one, other in zip(done.summaries, again.summaries, strict=True):
        assert timeless(one.to_json()) == timeless(other.to_json())
    x = federation().x.float()
    again.client(2).export(tmp_path / "bundle", x)
    answers = predict.predict(predict.open_bundle(tmp_path / "bundle"), x[:4].numpy())
    expected = done.client(2).predict(x[:4])
    torch.testing.assert_close(torch.from_numpy(answers).to(expected), expected)


def test_the_command_reports_a_program_and_says_what_to_call_for_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("masquerade.config.code.program", lambda: "train.py")
    method, both = mq.methods.Local(local_epochs=1), tmp_path / "both"
    mq.compare([method], network(), federation(), 1, batch_size=4, out=both)
    (run,) = (path.parent for path in both.glob("*/summary.json"))
    app(["report", str(run), "--quiet"], standalone_mode=False)
    assert (run / "report.html").is_file()

    def refused(said: str) -> None:
        for words in ("resume", run), ("resume", both), ("export", run, "--client", 0):
            with raises("E202", said):
                app([str(word) for word in words], standalone_mode=False)

    refused("python 'train.py'")
    # A notebook has no file.
    (both / "program.txt").unlink()
    refused("mq.compare")


def test_another_call_is_refused_with_the_difference(tmp_path: Path) -> None:
    with pytest.raises(Halt):
        go(tmp_path / "run", 3)
    with raises("E402", "lr=0.1", "lr=0.2"):
        go(tmp_path / "run", lr=0.2)


@pytest.mark.parametrize(
    ("method", "settings", "key"),
    [
        (mq.methods.DMPFL(sparsity=5.0), {}, "method.sparsity"),
        (mq.methods.FedAvg(), {"rounds": 0}, "train.rounds"),
        (mq.methods.FedAvg(), {"participation": 5.0}, "train.participation"),
        (mq.methods.FedAvg(), {"compute": mq.Compute(engine="lop")}, "compute.engine"),
    ],
)
def test_python_refuses_what_the_command_refuses(method, settings, key) -> None:
    with raises("E201", f"`{key}`"):
        mq.run(method, network(), federation(), **settings)


def test_results_and_federations_are_short_in_a_notebook() -> None:
    result = mq.run(mq.methods.Local(local_epochs=1), network(), federation(), rounds=1)
    assert len(repr(result)) < 200
    assert "Local" in repr(result)
    assert len(repr(federation())) < 200


def test_a_view_without_a_name_of_its_own_is_called_after_its_method() -> None:
    method = mq.methods.DMPFL(local_epochs=1, first_dense=False)
    result = mq.run(method, network(), federation(), rounds=3, batch_size=4)
    titles = {each.view: each.title for each in result.summaries}
    assert titles["personal"] == "DM-PFL"
    assert titles["global"] == "DM-PFL (global)"


def test_whole_numbers_for_a_network_without_an_embedding_are_explained() -> None:
    x, y = torch.arange(60).reshape(20, 3), torch.arange(20) % 2
    data = mq.partition(mq.from_arrays(x, y), clients=2, by=mq.IID())
    with raises("E202", "tokens", "float32"):
        mq.run(mq.methods.FedAvg(), torch.nn.Linear(3, 2), data, rounds=1)


def test_a_summary_says_that_its_data_are_a_stand_in() -> None:
    names = ("har_signals", "har")
    noted, plain = (
        mq.run(mq.methods.FedAvg(local_epochs=1), network(), replace(federation(), name=name), 1)
        for name in names
    )
    assert all(one.data_note == NAMED["har_signals"].note for one in noted.summaries)
    assert not any(one.data_note for one in plain.summaries)


def test_a_client_beside_a_novel_one_has_its_own_model() -> None:
    x = torch.linspace(0, 1, 60).reshape(30, 2)
    data = mq.partition(mq.from_arrays(x, (x[:, 0] > 0.5).long()), 3, mq.IID())
    result = mq.run(mq.methods.Local(), torch.nn.Linear(2, 2), data, 1, novel=[1])
    models = result.personal["personal"]
    assert result.client(2).parts is models[1]
    assert result.client(0).parts is models[0]
    with raises("E202", "`1`", "0, 2"):
        result.client(1)
    with raises("E202", "`-1`"):
        result.client(-1)


def test_what_a_configuration_refuses_is_refused_in_python_too() -> None:
    x = torch.zeros(20, 2)
    data = mq.partition(mq.from_arrays(x, torch.arange(20) % 2), 2, mq.IID())
    with raises("E201", "`evaluate.degrees`"):
        mq.run(
            mq.methods.FedAvg(), torch.nn.Linear(2, 2), data, evaluate=mq.Evaluate(degrees=(20,))
        )
    with raises("E201", "`global_rounds`", "`rounds`"):
        mq.run(mq.methods.FedAvg(), torch.nn.Linear(2, 2), data, global_rounds=3)


def test_metrics_given_in_another_way_are_refused_with_what_to_write(golden: Golden) -> None:
    data = mq.partition(mq.from_arrays(torch.zeros(20, 2), torch.arange(20) % 2), 2, mq.IID())
    given = (
        ({"metrics": ["auroc"]}, "evaluate=mq.Evaluate(metrics=...)"),
        ({"evaluate": {"metrics": ["auroc"]}}, "evaluate=mq.Evaluate(metrics=['auroc'])"),
        ({"compute": {"engine": "loop"}}, "compute=mq.Compute(engine='loop')"),
    )
    for settings, written in given:
        with raises("E201", written) as refusal:
            mq.run(mq.methods.FedAvg(), torch.nn.Linear(2, 2), data, **settings)
        golden(refusal.value)
