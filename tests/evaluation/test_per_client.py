"""What is said of single clients is what statistics over clients are made of."""

import math

import pytest

import masquerade as mq
from masquerade.config.metrics import class_titles, leading
from masquerade.methods import FedAvg
from masquerade.results import AVERAGED
from tests.support import federation, network


def test_figures_of_clients_have_the_means_that_the_summary_has() -> None:
    data = federation()
    evaluate = mq.Evaluate(every=0, degrees=(0, 50, 100), draws=2)
    found = mq.run(FedAvg(), network(), data, 2, batch_size=4, evaluate=evaluate)
    for summary in found.summaries:
        clients = summary.per_client
        assert clients is not None
        assert clients.tests == tuple(len(data.test[id]) for id in clients.ids)
        assert clients.shift["0"] == clients.own
        for kind in ("shift", "pooled"):
            by_degree, described = getattr(clients, kind), getattr(summary.accuracy, kind)
            assert list(by_degree) == list(described) == ["0", "50", "100", AVERAGED]
            for step, values in by_degree.items():
                known = [value for value in values if value is not None]
                assert sum(known) / len(known) == pytest.approx(described[step].mean, abs=1e-9)
        assert clients.shift["100"] != clients.pooled["100"]


def test_every_metric_that_is_asked_for_is_there_for_every_client() -> None:
    data = federation()
    metrics = ("balanced_accuracy", "log_loss", "recall")
    evaluate = mq.Evaluate(every=0, degrees=(0, 100), metrics=metrics, prior=("own",))
    found = mq.run(FedAvg(), network(), data, 1, batch_size=4, evaluate=evaluate, novel=(5,))
    summary = found.summaries[0]
    titles = class_titles(data)
    assert summary.lead == "balanced_accuracy"
    assert set(summary.metrics) == {
        "balanced_accuracy",
        "log_loss",
        *(f"recall:{c}" for c in titles),
    }
    groups = {
        "view": (summary.per_client, summary.metrics),
        "rule": (summary.rules["own"].per_client, summary.rules["own"].metrics),
        "majority": (summary.majority.per_client, summary.majority.metrics),
        "novel": (summary.novel.clients, summary.novel.metrics),
    }
    for clients, described in groups.values():
        assert clients.metrics.keys() == described.keys()
        for name, metric in clients.metrics.items():
            by_step = {"own": metric.own} | {step: metric.shift[step] for step in metric.shift}
            assert (len(by_step) > 1) == (":" not in name)
            for step, values in by_step.items():
                known = [value for value in values if value is not None]
                of = described[name]
                mean = (of.own if step == "own" else of.shift[step]).mean
                # A single class has no AUROC: where nobody has a figure, there is no mean.
                found = sum(known) / len(known) if known else math.nan
                assert found == pytest.approx(mean, nan_ok=True)
        # Test samples are counted by class, and add up.
        assert list(clients.classes) == list(titles)
        for id, count, *of in zip(
            clients.ids, clients.tests, *clients.classes.values(), strict=True
        ):
            assert of == [int((data.y[data.test[id]] == label).sum()) for label in range(len(of))]
            assert sum(of) == count


@pytest.mark.parametrize(
    ("metrics", "lead"),
    [
        ((), ""),
        (("all",), ""),
        (("recall", "auroc"), ""),
        (("accuracy", "auroc"), ""),
        (("auroc", "accuracy"), "auroc"),
    ],
)
def test_the_first_metric_that_is_named_leads(metrics: tuple[str, ...], lead: str) -> None:
    assert leading(metrics, "accuracy") == lead
