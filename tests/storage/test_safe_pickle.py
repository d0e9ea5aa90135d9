"""Pickles that are walked through: plain things come out whole, and nothing is ever called."""

import io
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.storage.safe_pickle import Language, Name

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text()
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(0, 999), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(thing=PLAIN, protocol=st.sampled_from([2, 3, 4, 5]))
def test_plain_things_come_out_as_they_went_in(thing: Any, protocol: int) -> None:
    assert Language({}).read(pickle.dumps(thing, protocol)) == thing


def test_of_a_stream_one_pickle_is_read() -> None:
    stream = io.BytesIO(pickle.dumps([1], 2) + pickle.dumps("two", 2) + b"rest")
    assert [Language({}).read(stream) for _ in range(2)] == [[1], "two"]
    assert stream.read() == b"rest"


def test_a_name_stands_for_our_own_function_and_for_nothing_else() -> None:
    data = b"\x80\x02cos\nsystem\nU\x02ls\x85R."
    assert Language({"os system": lambda word: f"not run: {word}"}).read(data) == "not run: ls"
    with pytest.raises(ValueError, match="asks for `os system`"):
        Language({"os path": None}).read(data)
    with pytest.raises(ValueError, match="not to be called"):
        Language({"os system": None}).read(data)
    assert Language({"os system": None}).read(b"\x80\x02cos\nsystem\n.") == Name("os system")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x02]K\x01", "no end|exhausted"),
        (b"\x80\x02.", "has not put"),
        (b"\x80\x02t.", "has not put"),
        (b"\x80\x02(.", "has not put"),
        (b"\x80\x02K\x01K\x02a.", "no container"),
        (b"\x80\x02}]K\x01s.", "no names"),
        (b"\x80\x02K\x01K\x02\x86K\x03R.", "not to be called"),
        (b"\x80\x02K\x01Q.", "opcode BINPERSID"),
        (b"(ios\nsystem\n.", "opcode INST"),
        (b"\x80\x02cos\nsystem\n)\x81.", "asks for"),
    ],
)
def test_what_is_no_plain_pickle_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Language({}).read(data)
