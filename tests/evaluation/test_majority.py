"""The majority class: by hand, under shift and corruption, at novel clients."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from sklearn.dummy import DummyClassifier

import masquerade as mq
from masquerade.core.regression import mae, squared_error
from masquerade.evaluation.majority import LabelShares
from masquerade.results import Baseline
from tests.evaluation import test_corruption as images
from tests.support import federation, network

EVALUATE = mq.Evaluate(every=0, degrees=(0, 100), metrics=("log_loss", "recall"))


def trained(data: mq.Federation, novel: tuple[int, ...] = (), task: mq.Task | None = None):
    method = mq.methods.FedAvg(local_epochs=1)
    compute = mq.Compute(engine="loop")
    evaluate = EVALUATE if task is None else mq.Evaluate(every=0, degrees=(0,))
    given = task or network()
    return mq.run(method, given, data, 1, novel=novel, evaluate=evaluate, compute=compute)


def majority(result: mq.Result) -> Baseline:
    first, *others = result.summaries
    # It is one and the same for all views.
    assert all(each.majority == first.majority for each in others)
    assert first.majority is not None
    return first.majority


def test_every_client_answers_its_most_frequent_training_label() -> None:
    data = federation()
    found = majority(trained(data))
    for id, figure in enumerate(found.per_client.own):
        labels = Counter(data.y[data.train[id]].tolist())
        answer = min(labels, key=lambda label: (-labels[label], label))
        tested = data.y[data.test[id]].tolist()
        assert figure == pytest.approx(100 * tested.count(answer) / len(tested))
    assert found.accuracy.own.mean == pytest.approx(sum(found.per_client.own) / 6)
    weights = [len(own) for own in data.test]
    weighted = sum(f * w for f, w in zip(found.per_client.own, weights, strict=True)) / sum(weights)
    assert found.accuracy.own.weighted == pytest.approx(weighted)
    # Under full shift the same answers meet others' labels.
    assert found.accuracy.shift.keys() == {"0", "100", "averaged"}
    assert found.accuracy.shift["100"] != found.accuracy.shift["0"]


def test_its_answers_are_those_of_scikit_learn() -> None:
    data = federation()
    shares = LabelShares(data)
    for id, own in enumerate(data.train):
        labels = data.y[own]
        dummy = DummyClassifier(strategy="prior").fit(labels[:, None].numpy(), labels.numpy())
        # One is added to every class, which changes no order.
        smoothed = torch.bincount(labels, minlength=3) + 1
        (row,) = shares.outputs([shares.model(id)], [own[:1]], data.x)
        assert row.softmax(-1)[0].tolist() == pytest.approx((smoothed / smoothed.sum()).tolist())
        assert int(row.argmax()) == dummy.predict([[0]])[0]


def test_further_metrics_and_novel_clients_have_it_too() -> None:
    summary = trained(federation(), novel=(1, 4)).summaries[0]
    found = summary.majority
    assert found.metrics.keys() == {"log_loss", "recall:0", "recall:1", "recall:2"}
    assert not found.metrics["log_loss"].percent
    assert found.metrics["log_loss"].better == "lower"
    assert found.per_client.ids == (0, 2, 3, 5)
    assert found.novel.clients.ids == (1, 4)
    assert found.novel.gap == pytest.approx(found.accuracy.own.mean - found.novel.accuracy.own.mean)
    # So have novel clients and the global view of a method.
    assert found.novel.metrics.keys() == summary.novel.metrics.keys() == found.metrics.keys()
    assert summary.global_metrics.keys() == found.metrics.keys()
    assert summary.global_metrics == summary.metrics
    assert summary.novel.metrics["log_loss"] != summary.metrics["log_loss"]


def test_corruption_changes_no_label() -> None:
    evaluate = mq.Evaluate(every=0, degrees=(0,), corruptions=images.KIND, severities=(1, 5))
    method, data = mq.methods.FedAvg(local_epochs=1), images.federation()
    found = majority(mq.run(method, images.network(), data, 1, evaluate=evaluate))
    own = found.accuracy.own
    assert set(found.accuracy.corruption) >= set(images.KIND)
    for by_severity in found.accuracy.corruption.values():
        assert set(by_severity) >= {"1", "5"}
        for each in by_severity.values():
            assert (each.mean, each.std) == pytest.approx((own.mean, own.std))


def test_a_client_without_training_labels_has_no_answer() -> None:
    data = federation()
    empty = replace(data, train=(data.train[0][:0], *data.train[1:]))
    assert majority(trained(empty)).per_client.ids == (1, 2, 3, 4, 5)


def test_a_regression_has_none() -> None:
    data = federation()
    numbers = replace(data, y=data.y.double(), classes=None)
    net = torch.nn.Linear(6, 1, dtype=torch.float64)
    task = mq.Task(net, squared_error, mae, better="lower")
    (first, *_) = trained(numbers, task=task).summaries
    assert (first.majority, first.metric) == (None, "mae")
