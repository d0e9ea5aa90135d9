"""What is said of single clients is what statistics over clients are made of."""

import pytest

import masquerade as mq
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
