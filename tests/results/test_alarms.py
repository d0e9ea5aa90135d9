"""Alarms: what is alarming about results, and what is not."""

from dataclasses import replace

from masquerade.results.alarms import alarms
from tests.messages import Golden
from tests.report.invented import clients, novel, result


def codes(*results) -> list[str]:
    return [text[:4] for text in alarms(results)]


def answering(count: int, method: str = "a", **changes):
    """A result of 20 clients, of which so many answer with one class."""
    found = result(method, own=70.0 + len(method), **changes)
    return replace(found, per_client=replace(found.per_client, one_class=tuple(range(count))))


def test_more_than_a_tenth_of_the_clients_is_an_alarm(golden: Golden) -> None:
    assert codes(answering(2)) == []
    assert codes(answering(3)) == ["W310"]
    (text,) = alarms([answering(3), answering(20, "bb"), answering(0, "ccc")])
    assert "A 3 of 20, BB 20 of 20." in text
    golden(text)


def test_seeds_and_novel_clients_count_together() -> None:
    assert codes(answering(4), answering(1, seed=2)) == ["W310"]
    assert codes(answering(3), answering(1, seed=2)) == []
    kept_out = novel([70.0, 72.0])
    kept_out = replace(kept_out, clients=replace(kept_out.clients, one_class=(20, 21)))
    assert codes(answering(1, novel=kept_out)) == ["W310"]


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


def test_all_seeds_have_to_agree() -> None:
    first = [result("a", seed, own=80.0 + seed) for seed in (1, 2)]
    assert codes(*first, result("b", 1, own=81.0), result("b", 2, own=82.0)) == ["W311"]
    assert codes(*first, result("b", 1, own=81.0), result("b", 2, own=83.0)) == []


def test_what_is_perfect_not_finite_or_not_listed_says_nothing() -> None:
    perfect = clients([100.0] * 20, 0.0)
    broken = clients([float("nan")] * 20)
    for figures in (perfect, broken, None):
        assert codes(*(result(name, per_client=figures) for name in "ab")) == []
