"""Messages as bytes: what is decoded is what was meant, and damage is always noticed."""

import struct
import zlib
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Axis, Blocks, Entry, Grain, Message, Part
from masquerade.errors import MasqueradeError
from masquerade.wire import decode, digest, encode, nbytes, values_bytes

quick = settings(deadline=None, max_examples=50)
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
HEADER = 8
"""Bytes before the first part."""


def bits_of(draw: st.DrawFn, count: int) -> Tensor:
    return torch.tensor([draw(st.booleans()) for _ in range(count)], dtype=torch.bool)


def numbers_of(draw: st.DrawFn, count: int, dtype: torch.dtype) -> Tensor:
    """Any bits at all, not numbers only: payloads of NaNs and negative zeros travel as they are."""
    if dtype is torch.bool:
        return bits_of(draw, count)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = draw(st.binary(min_size=count * size, max_size=count * size))
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)


def grain_of(draw: st.DrawFn, shape: torch.Size) -> Grain:
    cut = draw(st.integers(0, shape.numel()))
    grains: list[Grain] = [Entry(), Blocks((cut, shape.numel() - cut))]
    grains += [Axis(index) for index in range(len(shape))]
    return draw(st.sampled_from(grains))


@st.composite
def parts(draw: st.DrawFn, axes: int = 0) -> Part:
    values, keep, grains = {}, {}, {}
    for place in range(draw(st.integers(1, 3))):
        name = f"tensor{place}"
        shape = torch.Size(draw(st.lists(st.integers(0, 4), min_size=axes, max_size=3)))
        dtype = draw(st.sampled_from(TYPES))
        values[name] = numbers_of(draw, shape.numel(), dtype).reshape(shape)
        if draw(st.booleans()):
            grains[name] = grain_of(draw, shape)
            bits = grains[name].bits(shape)
            keep[name] = bits_of(draw, bits.numel()).reshape(bits)
    return Part(values, keep, grains)


names = st.sampled_from(["params", "shared", "gate"])
messages = st.dictionaries(names, parts(), max_size=2)


def raw(value: Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def meant(part: Part, name: str) -> Tensor:
    """The values of a tensor, with zeros where they are not meant."""
    value, held = part.values[name], part.held(name)
    return value if held is None else torch.where(held, value, torch.zeros_like(value))


def assert_same(found: Message, expected: Message) -> None:
    """Bit for bit, types and shapes too."""
    assert found.keys() == expected.keys()
    for part_name, part in expected.items():
        other = found[part_name]
        assert other.values.keys() == part.values.keys()
        assert other.keep.keys() == part.keep.keys()
        for name, value in part.values.items():
            assert other.values[name].shape == value.shape
            assert other.values[name].dtype is value.dtype
            assert raw(other.values[name]) == raw(meant(part, name))
        assert all(torch.equal(other.keep[name], part.keep[name]) for name in part.keep)


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
    assert int(nbytes(message, same)) == len(encode(message, same))
    assert len(encode(message, same)) == (HEADER + len(message) if message else 0)
    assert int(values_bytes(message, same)) == 0
    assert encode(message, dict.fromkeys(message, False)) == encode(message)


@given(messages)
@quick
def test_each_part_is_sent_or_not_for_itself(message: Message) -> None:
    for name, part in message.items():
        whole = len(encode({name: part})) - HEADER - 1
        assert len(encode(message, {name: True})) == len(encode(message)) - whole
        assert int(nbytes(message, {name: True})) == len(encode(message)) - whole
        others = {other: rest for other, rest in message.items() if other != name}
        assert int(values_bytes(message, {name: True})) == int(values_bytes(others))


@given(st.dictionaries(names, parts(axes=1), max_size=2))
@quick
def test_a_stacked_message_costs_what_its_messages_cost(message: Message) -> None:
    flipped = tree.transform(lambda v: ~v if v.dtype is torch.bool else v, message)
    counted = nbytes(tree.stack([message, flipped]), lead=1).expand(2)
    assert counted.tolist() == [len(encode(message)), len(encode(flipped))]


@given(parts(axes=1))
@quick
def test_a_stacked_part_has_the_digests_of_its_parts(part: Part) -> None:
    flipped = tree.transform(lambda v: ~v if v.dtype is torch.bool else v, part)
    found = digest(tree.stack([part, flipped]), lead=1)
    assert found.tolist() == [int(digest(part)), int(digest(flipped))]


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
    read = decode(encode(message, dict.fromkeys(message, True)), message, message)
    assert all(read[name] is part for name, part in message.items())


def test_the_layout_by_hand() -> None:
    part = Part(
        {"w": torch.tensor([1.0, 2.0, -0.5]), "bits": torch.tensor([True, False, True])},
        {"w": torch.tensor([True, False, True])},
    )
    # Part new (1); `w` masked (1), bits 0 and 2 make the byte 5, two float32; `bits` whole (0), 5.
    body = b"\x01" + b"\x01\x05" + struct.pack("<2f", 1.0, -0.5) + b"\x00\x05"
    expected = b"MQ\x01\x01" + struct.pack("<I", zlib.crc32(body)) + body
    assert encode({"p": part}) == expected
    assert int(nbytes({"p": part})) == len(expected) == HEADER + 13
    # As papers count: two values of four bytes, and three bits in a byte.
    assert int(values_bytes({"p": part})) == 8 + 1


@pytest.mark.parametrize("dtype", TYPES)
def test_a_mask_that_keeps_nothing_costs_the_mask(dtype: torch.dtype) -> None:
    keep = torch.zeros(3, 4, dtype=torch.bool)
    message = {"p": Part({"w": torch.ones(3, 4, dtype=dtype)}, {"w": keep})}
    data = encode(message)
    # Flag of the part, flag of the tensor, twelve bits in two bytes, no value.
    assert len(data) == HEADER + 1 + 1 + 2
    assert not decode(data, message)["p"].values["w"].any()
    assert int(values_bytes(message)) == 0


def test_a_grain_costs_a_bit_and_not_a_bit_per_entry() -> None:
    keep = torch.tensor([True, False, False, True])
    rows = Part({"w": torch.ones(4, 100)}, {"w": keep}, {"w": Axis(0)})
    assert len(encode({"p": rows})) == HEADER + 1 + 1 + 1 + 2 * 100 * 4


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
        with pytest.raises(MasqueradeError, match="E605"):
            decode(data[:length], small())
        with pytest.raises(MasqueradeError, match="E605"):
            decode(forged(data[:length]), small())


def test_every_changed_byte_is_refused() -> None:
    data = encode(small())
    for place in range(len(data)):
        for change in range(1, 256):
            damaged = bytearray(data)
            damaged[place] ^= change
            with pytest.raises(MasqueradeError, match="E605"):
                decode(bytes(damaged), small())


def forged(data: bytes) -> bytes:
    """The same with a checksum that fits, so that what lies behind it is tested too."""
    if len(data) < HEADER:
        return data
    return data[:4] + struct.pack("<I", zlib.crc32(data[HEADER:])) + data[HEADER:]


def read_or_none(data: bytes) -> Message | None:
    """Decode, or return None for a refusal; whatever else is raised is a fault of the codec."""
    try:
        return decode(data, small(), small())
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
    for data in (noise, b"MQ\x01\x02" + noise, forged(b"MQ\x01\x02\0\0\0\0" + noise)):
        read_or_none(data)


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(MasqueradeError, match="E605 1 bytes after the end"):
        decode(forged(encode(small()) + b"\0"), small())


def test_padding_bits_must_be_zero() -> None:
    message = {"p": Part({"b": torch.tensor([True, False, True])})}
    data = bytearray(encode(message))
    data[-1] |= 0b1000
    with pytest.raises(MasqueradeError, match="E605 padding"):
        decode(forged(bytes(data)), message)


@pytest.mark.parametrize("place", [HEADER, HEADER + 1])
def test_a_flag_is_zero_or_one(place: int) -> None:
    message = {"p": Part({"w": torch.tensor([1.0])})}
    data = bytearray(encode(message))
    data[place] = 2
    with pytest.raises(MasqueradeError, match=f"E605 flag 2 at byte {place}"):
        decode(forged(bytes(data)), message, message)


def test_a_reference_to_what_is_not_held_is_refused() -> None:
    message = small()
    data = encode(message, dict.fromkeys(message, True))
    for held, missing in ((None, "bits"), ({}, "bits"), ({"bits": message["bits"]}, "params")):
        with pytest.raises(MasqueradeError, match=f"`{missing}` refers to a version not held"):
            decode(data, message, held)


def test_a_message_of_another_run_is_refused() -> None:
    with pytest.raises(MasqueradeError, match="E605"):
        decode(encode({"p": Part({"w": torch.ones(3)})}), {"p": Part({"w": torch.ones(4)})})
    with pytest.raises(MasqueradeError, match="not a message of this run"):
        decode(encode({"p": Part({"w": torch.ones(3)})}), small())


def test_decoded_values_may_be_written() -> None:
    message = small()
    read = decode(encode(message), message)
    read["params"].values["w"].add_(1)
    read["params"].values["n"].add_(1)
    assert encode(small()) == encode(message)


def test_a_digest_reads_what_is_meant_and_nothing_else() -> None:
    keep = {"w": torch.tensor([True, False])}
    one = digest(Part({"w": torch.tensor([1.0, 2.0])}, keep))
    assert one == digest(Part({"w": torch.tensor([1.0, float("nan")])}, keep))
    assert one != digest(Part({"w": torch.tensor([1.5, 2.0])}, keep))
    # The same numbers under another mask are another version.
    assert one != digest(Part({"w": torch.tensor([1.0, 0.0])}))
    assert one != digest(Part({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([True, True])}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64])
def test_swapped_or_negated_values_have_another_digest(dtype: torch.dtype) -> None:
    base = torch.tensor([1, 2, 3, 4], dtype=dtype)

    def made(*values: int) -> Tensor:
        return digest(Part({"w": torch.tensor(values, dtype=dtype)}))

    original = digest(Part({"w": base}))
    for values in ((2, 1, 3, 4), (1, 2, 4, 3), (-1, 2, 3, 4), (-1, -2, 3, 4), (-1, -2, -3, -4)):
        assert made(*values) != original, values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bool])
def test_thousands_of_versions_have_as_many_digests(dtype: torch.dtype) -> None:
    """Round numbers have few bits that differ; these too must be told apart."""
    versions = torch.stack([torch.arange(4096) >> bit & 1 for bit in range(12)], dim=1).to(dtype)
    found = digest(Part({"w": versions}), lead=1)
    assert len(set(found.tolist())) == 4096


def test_clients_of_a_stack_may_hold_different_versions() -> None:
    message = {"p": Part({"w": torch.ones(3, 2)}), "q": Part({"w": torch.ones(3, 5)})}
    same = {"p": torch.tensor([True, False, True]), "q": torch.tensor([True, True, False])}
    # The header and two flags; `p` has a flag and 8 bytes, `q` a flag and 20.
    least = HEADER + 2
    assert nbytes(message, same, lead=1).tolist() == [least, least + 9, least + 21]
    assert values_bytes(message, same, lead=1).tolist() == [0, 8, 20]


def test_values_are_counted_per_client_of_a_stack() -> None:
    keep = torch.tensor([[True, False, True], [False, False, False]])
    message = {"p": Part({"w": torch.ones(2, 3), "b": keep}, {"w": keep})}
    # Two and no float32, and three bits in a byte each.
    assert values_bytes(message, lead=1).tolist() == [2 * 4 + 1, 1]


@given(st.integers(1, 40))
@quick
def test_bits_are_packed_eight_to_a_byte(count: int) -> None:
    message = {"p": Part({"b": torch.ones(count, dtype=torch.bool)})}
    assert len(encode(message)) == HEADER + 1 + 1 + -(-count // 8)
    assert prod(decode(encode(message), message)["p"].values["b"].tolist()) == 1
