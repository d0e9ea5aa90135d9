"""Rules on outputs and metrics of whole test sets: by hand, and the same in both engines."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import masquerade as mq
from masquerade.core import Message
from masquerade.engine.batched import Batched
from masquerade.experiments.callbacks import Run
from masquerade.metrics import METRICS
from masquerade.metrics.registry import recall_of
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests import support
from tests.evaluation import test_corruption as images
from tests.support import METHOD_TABLE, federation, measure, network, raises

each_engine = pytest.mark.parametrize("engine", ["loop", "batched"])
simulate: Callable[..., tuple[Simulation, RunState]] = support.simulate
simulation: Callable[..., Simulation] = support.simulation

TESTED = (4, 6, 2, 5, 8, 3)
"""Test samples by client of the toy."""


def trained(
    engine: str = "loop",
    *,
    task: mq.Task | None = None,
    evaluate: mq.Evaluate | None = None,
    rules: dict[str, Any] | None = None,
) -> mq.Result:
    """A round of FedAvg on the toy."""
    return mq.run(
        mq.methods.FedAvg(lr=0.1, local_epochs=1),
        task or mq.Task(network()),
        federation(),
        1,
        batch_size=4,
        evaluate=evaluate or mq.Evaluate(every=0, degrees=(0, 100), draws=2),
        compute=mq.Compute(engine=engine),
        rules=rules,
    )


def same(outputs: Tensor, client: mq.RuleClient) -> Tensor:
    """The rule that changes nothing."""
    return outputs


def models_of(name: str) -> tuple[list[Message], list[Tensor]]:
    """Personal models after some rounds, and samples for each; one model has none."""
    made, state = simulate(METHOD_TABLE[name], rounds=3)
    own = list(made.federation.test)
    found = measure(made, state, made.server.method.views[0], own)
    return found.models, [*own[:2], own[2][:0], *own[3:]]


@pytest.mark.parametrize("name", ["fedavg", "dmpfl", "fedmask", "pfedgate", "fedem"])
def test_engines_give_the_same_outputs(name: str) -> None:
    models, samples = models_of(name)
    found = []
    for engine in ("loop", "batched"):
        made = simulation(METHOD_TABLE[name], engine=engine, clients_per_chunk=4)
        assert made.engine.name == engine
        found.append(list(made.engine.outputs(models, samples, made.federation.x)))
        made.close()
    assert [len(outputs) for outputs in found[1]] == [len(own) for own in samples]
    for left, right in zip(*found, strict=True):
        assert len(left) == len(right)
        if len(left):
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def test_few_outputs_are_held_at_a_time_and_they_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models, samples = models_of("dmpfl")
    made = simulation(METHOD_TABLE["dmpfl"], engine="batched", clients_per_chunk=64)
    plain, held = Batched.predictions, []

    def watched(*given: Any) -> Iterator[tuple[Tensor, Tensor]]:
        found = list(plain(*given))
        held.append(sum(output.numel() for _, output in found))
        return iter(found)

    monkeypatch.setattr(Batched, "predictions", watched)
    whole = list(made.engine.outputs(models, samples, made.federation.x))
    # Six clients, padded to eight samples of three outputs each.
    assert held == [6 * 8 * 3]
    monkeypatch.setattr("masquerade.engine.batched.KEPT", 50)
    held.clear()
    drawn = made.engine.outputs(models, samples, made.federation.x)
    first = next(drawn)
    # There is room for two, padded to the larger one: of 4 and 6, of 0 and 5, of 8 and 3 samples.
    assert held == [2 * 6 * 3]
    few = [first, *drawn]
    assert held == [2 * 6 * 3, 2 * 5 * 3, 2 * 8 * 3]
    for left, right in zip(whole, few, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)
    # Where there is no room for one client, it is one client all the same.
    monkeypatch.setattr("masquerade.engine.batched.KEPT", 1)
    held.clear()
    assert len(list(made.engine.outputs(models, samples, made.federation.x))) == 6
    assert max(held) == 8 * 3


@each_engine
def test_a_rule_sees_all_outputs_of_a_test_set_and_its_clients_training_labels(
    engine: str,
) -> None:
    seen: list[tuple[Tensor, mq.RuleClient]] = []

    def noted(outputs: Tensor, client: mq.RuleClient) -> Tensor:
        seen.append((outputs.clone(), client))
        return outputs

    evaluate = mq.Evaluate(every=0, degrees=(0,), draws=1)
    result, data = trained(engine, evaluate=evaluate, rules={"noted": noted}), federation()
    # The first call is the trial before training.
    del seen[0]
    assert {client.id for _, client in seen} == set(range(6))
    views = {
        id: [result.client(id, view).predict(data.x[own]) for view in result.personal]
        for id, own in enumerate(data.test)
    }
    for outputs, client in seen:
        assert torch.equal(client.labels, data.y[data.train[client.id]])
        assert outputs.shape == (TESTED[client.id], 3)
        # All of them, in any order, from one of the client's two models.
        assert any(
            torch.allclose(outputs.sort(0).values, expected.sort(0).values)
            for expected in views[client.id]
        )


@each_engine
def test_a_rule_that_changes_nothing_has_exactly_the_plain_accuracy(engine: str) -> None:
    evaluate = mq.Evaluate(
        every=0, degrees=(0, 40, 100), draws=3, corruptions=images.KIND, severities=(1, 5)
    )
    result = mq.run(
        mq.methods.FedAvg(lr=0.5, local_epochs=2),
        images.network(),
        images.federation(),
        2,
        batch_size=3,
        evaluate=evaluate,
        compute=mq.Compute(engine=engine, clients_per_chunk=2),
        rules={"same": same},
    )
    for summary in result.summaries:
        assert summary.accuracy.pooled.keys() == {"0", "40", "100", "averaged"}
        assert summary.accuracy.corruption.keys() == {*images.KIND, "averaged"}
        assert summary.rules["same"].accuracy == summary.accuracy


@each_engine
def test_a_rule_decides_what_counts(engine: str) -> None:
    """Whatever is asked, it answers with the label that its client has seen most often."""

    def majority(outputs: Tensor, client: mq.RuleClient) -> Tensor:
        answers = torch.zeros_like(outputs)
        answers[:, client.labels.bincount(minlength=3).argmax()] = 1
        return answers

    data = federation()
    shares = []
    for train, test in zip(data.train, data.test, strict=True):
        most = data.y[train].bincount(minlength=3).argmax()
        shares.append(100 * float((data.y[test] == most).double().mean()))
    for summary in trained(engine, rules={"majority": majority}).summaries:
        own = summary.rules["majority"].accuracy.own
        assert own.mean == pytest.approx(sum(shares) / 6)
        assert own.bottom_decile == pytest.approx(min(shares))
        assert own != summary.accuracy.own


@each_engine
def test_metrics_that_settings_name_are_means_over_clients(engine: str) -> None:
    evaluate = mq.Evaluate(every=0, degrees=(0, 100), draws=2, metrics=("all",))
    result, data = trained(engine, evaluate=evaluate, rules={"same": same}), federation()
    # Accuracy is the task's own metric, and measured anyway.
    metrics = {n: m for n, m in METRICS.items() if m.targets == "classes" and n != "accuracy"}
    metrics |= {f"recall:{label}": mq.SetMetric(recall_of(label)) for label in range(3)}
    for summary in result.summaries:
        for name, metric in metrics.items():
            figures = [
                metric.function(result.client(id, summary.view).predict(data.x[own]), data.y[own])
                for id, own in enumerate(data.test)
            ]
            present = [figure for figure in figures if figure is not None]
            own = summary.metrics[name].own
            assert own.mean == pytest.approx(sum(present) / len(present)), name
            assert summary.metrics[name].shift.keys() == {"0", "100", "averaged"}
        # A rule has the same metrics, and this one changes none.
        assert summary.rules["same"].metrics == summary.metrics
        assert summary.metrics.keys() == metrics.keys()


def test_a_metric_that_is_not_there_is_refused_with_the_nearest() -> None:
    with raises("E201", "`evaluate.metrics`", "`macro_f1`"):
        trained(evaluate=mq.Evaluate(metrics=("macro_f2",)))


def count(outputs: Tensor, y: Tensor) -> float | None:
    """The number of samples; that of two is not defined."""
    assert len(outputs) == len(y)
    return None if len(y) == 2 else float(len(y))


@each_engine
def test_a_metric_of_ones_own_has_no_figure_where_it_is_not_defined(engine: str) -> None:
    metrics = {"count": count, "fewest": mq.SetMetric(count, better="lower")}
    result = trained(engine, task=mq.Task(network(), set_metrics=metrics))
    for summary in result.summaries:
        found = summary.metrics["count"]
        # Client 2 has two samples, so five are left: 4, 6, 5, 8, 3, weighted by themselves.
        assert found.own.mean == pytest.approx(26 / 5)
        assert found.own.weighted == pytest.approx((16 + 36 + 25 + 64 + 9) / 26)
        assert found.own.bottom_decile == 3
        # Shift replaces samples and changes no number of them.
        assert found.shift["100"].mean == found.pooled["100"].mean == pytest.approx(26 / 5)
        assert summary.metrics["fewest"].own.bottom_decile == 8
        assert summary.accuracy.own.mean <= 100


def test_without_rules_and_metrics_no_outputs_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whether a model answers with one class is open where one answer could be right as often.
    monkeypatch.setattr("masquerade.evaluation.one_class.may_be_one_class", lambda *given: False)
    monkeypatch.setattr("masquerade.engine.loop.Loop.outputs", None)
    assert all(each.metrics == {} == each.rules for each in trained().summaries)


@pytest.mark.parametrize(
    "more",
    [
        {"rules": {"answers": lambda outputs, client: outputs.argmax(-1)}},
        {"rules": {"first": lambda outputs, client: outputs[:1]}},
        {"rules": {"nothing": lambda outputs, client: None}},
        {"set_metrics": {"each": lambda outputs, y: outputs.argmax(-1) == y}},
        {"set_metrics": {"text": lambda outputs, y: "good"}},
    ],
    ids=["answers", "first", "nothing", "each", "text"],
)
def test_what_rules_and_metrics_must_not_return_is_refused_before_training(more: Any) -> None:
    trained_rounds = []

    class Counts(mq.Callback):
        def on_round(self, run: Run, record: mq.RoundRecord) -> None:
            trained_rounds.append(record.round)

    method, task = METHOD_TABLE["fedavg"], mq.Task(network(), set_metrics=more.get("set_metrics"))
    with raises("E205"):
        mq.run(method, task, federation(), 1, rules=more.get("rules"), callbacks=[Counts()])
    assert not trained_rounds
