"""Sessions: what both ends hold, what is sent of a change, and when they start afresh."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.core.random import uniform
from masquerade.wire import Session, Stamp, count, decode, encode, nbytes
from masquerade.wire.packed_bits import ones, packed
from masquerade.wire.session import ANY, base, begin, moved, unsent
from tests.support import raises
from tests.wire.parts import assert_same, forged, messages, quick, rounded, wires
from tests.wire.samples import SAMPLES, bits, part, since


def flipped(message: Message, every: int) -> Message:
    """The message with every so many of its bits turned over."""

    def turn(value: torch.Tensor) -> torch.Tensor:
        if value.dtype is not torch.bool:
            return value
        return value ^ (torch.arange(value.numel()).reshape(value.shape) % every == 0)

    changed: Message = tree.transform(turn, message)
    return changed


def session_of(down: Message, up: Message) -> Session:
    return moved(moved({}, "down", count(down, {}).masks), "up", count(up, {}).masks)


@given(messages, st.integers(1, 5), st.integers(1, 5), wires)
@quick
def test_with_any_session_counted_is_encoded_and_comes_back(
    message: Message, down: int, up: int, wire: str
) -> None:
    sent = rounded(message, wire)
    for session in ({}, session_of(flipped(sent, down), flipped(sent, up)), session_of(sent, {})):
        data = encode(sent, session=session)
        assert int(nbytes(sent, session)) == len(data) <= len(encode(sent))
        read = decode(data, sent, session=session)
        assert_same(read, sent)
        assert encode(read, session=session) == data


@pytest.mark.parametrize("flag", [1, 2, 3])
def test_a_mask_is_read_as_it_is_or_as_changes_of_either(flag: int) -> None:
    """The nearest of those that are held is taken: of the last download (2), or upload (3)."""
    mask, near = bits(200, 100), bits(200, 3, 2)
    held = {2: ({"p": part(mask ^ near)}, {}), 3: ({}, {"p": part(mask ^ near)}), 1: ({}, {})}
    message, session = {"p": part(mask)}, session_of(*held[flag])
    data = encode(message, session=session)
    assert data[25] == flag
    assert_same(decode(data, message, session=session), message)


@given(st.lists(st.booleans(), max_size=200))
@quick
def test_words_count_their_ones(given_bits: list[bool]) -> None:
    found = torch.tensor(given_bits, dtype=torch.bool)
    assert int(ones(packed(found))) == sum(given_bits)
    both = torch.stack([found, ~found])
    assert ones(packed(both, lead=1)).tolist() == [sum(given_bits), len(found) - sum(given_bits)]
    spread = found.expand(3, -1)
    assert torch.equal(packed(spread, lead=1), torch.stack([packed(found)] * 3))


def test_words_hold_their_bits_lowest_first() -> None:
    found = torch.zeros(70, dtype=torch.bool)
    found[[0, 9, 63, 64]] = True
    assert packed(found).tolist() == [1 + (1 << 9) - (1 << 63), 1]


def message_of(keep: torch.Tensor) -> Message:
    return {"p": Part({"w": torch.ones(keep.shape)}, {"w": keep})}


KEEP = uniform(1, (4000,)) < 0.5
FEW = uniform(2, (4000,)) < 0.01
MANY = uniform(3, (4000,)) < 0.2


def test_a_message_in_another_form_than_the_shortest_is_refused() -> None:
    """The same mask, as it is where a change is shorter, and the other way round."""
    session = session_of(message_of(KEEP), {})
    changed = message_of(KEEP ^ FEW)
    with raises("E605", "4000"):
        decode(encode(changed), changed, session=session)
    short = encode(changed, session=session)
    assert len(short) < len(encode(changed)) - 400
    with raises("E605"):
        decode(short, changed)


def test_the_flag_says_since_when_bits_have_changed() -> None:
    held, sent, meant = (
        {"p": Part({"w": bits})} for bits in (KEEP, KEEP ^ MANY, KEEP ^ MANY ^ FEW)
    )
    session = session_of(held, sent)
    data = bytearray(encode(meant, session=session))
    assert data[26] == 3
    data[26] = 2
    other = decode(forged(bytes(data)), meant, session=session)
    assert torch.equal(other["p"].values["w"], KEEP ^ FEW)


def test_ends_that_hold_different_things_notice_and_start_afresh() -> None:
    server = session_of(message_of(KEEP), message_of(KEEP ^ FEW))
    client = session_of(message_of(KEEP ^ FEW), {})
    message = message_of(KEEP)
    data = encode(message, Stamp(3, 7, base("run", server)), server)
    with raises("E605"):
        decode(data, message, Stamp(3, 7, base("run", client)), client)
    again = encode(message, Stamp(3, 7, base("run", {})))
    assert_same(decode(again, message, Stamp(3, 7, base("run", {}))), message)


def test_a_base_tells_runs_versions_and_masks_apart() -> None:
    first = tree.take(begin({"w": torch.ones(3)}, 1), 0)
    sessions = [
        first,
        first | {ANY + "p": torch.tensor(5)},
        first | {ANY + "q": torch.tensor(5)},
        moved(first, "down", count(message_of(KEEP), {}).masks),
        moved(first, "up", count(message_of(KEEP), {}).masks),
        moved(first, "up", count(message_of(KEEP ^ FEW), {}).masks),
    ]
    found = {base("run", session) for session in sessions} | {base("other", first)}
    assert len(found) == 7
    # Bits that were never sent are as good as absent: other clients of a run may have sent theirs.
    assert base("run", first | {"up/p/w": torch.zeros(63, dtype=torch.int64)}) == base("run", first)


def test_what_was_never_sent_is_the_initial_model_without_bits() -> None:
    begun: Session = tree.take(begin({"w": torch.ones(3)}, 1), 0)
    new = {ANY + "p": torch.tensor([5, 6]), "up/p/w": torch.tensor([[1, 2], [3, 4]])}
    found = unsent(begun, begun | new)
    assert found.keys() == new.keys()
    assert int(found[ANY + "p"]) == int(begun[ANY]) != 5
    assert found["up/p/w"].tolist() == [0, 0]


@pytest.mark.parametrize("direction", ["down", "up"])
@pytest.mark.parametrize(("name", "held"), [("packed", 300), ("coded", 24)])
def test_bits_of_another_length_than_those_that_are_held_are_refused(
    direction: str, name: str, held: int
) -> None:
    sample = SAMPLES[name]
    session = since(direction, {"p": part(bits(held, 10))})
    with raises("E605", "p/w"):
        replace(sample, session=session).decode(sample.encode())
