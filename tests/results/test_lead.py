"""Which metric leads: everything of it comes first, and nothing is lost."""

from dataclasses import replace

from masquerade.results import (
    Baseline,
    ClientFigures,
    ClientMetric,
    RuleFigures,
    Summary,
)
from masquerade.results.lead import led, with_lead
from tests.messages import Golden
from tests.report.invented import accuracy, clients, novel, result
from tests.support import raises


def both(own: float, other: float) -> ClientFigures:
    """Invent clients that have two metrics, spread around these means."""
    first, second = (clients([mean + id % 5 for id in range(20)]) for mean in (own, other))
    metric = ClientMetric(second.own, second.shift, second.pooled)
    return replace(first, metrics={"auroc": metric, "loss": ClientMetric((0.5,) * 20)})


def measured(**changes: object) -> Summary:
    loss = replace(accuracy(0.5), better="lower", percent=False)
    further = {"auroc": accuracy(60.0), "loss": loss}
    apart = novel([70.0, 72.0])
    theirs = ClientMetric((50.0, 52.0))
    apart = replace(
        apart,
        metrics={"auroc": accuracy(51.0)},
        clients=replace(apart.clients, metrics={"auroc": theirs}),
    )
    return result(
        metrics=further,
        per_client=both(80.0, 60.0),
        rules={"r": RuleFigures(accuracy(81.0), {"auroc": accuracy(61.0)}, both(81.0, 61.0))},
        majority=Baseline(accuracy(55.0), {"auroc": accuracy(50.0)}, both(55.0, 50.0)),
        global_view=accuracy(70.0),
        global_metrics={"auroc": accuracy(65.0)},
        novel=apart,
        **changes,
    )


def test_without_a_lead_the_metric_of_the_task_comes_first() -> None:
    assert led([measured()]) == [measured()]
    assert led(with_lead([measured()], "accuracy"))[0].metric == "accuracy"


def test_all_figures_are_those_of_the_metric_that_leads() -> None:
    before = measured()
    (found,) = led(with_lead([before], "auroc"))
    assert (found.metric, found.measured) == ("auroc", "accuracy")
    assert found.accuracy.own.mean == 60.0
    assert list(found.metrics) == ["accuracy", "loss"]
    assert found.per_client.own == before.per_client.metrics["auroc"].own
    assert found.per_client.shift["100"] == before.per_client.metrics["auroc"].shift["100"]
    assert found.per_client.metrics["accuracy"].own == before.per_client.own
    assert found.rules["r"].accuracy.own.mean == 61.0
    assert found.rules["r"].per_client.own[0] == 61.0
    assert found.majority.accuracy.own.mean == 50.0
    assert found.majority.per_client.own[0] == 50.0
    assert found.global_view.own.mean == 65.0
    assert found.novel.clients.own == (50.0, 52.0)
    assert found.novel.gap == 60.0 - 51.0
    # The curve over rounds is of the task's metric.
    assert found.history == before.history


def test_another_lead_brings_everything_back() -> None:
    (there,) = led(with_lead([measured()], "auroc"))
    (back,) = led(with_lead([there], "accuracy"))
    assert back.metric == "accuracy"
    assert back.accuracy == measured().accuracy
    assert back.per_client == measured().per_client
    assert (back.measured, back.percent, there.percent) == ("", True, True)
    assert led([there]) == [there]


def test_a_metric_that_is_no_percentage_says_so_and_what_is_better() -> None:
    (found,) = led(with_lead([measured()], "loss"))
    assert (found.percent, found.better) == (False, "lower")
    assert found.metrics["accuracy"].percent


def test_files_without_figures_of_clients_are_led_all_the_same() -> None:
    bare = measured(lead="auroc")
    old = replace(bare, per_client=replace(bare.per_client, metrics={}), rules={}, novel=None)
    (found,) = led([old])
    assert set(found.per_client.own) == {None}
    assert found.accuracy.own.mean == 60.0


def test_it_is_kept_in_the_file() -> None:
    given = measured(lead="auroc")
    assert Summary.from_json(given.to_json()) == given
    assert "lead" not in measured().to_json()


def test_a_metric_that_was_not_measured_is_refused(golden: Golden) -> None:
    with raises("E201", "`aurok`") as refusal:
        with_lead([measured()], "aurok")
    golden(refusal.value)


def test_where_nothing_was_measured_for_a_group_it_has_no_figure() -> None:
    less = replace(measured(lead="loss"), rules={"r": RuleFigures(accuracy(81.0))})
    (found,) = led([less])
    assert found.rules["r"].accuracy.own.defined == 0
