"""`mq.check`: a report on every law, for anybody's method, network and data."""

import io
import os
import random
import warnings
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import masquerade as mq
from masquerade.core import Method
from masquerade.core.random import normal
from masquerade.laws.check import Finding, Report, few, problem_of
from masquerade.laws.law import Where
from masquerade.laws.table import LAWS
from masquerade.methods import FedAvg, FedBN, Local
from tests.laws.test_broken import AveragesPadding, SendsTooMuch, WritesInPlace
from tests.support import SIZES, federation, network, raises


def results(report: Report) -> dict[int, str]:
    return {each.number: each.result for each in report.findings}


KEPT = dict.fromkeys(range(1, 12), "holds")


def only(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Let a check look at some laws alone: those that a test is about."""
    some = tuple(law for law in LAWS if law.number in numbers)
    monkeypatch.setattr("masquerade.laws.check.LAWS", some)


def test_a_method_without_an_entry_is_not_asked_for_neutral_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mine(Method):
        """A method of nobody's package."""

    only(monkeypatch, 1, 5, 8, 10)
    report = mq.check(Mine(local_epochs=1))
    assert report.holds
    assert results(report) == {1: "holds"} | dict.fromkeys((5, 8, 10), "does not apply")
    assert "has no entry" in report.findings[1].why


def test_every_law_is_looked_at_and_told_with_its_place() -> None:
    report = mq.check(AveragesPadding())
    assert not report.holds
    broken = {number for number, found in results(report).items() if found == "broken"}
    assert {2, 11} <= broken <= {2, 9, 11}
    last = report.findings[-1]
    assert (last.where.kind, last.where.stage, last.where.client) == ("train", "train", 1)
    assert "`batch.mean`" in last.advice
    # It wrote into what all laws begin with, and each says so of itself.
    assert len(mq.check(WritesInPlace()).findings) == 11


def test_warnings_of_ours_are_in_the_report_and_others_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two laws that run into the same warning.
    only(monkeypatch, 6, 8)

    class Noisy(SendsTooMuch):
        def server_init(self, task):
            warnings.warn("noise", UserWarning, stacklevel=1)
            return super().server_init(task)

    with pytest.warns(UserWarning, match="^noise$") as heard:
        report = mq.check(Noisy(local_epochs=1))
    assert {each.category for each in heard} == {UserWarning}
    assert [each[:4] for each in report.warnings] == ["W607"]
    assert results(report)[8] == "broken"


def test_a_method_of_the_table_keeps_its_laws_and_torch_and_the_directory_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings() -> list[object]:
        return [
            torch.random.get_rng_state().tolist(),
            random.getstate(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(),
            list(warnings.filters),
            Path.cwd(),
            os.listdir(tmp_path),
        ]

    monkeypatch.chdir(tmp_path)
    model = network(torch.float32)
    initial = [value.clone() for value in model.parameters()]
    before = settings()
    report = mq.check(FedAvg(local_epochs=1), model)
    assert settings() == before
    assert report.holds
    assert results(report) == KEPT | {8: "does not apply"}
    assert report.warnings == ()
    for value, old in zip(model.parameters(), initial, strict=True):
        assert value.dtype == torch.float32
        assert torch.equal(value, old)


def test_a_task_of_ones_own_is_kept_to_its_loss_and_metric() -> None:
    def squared(output, y):
        return (output - y).square().sum(-1)

    def error(output, y):
        return squared(output, y)

    data = replace(federation(), y=normal(7, (104, 3)), classes=None)
    task = mq.Task(network(torch.float32), squared, error, better="lower")
    report = mq.check(FedAvg(lr=0.01, local_epochs=1), task, data)
    assert results(report) == KEPT | {8: "does not apply"}


def test_networks_that_couple_samples_get_batches_without_padding() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    clients = range(6)
    even = tuple(torch.arange(id * 17, id * 17 + 9) for id in clients)
    data = replace(federation(), train=even)
    problem = problem_of(FedBN(), model, data)
    assert (problem.federation.samples.tolist(), problem.batch_size) == ([8] * 6, 4)
    ragged = problem_of(FedBN(), model, federation())
    assert (ragged.federation.samples.tolist(), ragged.batch_size) == ([3] * 6, 3)
    report = mq.check(FedBN(local_epochs=1), model, data)
    assert results(report) == KEPT | dict.fromkeys((5, 8, 11), "does not apply")


def test_a_federation_without_a_model_gets_a_network_that_fits() -> None:
    data = mq.partition(mq.load("digits"), clients=12, by=mq.IID(), seed=1)
    problem = problem_of(Local(), None, data)
    assert problem.federation.samples.tolist() == list(SIZES)
    assert problem.task.dtype == torch.float64
    assert problem.task(problem.task.initial, data.x[:2])[0].shape == (2, 10)


def test_few_clients_and_samples_are_taken_of_those_that_train() -> None:
    data = federation()
    empty = replace(
        data, train=(torch.arange(0), *data.train[1:]), names=("a", "b", "c", "d", "e", "f")
    )
    small = few(empty)
    assert small.names == ("b", "c", "d", "e", "f")
    assert small.samples.tolist() == [7, 3, 3, 9, 5]
    assert [len(split) for split in (small.validation, small.test)] == [5, 5]
    assert torch.equal(small.train[0], data.train[1][:7])
    whole = few(data)
    assert whole.samples.tolist() == list(SIZES)


def test_what_cannot_begin_is_refused() -> None:
    with raises("E201"):
        mq.check(FedAvg)
    with raises("E201", "`method.lr`", "-1"):
        mq.check(FedAvg(lr=-1.0))
    nobody = replace(federation(), train=(torch.arange(0),) * 6)
    with raises("E303"):
        mq.check(FedAvg(), network(), nobody)


class Forgets(mq.methods.FedProx):
    """Its `start` gives no reference for the proximal term."""

    def start(self, task, message, client, round):
        return {"params": message["params"].values}


class Grows(FedAvg):
    """Its coefficient grows with the round, but `plan` knows no round."""

    def plan(self, task, round):
        return (mq.Stage("train", self.sgd_step(task, lr=self.lr * round.number)),)


class Multiplies(FedAvg):
    """Takes the round for its number."""

    def plan(self, task, round):
        def loss(work, batch, round):
            values, buffers = task.losses(work["params"], batch)
            return values * (self.lr * round), buffers

        return (mq.Stage("train", self.sgd_step(task, loss)),)


class Fails(FedAvg):
    """Fails in a way of its own."""

    def start(self, task, message, client, round):
        raise ZeroDivisionError("own")


@pytest.mark.parametrize(
    ("method", "said"),
    [(Forgets, "E205"), (Grows, "E204"), (Multiplies, "`round.number`"), (Fails, "ZeroDivision")],
)
def test_a_method_that_cannot_begin_is_reported(method, said, golden):
    report = mq.check(method(local_epochs=1))
    assert not report.holds
    first, *laws = report.findings
    assert (first.number, first.result) == (0, "broken")
    assert said in first.why
    golden(first.why)
    assert [law.number for law in laws] == list(KEPT)
    assert {law.result for law in laws} == {"not tried"}
    assert "Method" not in report.heading
    assert report.heading.startswith(f"{method.__name__} cannot begin")


def test_a_network_that_does_not_fit_is_no_fault_of_the_method() -> None:
    with raises("E202"):
        mq.check(FedAvg(), nn.Linear(5, 3), federation())


REPORT = Report(
    "Mine",
    (
        Finding(1, "Functions are pure.", "holds"),
        Finding(2, "Engines agree.", "broken", "differs", Where("train", client=3), "use [a] mean"),
        Finding(5, "It is FedAvg.", "does not apply", "no entry"),
    ),
    ("W607 too much",),
)
SHOWN = """
Mine keeps 1 laws and breaks 1; 1 do not apply.
  1  holds           Functions are pure.
  2  broken          Engines agree.
                     at train round, client 3
                     differs
                     do: use [a] mean
  5  does not apply  It is FedAvg.
                     no entry
W607 too much
"""


def test_a_report_reads_as_a_table() -> None:
    # A notebook, and a prompt, show it by its repr.
    assert str(REPORT) == repr(REPORT) == SHOWN.strip()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(REPORT)
    drawn = console.export_text()
    for word in ("Mine keeps 1", "Engines agree.", "does not apply", "use [a] mean", "W607"):
        assert word in drawn
    with pytest.raises(FrozenInstanceError):
        REPORT.method = ""
