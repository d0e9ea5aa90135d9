"""Records as JSON: what is written is what is read, and what does not fit is named by its path."""

import json
import math
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from masquerade import results
from masquerade.experiments.checkpoints import CommitFacts
from masquerade.report.labels import LabelCounts
from masquerade.reproduce.record import Circumstances
from masquerade.results.costs import Parts
from masquerade.results.json_records import DEEPEST, Json, from_json, parsed, to_json

RECORDS: list[type[Any]] = [
    each for name in results.__all__ if is_dataclass(each := getattr(results, name))
]
RECORDS += [Parts, CommitFacts, Circumstances, LabelCounts]
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=3),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.text(max_size=3), inside),
    max_leaves=3,
)
PLAIN: dict[type, st.SearchStrategy[Any]] = {
    float: NUMBERS,
    int: st.integers(),
    bool: st.booleans(),
    str: st.text(max_size=3),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return small values of a type; of a record every field varies."""
    origin, inside = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{each.name: values_of(hints[each.name]) for each in fields(kind)})
    if origin in (Union, UnionType):
        rest = [each for each in inside if each is not NoneType]
        return JSON if len(rest) > 1 else st.none() | values_of(rest[0])
    if origin is tuple:
        return st.lists(values_of(inside[0]), max_size=2).map(tuple)
    if origin is not None:
        return st.dictionaries(st.text(max_size=3), values_of(inside[1]), max_size=1)
    return PLAIN[kind]


def written(record: object) -> Json:
    """Write a record as strict JSON, and read it as plain JSON."""
    found: Json = json.loads(json.dumps(to_json(record), allow_nan=False))
    return found


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_written_is_what_is_read(kind: type[Any], data: st.DataObject) -> None:
    record = data.draw(values_of(kind))
    assert from_json(kind, written(record)) == record


@dataclass(frozen=True)
class Inner:
    size: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    maybe: float | None = None
    sizes: tuple[int, ...] = ()
    by_name: dict[str, Inner] = field(default_factory=dict)
    sure: bool = False
    anything: Json = None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_and_null_is_no_number(value: float) -> None:
    assert to_json(Inner(1, value)) == {"size": 1, "share": None}
    assert math.isnan(from_json(Inner, {"size": 1, "share": None}).share)
    # Where a number may be missing, null says that it is.
    assert from_json(Outer, {"name": "a", "inner": {"size": 1}, "maybe": None}).maybe is None


def test_defaults_are_left_out_and_come_back() -> None:
    plain = Outer("a", Inner(1))
    assert to_json(plain) == {"name": "a", "inner": {"size": 1}}
    assert from_json(Outer, to_json(plain)) == plain
    other = Outer("a", Inner(1, 0.25), 0.0, (1,), {"b": Inner(2)}, True, [1, {"c": None}])
    assert to_json(other) == {
        "name": "a",
        "inner": {"size": 1, "share": 0.25},
        "maybe": 0.0,
        "sizes": [1],
        "by_name": {"b": {"size": 2}},
        "sure": True,
        "anything": [1, {"c": None}],
    }


def test_a_whole_number_is_a_float_where_one_is_meant() -> None:
    found = from_json(Inner, {"size": 1, "share": 1}).share
    assert (found, type(found)) == (1.0, float)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nmae": "b"}, "Outer: unknown nmae"),
        ({"inner": {}}, "Outer.inner: missing size"),
        ({"inner": {"size": 1, "more": 2, "and": 3}}, "Outer.inner: unknown and, more"),
        ({"inner": None}, "Outer.inner is 'None'"),
        ({"inner": {"size": "1"}}, "Outer.inner.size is '1'"),
        ({"inner": {"size": 1.0}}, "Outer.inner.size is '1.0'"),
        ({"inner": {"size": True}}, "Outer.inner.size is 'True'"),
        ({"inner": {"size": 1, "share": False}}, "Outer.inner.share is 'False'"),
        ({"maybe": "0.5"}, "Outer.maybe is '0.5'"),
        ({"sizes": [1, 2, None]}, r"Outer.sizes\[2\] is 'None'"),
        ({"sizes": {"0": 1}}, "Outer.sizes is"),
        ({"by_name": {"b": {"size": 2}, "c": {}}}, "Outer.by_name.c: missing size"),
        ({"by_name": [1]}, "Outer.by_name is"),
        ({"sure": 1}, "Outer.sure is '1'"),
        ({"name": 3}, "Outer.name is '3'"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(change: dict[str, Json], words: str) -> None:
    given: dict[str, Json] = {"name": "a", "inner": {"size": 1}, **change}
    with pytest.raises(ValueError, match=f"^{words}"):
        from_json(Outer, given)


@pytest.mark.parametrize("data", [None, 3, "a", [], [{"name": "a"}]])
def test_what_is_no_object_is_no_record(data: Json) -> None:
    with pytest.raises(ValueError, match=r"^Outer is"):
        from_json(Outer, data)


@pytest.mark.parametrize("value", [{1, 2}, b"a", Outer, object()])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="nothing that JSON can hold"):
        to_json({"a": [value]})


@pytest.mark.parametrize("depth", [DEEPEST + 1, 500, 200_000])
def test_json_of_any_nesting_is_refused_by_a_value_error(depth: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        with pytest.raises(ValueError, match="nested"):
            parsed(opened * depth + "1" + closed * depth)


def test_json_is_read_up_to_a_length_and_a_depth() -> None:
    assert parsed("[" * DEEPEST + "]" * DEEPEST) is not None
    assert parsed(b"[1]", most=3) == [1]
    with pytest.raises(ValueError, match="4 bytes"):
        parsed(b"[10]", most=3)
