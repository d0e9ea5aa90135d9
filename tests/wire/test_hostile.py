"""Hostile bytes: refused with a typed error, within the schema's memory; what is read is canonical.

python -m pytest tests/wire/test_hostile.py -m drill    # five million mutations
"""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch

from masquerade.core import tree
from masquerade.core.part import Message, Part
from masquerade.errors import MasqueradeError
from masquerade.wire.bits import width
from tests.fuzzing import Found, over_processes, tried
from tests.reliability import publish
from tests.wire.parts import HEADER, forged
from tests.wire.samples import GOLDEN, SAMPLES, Sample, bits, part, wired

every_sample = pytest.mark.parametrize("name", SAMPLES)


def read_or_none(sample: Sample, data: bytes) -> Message | None:
    """Decode, or return None for a refusal; whatever else is raised is a fault of the codec."""
    try:
        return sample.decode(data)
    except MasqueradeError as error:
        if error.code != "E605":
            raise
        return None


def survives(sample: Sample, data: bytes) -> bool:
    """Tell whether bytes are read; then they have the right form, and are the only ones for it."""
    read = read_or_none(sample, data)
    if read is None:
        return False
    for name, expected in sample.message.items():
        assert read[name].values.keys() == expected.values.keys()
        assert read[name].keep.keys() == expected.keep.keys()
        for tensor, value in expected.values.items():
            found = read[name].values[tensor]
            assert (found.shape, found.dtype) == (value.shape, value.dtype)
    same = dict.fromkeys(sample.same, not data[HEADER])
    assert Sample(sample.message, sample.stamp, sample.session, same).encode(read) == data
    return True


@every_sample
def test_golden_messages_are_what_is_written_and_read(name: str) -> None:
    data, sample = (GOLDEN / f"{name}.bin").read_bytes(), SAMPLES[name]
    assert sample.encode() == data
    assert survives(sample, data)


@every_sample
def test_every_truncation_and_changed_byte_is_refused(name: str) -> None:
    sample = SAMPLES[name]
    data = sample.encode()
    for end in range(len(data)):
        assert read_or_none(sample, data[:end]) is None
        assert read_or_none(sample, forged(data[:end])) is None
    for place in range(len(data)):
        for change in range(1, 256):
            damaged = bytearray(data)
            damaged[place] ^= change
            assert read_or_none(sample, bytes(damaged)) is None


@every_sample
def test_a_changed_byte_under_a_good_checksum_is_refused_or_another_message(name: str) -> None:
    sample = SAMPLES[name]
    data = sample.encode()
    read = 0
    for place in range(len(data)):
        for change in (*(1 << bit for bit in range(8)), 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= change
            read += survives(sample, forged(bytes(damaged)))
    assert read < 9 * len(data)


def mutated(data: bytes, choices: np.random.Generator) -> bytes:
    """Change, cut, double or drop some bytes; every second time with a checksum that fits."""
    new = bytearray(data)
    kind, times, *places = choices.integers(0, 1 << 30, 8).tolist()
    for place in places[: 1 + times % 3]:
        at = HEADER + place % max(1, len(new) - HEADER) if place % 5 else place % len(new)
        match (kind >> 2) % 6:
            case 0 | 1 | 2 if at < len(new):
                new[at] = place >> 8 & 0xFF
            case 3:
                del new[at : at + place % 7]
            case 4:
                new[at:at] = new[at : at + place % 7] or b"\0"
            case _:
                new += bytes(place % 3)
        if not new:
            break
    return forged(bytes(new)) if kind % 2 else bytes(new)


def mutations(seed: int, count: int = 50_000) -> Found:
    """Read so many mutations; tell how many were read and how many refused."""
    choices = np.random.default_rng(seed)
    samples = [(sample, sample.encode()) for sample in SAMPLES.values()]

    def reading(number: int) -> Callable[[], str]:
        sample, data = samples[number % len(samples)]
        given = mutated(data, choices)
        return lambda: "read" if survives(sample, given) else "refused"

    return tried(reading(number) for number in range(count))


@pytest.mark.parametrize("seed", range(8))
def test_mutations_are_refused_or_canonical(seed: int) -> None:
    """Two hundred thousand of them in all; the drill has five million."""
    found, _ = mutations(seed, 25_000)
    assert found["refused"] > found["read"] > 1000
    assert found.total() == 25_000


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_five_million_mutations_are_refused_or_canonical() -> None:
    found, longest = over_processes("messages", mutations, range(8, 108))
    command = "pytest tests/wire/test_hostile.py -m drill"
    figures = {"messages": found.total(), **found, "slowest, s of CPU": round(longest, 3)}
    publish("messages", command, figures)
    assert found.total() == 5_000_000
    assert found["refused"] > found["read"] > 10_000


def peak(sample: Sample, data: bytes) -> int:
    """Bytes that reading took at most."""
    read_or_none(sample, data)
    tracemalloc.start()
    try:
        read_or_none(sample, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_claim_makes_the_reader_allocate_more_than_the_schema() -> None:
    """Counts of all sizes, in front of bytes that are not there or make no sense."""
    entries = 100_000
    sample = Sample({"p": part(bits(entries, 30_000)), "q": Part({"w": bits(entries, 30_000)})})
    schema = 4 * entries + entries + entries
    data = sample.encode()
    honest = peak(sample, data)
    assert honest <= 3 * schema
    rest = data[HEADER + 2 + width(entries) :]
    for ones in (0, 1, 9, 1000, 50_000, 99_999, entries, entries + 1, (1 << 24) - 1):
        for flags in (b"\x01\x01", b"\x01\x02", b"\x01\x03", b"\x01\x00"):
            for tail in (b"", b"\0" * 64, rest, b"\xff" * len(rest)):
                claim = data[:HEADER] + flags + ones.to_bytes(width(entries), "little") + tail
                assert peak(sample, forged(claim)) <= 3 * schema
    # A few bytes cannot make it take what a mask would, let alone its values.
    assert peak(sample, forged(data[: HEADER + 5])) < 50_000


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_of_nans_that_are_rounded_there_is_one(wire: str) -> None:
    given = torch.tensor([torch.nan, -torch.nan, 1.0])
    given.view(torch.int32)[1] |= 0x1234
    sample = Sample(wired(wire, Part({"w": given})))
    data = sample.encode()
    assert data[-6:-4] == data[-4:-2]
    assert survives(sample, data)


def test_reading_makes_no_sparse_tensors() -> None:
    for sample in SAMPLES.values():
        read = sample.decode(sample.encode())
        assert all(value.layout is torch.strided for value in tree.leaves(read))
