"""Alarms: what is alarming about results, and what is not."""

import warnings
from dataclasses import replace

from masquerade.results import Bytes, Preprocessing
from masquerade.results.alarms import alarms, warn_of_client
from masquerade.results.summary import ClassWeights
from tests.messages import Golden
from tests.report.invented import clients, novel, result
from tests.support import warns


def codes(*results) -> list[str]:
    return [text[:4] for text in alarms(results)]


def answering(count: int, method: str = "a", **changes):
    """A result of 20 clients, of which so many answer with one class."""
    found = result(method, own=70.0 + len(method), **changes)
    return replace(found, per_client=replace(found.per_client, one_class=tuple(range(count))))


def test_one_client_that_answers_alike_is_an_alarm_and_is_named(golden: Golden) -> None:
    assert codes(answering(0)) == []
    assert codes(answering(1)) == ["W310"]
    (text,) = alarms([answering(3), answering(20, "bb"), answering(0, "ccc")])
    assert "A 3 of 20 (0, 1, 2); BB 20 of 20 (0, 1," in text
    golden(text)


def test_clients_are_called_by_their_names_once_for_all_seeds() -> None:
    several = [answering(1), answering(2, seed=2)]
    called = tuple("abcdefghijklmnopqrst")
    named = [replace(s, per_client=replace(s.per_client, names=called)) for s in several]
    (text,) = alarms(named)
    assert "A 3 of 40 (a, b)" in text


def test_novel_clients_are_named_too() -> None:
    kept_out = novel([70.0, 72.0])
    kept_out = replace(kept_out, clients=replace(kept_out.clients, one_class=(20, 21)))
    (text,) = alarms([answering(1, novel=kept_out)])
    assert "A 3 of 22 (0, 20, 21)" in text


def test_who_takes_such_a_model_is_warned(golden: Golden) -> None:
    with warns("W310", "client 1") as heard:
        warn_of_client(answering(2), 1)
    golden(heard[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_client(answering(2), 2)


def test_what_was_done_is_not_advised() -> None:
    def advised(**done: object) -> list[bool]:
        (text,) = alarms([replace(answering(3), **done)])
        return [word in text for word in ("train.class_weights", "data.normalize")]

    assert advised() == [True, True]
    assert advised(class_weights=ClassWeights((1.0, 2.0), Bytes(0, 0))) == [False, True]
    fitted = Preprocessing("numbers are standardized", Bytes(0, 0), ("sum",))
    assert advised(preprocessing=fitted) == [True, False]
    # Constants may be those of other images.
    assert advised(preprocessing=replace(fitted, sent=())) == [True, True]


def test_methods_with_the_same_figures_are_named(golden: Golden) -> None:
    same = [result("a"), result("b"), result("c", own=81.0)]
    (text,) = alarms(same)
    golden(text)


def test_one_client_or_one_degree_makes_a_difference() -> None:
    first, other = result("a"), result("b")
    own = clients([80.0] * 20)
    close = replace(own, own=(80.0,) * 19 + (80.1,))
    assert codes(replace(first, per_client=own), replace(other, per_client=close)) == []
    shifted = replace(own, shift=own.shift | {"100": (1.0,) * 20})
    assert codes(replace(first, per_client=own), replace(other, per_client=shifted)) == []
    assert codes(replace(first, per_client=own), replace(other, per_client=own)) == ["W311"]


def test_a_shared_model_beside_personal_ones_may_be_fedavg_s() -> None:
    assert codes(result("fedavg"), result("ditto:global", beside=True)) == []
    assert codes(result("fedavg"), result("b"), result("c", beside=True)) == ["W311"]


def test_all_seeds_have_to_agree() -> None:
    first = [result("a", seed, own=80.0 + seed) for seed in (1, 2)]
    assert codes(*first, result("b", 1, own=81.0), result("b", 2, own=82.0)) == ["W311"]
    assert codes(*first, result("b", 1, own=81.0), result("b", 2, own=83.0)) == []


def test_what_is_perfect_not_finite_or_not_listed_says_nothing() -> None:
    perfect = clients([100.0] * 20, 0.0)
    broken = clients([float("nan")] * 20)
    for figures in (perfect, broken, None):
        assert codes(*(result(name, per_client=figures) for name in "ab")) == []


def test_the_figures_of_one_client_may_agree_by_chance() -> None:
    assert codes(*(result(name, per_client=clients([80.0])) for name in "ab")) == []
    assert codes(*(result(name, per_client=clients([80.0, 70.0])) for name in "ab")) == ["W311"]
