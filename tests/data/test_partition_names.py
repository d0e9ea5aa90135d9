"""Rules as texts: what is written is read, and what is not known is refused with what is."""

import pytest

from masquerade.data.partition.names import FORMS, describe, parse
from masquerade.data.partition.papers import Groups, Lottery, Outliers, PerClass
from masquerade.data.partition.rules import IID, ByClient, Dirichlet, Pathological, Rule, Shards
from tests.messages import Golden
from tests.support import raises


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("iid", IID()),
        ("dirichlet:0.3", Dirichlet(0.3)),
        ("dirichlet:1e-05", Dirichlet(0.00001)),
        ("dirichlet:0.1:capped", Dirichlet(0.1, cap=True, least=40)),
        ("pathological", Pathological()),
        ("pathological:unbalanced", Pathological(balanced=False)),
        ("client", ByClient()),
        ("fedselect:2", PerClass(2)),
        ("fedselect:4:5:6", PerClass(4, 5, 6)),
        ("fedselect:4:5:6:7", PerClass(4, 5, 6, 7)),
        ("client:40", ByClient(40)),
        ("dirichlet:0.1:40", Dirichlet(0.1, least=40)),
        ("pathological:5", Pathological(5)),
        ("shards:2", Shards(2)),
        ("lottery:20:0.25", Lottery(20, 0.25)),
        ("lottery:5:1.0:4", Lottery(5, 1.0, 4)),
        ("groups:5", Groups(5)),
        ("groups:5:0.1", Groups(5, 0.1)),
        ("outliers:5", Outliers(5)),
        ("outliers:3:0.1", Outliers(3, 0.1)),
    ],
)
def test_text_and_rule_are_inverses(text: str, rule: Rule) -> None:
    assert parse(text) == rule
    assert describe(rule) == text


def test_rule_without_a_text_is_described_by_its_fields() -> None:
    assert describe(Dirichlet(0.3, True, 7)) == "Dirichlet(alpha=0.3, cap=True, least=7)"
    assert describe(Pathological(3, balanced=False)).startswith("Pathological(")


@pytest.mark.parametrize(
    "text",
    [
        "dirichlt:0.3",
        "dirichlet:much",
        "pathological:unbalance",
        "IID",
        "dirichlet:-1",
        "dirichlet:nan",
        "fedselect:few",
        "fedselect:2:20",
        "fedselect:0",
        "fedselect:2:20:0",
        "client:0",
        "dirichlet:0.3:few",
        "shards:0",
        "shards",
        "lottery:0:0.5",
        "lottery:20:0",
        "lottery:20:1.5",
        "lottery:20:nan",
        "lottery:20",
        "groups:0",
        "groups:5:0",
        "outliers:0",
        "outliers:5:inf",
    ],
)
def test_text_that_names_no_rule_is_refused(text: str, golden: Golden) -> None:
    with raises("E201") as refusal:
        parse(text)
    golden(refusal.value)


def test_every_form_can_be_written() -> None:
    numbers = {"ALPHA": "0.5", "BALANCE": "0.5"}
    for form in FORMS:
        words = [numbers.get(word, "2" if word.isupper() else word) for word in form.split(":")]
        assert parse(describe(parse(":".join(words)))) == parse(":".join(words))
