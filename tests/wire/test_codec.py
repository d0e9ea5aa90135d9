"""Messages as bytes: what is decoded is what was meant, and damage is always noticed."""

import struct
import zlib
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.core import tree
from masquerade.core.part import Axis, Message, Part
from masquerade.errors import MasqueradeError
from masquerade.wire import Stamp, decode, digest, encode, nbytes, values_bytes
from tests.support import raises
from tests.wire.parts import (
    HEADER,
    TYPES,
    assert_same,
    forged,
    messages,
    names,
    parts,
    quick,
    raw,
)


@given(messages)
@quick
def test_what_is_decoded_is_what_was_meant(message: Message) -> None:
    data = encode(message)
    read = decode(data, message)
    assert_same(read, message)
    assert encode(read) == data


@given(messages)
@quick
def test_counted_bytes_are_encoded_bytes(message: Message) -> None:
    assert int(nbytes(message)) == len(encode(message))
    same = dict.fromkeys(message, True)
    # Of a part that the receiver holds only the flag is sent.
    assert int(nbytes(message, same=same)) == len(encode(message, same=same))
    assert len(encode(message, same=same)) == (HEADER + len(message) if message else 0)
    assert int(values_bytes(message, same)) == 0
    assert encode(message, same=dict.fromkeys(message, False)) == encode(message)


@given(messages)
@quick
def test_each_part_is_sent_or_not_for_itself(message: Message) -> None:
    for name, part in message.items():
        whole = len(encode({name: part})) - HEADER - 1
        assert len(encode(message, same={name: True})) == len(encode(message)) - whole
        assert int(nbytes(message, same={name: True})) == len(encode(message)) - whole
        others = {other: rest for other, rest in message.items() if other != name}
        assert int(values_bytes(message, {name: True})) == int(values_bytes(others))


@given(st.dictionaries(names, parts(axes=1), max_size=2))
@quick
def test_a_stacked_message_costs_what_its_messages_cost(message: Message) -> None:
    flipped = tree.transform(lambda v: ~v if v.dtype is torch.bool else v, message)
    counted = nbytes(tree.stack([message, flipped]), lead=1).expand(2)
    assert counted.tolist() == [len(encode(message)), len(encode(flipped))]


def test_a_masked_scalar_can_be_stacked() -> None:
    """BatchNorm counts its batches in a scalar, and `mask.full` has a bit for it."""
    one, two = (
        {"p": Part({"n": torch.tensor(5)}, {"n": torch.tensor(bit)})} for bit in (True, False)
    )
    stacked = tree.stack([one, two])
    assert nbytes(stacked, lead=1).tolist() == [len(encode(one)), len(encode(two))]
    assert digest(stacked["p"], lead=1).tolist() == [int(digest(one["p"])), int(digest(two["p"]))]


@given(messages)
@quick
def test_what_is_not_sent_is_taken_from_what_the_receiver_holds(message: Message) -> None:
    read = decode(encode(message, same=dict.fromkeys(message, True)), message, held=message)
    assert all(read[name] is part for name, part in message.items())


def test_the_layout_by_hand() -> None:
    part = Part(
        {"w": torch.tensor([1.0, 2.0, -0.5]), "bits": torch.tensor([True, False, True])},
        {"w": torch.tensor([True, False, True])},
    )
    # Part new (1). `bits` has no mask (0), as they are (1): two ones, bits 0 and 2 make the byte 5.
    # `w` has a mask as it is (1), with two ones, 5 again; two float32.
    body = b"\x01" + b"\x00\x01\x02\x05" + b"\x01\x02\x05" + struct.pack("<2f", 1.0, -0.5)
    head = b"MQ\x02\x01" + struct.pack("<IIQ", 7, 9, 2**64 - 3)
    expected = head + struct.pack("<I", zlib.crc32(head + body)) + body
    assert encode({"p": part}, Stamp(7, 9, 2**64 - 3)) == expected
    assert int(nbytes({"p": part})) == len(expected) == HEADER + 16
    # As papers count: two values of four bytes, and three bits in a byte.
    assert int(values_bytes({"p": part})) == 8 + 1


@pytest.mark.parametrize("dtype", TYPES)
def test_a_mask_that_keeps_nothing_costs_the_mask(dtype: torch.dtype) -> None:
    keep = torch.zeros(3, 4, dtype=torch.bool)
    message = {"p": Part({"w": torch.ones(3, 4, dtype=dtype)}, {"w": keep})}
    data = encode(message)
    # Flag of the part, flag of the tensor, zero of twelve bits are ones, no value. Where values are
    # bits, a flag says so, and there are none.
    assert len(data) == HEADER + 1 + 1 + 1 + (dtype is torch.bool)
    assert not decode(data, message)["p"].values["w"].any()
    assert int(values_bytes(message)) == 0


def test_a_grain_costs_a_bit_and_not_a_bit_per_entry() -> None:
    keep = torch.tensor([True, False, False, True])
    rows = Part({"w": torch.ones(4, 100)}, {"w": keep}, {"w": Axis(0)})
    assert len(encode({"p": rows})) == HEADER + 1 + 1 + 1 + 1 + 2 * 100 * 4


def test_no_message_is_no_bytes() -> None:
    assert encode({}) == b""
    assert int(nbytes({})) == 0
    assert decode(b"", {}) == {}


def test_a_part_without_tensors_costs_its_flag() -> None:
    message = {"p": Part({})}
    assert int(nbytes(message)) == len(encode(message)) == HEADER + 1
    assert digest(message["p"]) != digest(Part({"w": torch.ones(1)}))


def small() -> Message:
    """A message that has everything: a mask, a grain, bits, integers."""
    return {
        "params": Part(
            {"w": torch.tensor([[1.5, 2.0], [0.0, -1.0]]), "n": torch.tensor([7])},
            {"w": torch.tensor([True, False])},
            {"w": Axis(1)},
        ),
        "bits": Part({"b": torch.tensor([True, False, True])}),
    }


def test_every_truncation_is_refused() -> None:
    data = encode(small())
    for length in range(len(data)):
        with raises("E605"):
            decode(data[:length], small())
        with raises("E605"):
            decode(forged(data[:length]), small())


def test_every_changed_byte_is_refused() -> None:
    data = encode(small())
    for place in range(len(data)):
        for change in range(1, 256):
            damaged = bytearray(data)
            damaged[place] ^= change
            with raises("E605"):
                decode(bytes(damaged), small())


def read_or_none(data: bytes) -> Message | None:
    """Decode, or return None for a refusal; whatever else is raised is a fault of the codec."""
    try:
        return decode(data, small(), held={"bits": small()["bits"]})
    except MasqueradeError as error:
        if error.code != "E605":
            raise
        return None


def shapes(message: Message) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tree.named(message).items() if "keep" not in name}


def test_a_forged_body_is_refused_or_of_the_right_form() -> None:
    data = encode(small())
    refused = 0
    for place in range(HEADER, len(data)):
        for change in (1, 2, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= change
            read = read_or_none(forged(bytes(damaged)))
            refused += read is None
            if read is not None:
                assert shapes(read) == shapes(small())
    assert refused


@given(st.binary(max_size=60))
@quick
def test_noise_is_refused_or_of_the_right_form(noise: bytes) -> None:
    head = b"MQ\x02\x02" + bytes(HEADER - 4)
    for data in (noise, head + noise, forged(head + noise)):
        read = read_or_none(data)
        assert read is None or shapes(read) == shapes(small())


def test_bytes_after_the_end_are_refused() -> None:
    with raises("E605", "1"):
        decode(forged(encode(small()) + b"\0"), small())


def test_padding_bits_must_be_zero() -> None:
    message = {"p": Part({"b": torch.tensor([True, False, True])})}
    data = bytearray(encode(message))
    data[-1] |= 0b1000
    with raises("E605"):
        decode(forged(bytes(data)), message)


@pytest.mark.parametrize(("place", "flag"), [(HEADER, 2), (HEADER + 1, 4), (HEADER + 2, 0)])
def test_a_flag_is_one_of_those_that_mean_something(place: int, flag: int) -> None:
    message = {"p": Part({"b": torch.tensor([True])})}
    data = bytearray(encode(message))
    data[place] = flag
    with raises("E605", flag, place):
        decode(forged(bytes(data)), message)


def test_no_flag_leads_beyond_what_is_held() -> None:
    """Of a mask, and of bits, it is one of three."""
    for message, place in ((small(), HEADER + 2), ({"p": MASKED}, HEADER + 1)):
        data = bytearray(encode(message))
        for flag in (4, 5, 255):
            data[place] = flag
            with raises("E605", flag, place):
                decode(forged(bytes(data)), message)


MASKED = Part({"w": torch.ones(2)}, {"w": torch.tensor([True, False])})


def test_a_step_is_within_what_a_float32_can_be() -> None:
    """The finest and the largest are read; of wider numbers one that is beyond is refused."""
    finest, largest = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    for most in (127 * finest, largest * 127 / 127.5):
        message = {"p": Part({"w": torch.tensor([most, 0.0])}).to("int8", 1)}
        assert float(message["p"].scale["w"]) >= finest
        assert_same(decode(encode(message), message), message)
    like = {"p": Part({"w": torch.tensor([127.0], dtype=torch.float64)}).to("int8", 1)}
    data = encode(like)
    for step, allowed in ((largest / 127.5, True), (largest / 126.5, False)):
        other = forged(data[:-5] + struct.pack("<f", step) + data[-1:])
        if allowed:
            assert decode(other, like)["p"].values["w"].item() == pytest.approx(127 * step)
        else:
            with raises("E605"):
                decode(other, like)


def test_a_reference_to_what_is_not_held_is_refused() -> None:
    message = small()
    data = encode(message, same=dict.fromkeys(message, True))
    for held, missing in ((None, "bits"), ({}, "bits"), ({"bits": message["bits"]}, "params")):
        with raises("E605", f"`{missing}`"):
            decode(data, message, held=held)


def test_a_message_of_another_run_is_refused() -> None:
    with raises("E605"):
        decode(encode({"p": Part({"w": torch.ones(3)})}), {"p": Part({"w": torch.ones(4)})})
    with raises("E605"):
        decode(encode({"p": Part({"w": torch.ones(3)})}), small())


def test_decoded_values_may_be_written() -> None:
    message = small()
    read = decode(encode(message), message)
    read["params"].values["w"].add_(1)
    read["params"].values["n"].add_(1)
    assert encode(small()) == encode(message)


def test_clients_of_a_stack_may_hold_different_versions() -> None:
    message = {"p": Part({"w": torch.ones(3, 2)}), "q": Part({"w": torch.ones(3, 5)})}
    same = {"p": torch.tensor([True, False, True]), "q": torch.tensor([True, True, False])}
    # The header and two flags; `p` has a flag and 8 bytes, `q` a flag and 20.
    least = HEADER + 2
    assert nbytes(message, same=same, lead=1).tolist() == [least, least + 9, least + 21]
    assert values_bytes(message, same, lead=1).tolist() == [0, 8, 20]


def test_values_are_counted_per_client_of_a_stack() -> None:
    keep = torch.tensor([[True, False, True], [False, False, False]])
    message = {"p": Part({"w": torch.ones(2, 3), "b": keep}, {"w": keep})}
    # Two and no float32, and three bits in a byte each.
    assert values_bytes(message, lead=1).tolist() == [2 * 4 + 1, 1]


@given(st.integers(1, 40))
@quick
def test_bits_are_packed_eight_to_a_byte_at_most(count: int) -> None:
    message = {"p": Part({"b": torch.ones(count, dtype=torch.bool)})}
    assert len(encode(message)) <= HEADER + 1 + 2 + 1 + -(-count // 8)
    assert prod(decode(encode(message), message)["p"].values["b"].tolist()) == 1


def test_a_message_for_others_is_refused() -> None:
    sent = encode(small(), Stamp(3, 7, 99))
    assert decode(sent, small(), Stamp(3, 7, 99)).keys() == small().keys()
    for stamp, named in (
        (Stamp(4, 7, 99), ("round 3, client 7", "round 4 of client 7")),
        (Stamp(3, 8, 99), ("round 3, client 7", "round 3 of client 8")),
        (Stamp(3, 7, 98), ("0000000000000063", "0000000000000062")),
    ):
        with raises("E605", *named):
            decode(sent, small(), stamp)


def test_what_the_receiver_holds_must_not_be_sent_again() -> None:
    message = small()
    with raises("E605", "`bits`"):
        decode(encode(message), message, held=message)
    other = {**message, "params": Part(message["params"].values)}
    assert decode(encode(message, same={"bits": True}), message, held=other).keys() == other.keys()
    values = {**message["params"].values, "w": torch.tensor([[1.5, 9.0], [0.0, 9.0]])}
    # Values that a mask hides are no difference, and another mask is one.
    for keep, again in ((torch.tensor([True, False]), True), (torch.tensor([True, True]), False)):
        held = {**message, "params": Part(values, {"w": keep}, {"w": Axis(1)})}
        data = encode(message, same={"bits": True})
        if again:
            with raises("E605", "`params`"):
                decode(data, message, held=held)
        else:
            assert decode(data, message, held=held)["bits"] is held["bits"]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), max_size=6),
    st.integers(-300, 300),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 99),
)
def test_the_largest_value_is_127_steps(
    drawn: list[float], exponent: int, dtype: torch.dtype, key: int
) -> None:
    """Or there is no step, and all is zero: too small for one, or nothing there."""
    limit = min(torch.finfo(dtype).max, 1e38)
    values = (torch.tensor(drawn, dtype=torch.float64) * 2.0**exponent).clamp(-limit, limit)
    part = Part({"w": values.to(dtype)}).to("int8", key)
    step, sizes = float(part.scale["w"]), values.to(dtype).double().abs()
    if not step:
        assert raw(part.values["w"]) == bytes(len(drawn) * dtype.itemsize)
        assert not len(sizes) or float(sizes.max()) <= 127 * 1.2e-38
    else:
        steps = (part.values["w"].double() / step).round()
        assert float(steps.abs().max()) == 127
        info = torch.finfo(dtype)
        off = (part.values["w"].double().abs() - sizes).abs().max()
        assert float(off) <= step * 1.0001 + max(float(sizes.max()), info.tiny) * info.eps
        message = {"p": part}
        assert_same(decode(encode(message), message), message)
