"""Figures of validation data are never called figures of test data."""

from dataclasses import replace

import pytest

import masquerade as mq
from masquerade.export.bundle import Model
from masquerade.export.model_card import describe
from masquerade.report.clients import listings
from masquerade.report.footnotes import footnotes
from masquerade.report.tables import heading
from masquerade.results import Summary
from masquerade.results.alarms import alarms, warn_of_client
from tests.support import summary, warns
from tests.tables.example import federation, linear


@pytest.fixture(scope="module")
def result() -> mq.Result:
    evaluate = mq.Evaluate(every=0, degrees=(0,), split="validation")
    return mq.run(mq.methods.FedAvg(local_epochs=1), linear(), federation(), 1, evaluate=evaluate)


def test_tables_and_frames_say_what_figures_are_of(result: mq.Result) -> None:
    found, *_ = result.summaries
    assert found.per_client is not None
    assert found.per_client.tests == tuple(len(own) for own in federation().validation)
    assert heading([found]).endswith("validation data")
    assert not any("test samples" in note or "test set" in note for note in footnotes([found]))
    assert listings([found])[0].headings[1] == "validation samples"
    assert set(result.to_frame()["split"]) == {"validation"}
    assert set(result.to_frame(clients=True)["split"]) == {"validation"}


def test_a_model_card_says_it_too(result: mq.Result) -> None:
    mine = result.client(0)
    x = federation().x[:4]
    card = describe(mine.summary, 0, Model(mine.method, mine.task, mine.parts, x), {}).text()
    assert "Validation data of this client" in card
    assert "on validation data" in card
    assert "est data" not in card


def test_alarms_say_it_too(result: mq.Result) -> None:
    found, *_ = result.summaries
    assert found.per_client is not None
    alike = replace(found, per_client=replace(found.per_client, one_class=(0,)))
    assert any("own validation samples" in text for text in alarms([alike]))
    with warns("W310", "validation"):
        warn_of_client(alike, 0)


def test_summaries_of_test_data_are_as_they_were() -> None:
    written = summary().to_json()
    assert "split" not in written
    assert Summary.from_json(written).split == "test"
    assert "test" not in heading([summary()])
