"""Write the hostile messages of this folder, and the table of what each is to be refused with.

    python -m attacks.make

Each is one of the messages of `tests/wire/samples.py` after something was done to it. All but those
that are named `torn` or `flipped` have a checksum that fits: what they hide lies behind it.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path

from masquerade.wire import encode
from tests.wire.parts import HEADER, forged
from tests.wire.samples import SAMPLES

HERE = Path(__file__).parent
Change = Callable[[bytearray], object]
ROUND, CLIENT, BASE, PARTS = 4, 8, 12, 3
"""Places in the header."""


def put(place: int, new: bytes) -> Change:
    """Write other bytes over those at a place, which is counted from the end if negative."""

    def change(data: bytearray) -> None:
        at = place % len(data)
        data[at : at + len(new)] = new

    return change


def after(count: int) -> Change:
    """Write so many zeros after the end."""
    return lambda data: data.extend(bytes(count))


def cut(count: int) -> Change:
    """Take so many bytes off the end."""

    def change(data: bytearray) -> None:
        del data[-count:]

    return change


BODY = HEADER + 1
"""The first tensor's first byte, after the flag of a part."""

CHANGES: dict[str, tuple[str, Change, str]] = {
    "round-of-the-past": ("stamped", put(ROUND, b"\x0b"), "message of round 11"),
    "round-of-the-future": ("stamped", put(ROUND, b"\xff\xff\xff\xff"), "of round 4294967295"),
    "another-client": ("stamped", put(CLIENT, b"\x08"), "client 8; expected round 12 of client 7"),
    "another-base": ("stamped", put(BASE, b"\0"), "builds on"),
    "another-magic": ("floats", put(0, b"PK"), "not a message of this run"),
    "version-of-the-past": ("floats", put(2, b"\x01"), "not a message of this run"),
    "version-of-the-future": ("floats", put(2, b"\x03"), "not a message of this run"),
    "no-parts": ("floats", put(PARTS, b"\0"), "not a message of this run"),
    "parts-without-end": ("floats", put(PARTS, b"\xff"), "not a message of this run"),
    "nothing-after-the-header": ("floats", cut(27), "too early"),
    "values-cut-off": ("floats", cut(1), "too early"),
    "half-a-double": ("doubles", cut(4), "too early"),
    "byte-after-the-end": ("floats", after(1), "1 bytes after the end"),
    "kilobytes-after-the-end": ("listed", after(4096), "4096 bytes after the end"),
    "part-flag-of-2": ("floats", put(HEADER, b"\x02"), "flag 2"),
    "mask-flag-of-4": ("floats", put(BODY, b"\x04"), "flag 4"),
    "bits-flag-of-0": ("bits", put(BODY + 1, b"\0"), "flag 0"),
    "bits-flag-of-255": ("bits", put(BODY + 1, b"\xff"), "flag 255"),
    "a-part-nobody-holds": ("floats", put(HEADER, b"\0"), "refers to a version not held"),
    "a-mask-nobody-holds": ("packed", put(BODY, b"\x02"), "refer to others that are not held"),
    "bits-nobody-holds": ("bits", put(BODY + 1, b"\x03"), "refer to others that are not held"),
    "a-mask-nobody-has": ("floats", put(BODY, b"\x01\x02\x03"), "flag 1"),
    "a-mask-left-out": ("packed", put(BODY, b"\0"), "flag 0"),
    "nan-of-16-bits-that-nobody-writes": ("float16", put(-2, b"\x01\x7e"), "no encoder writes"),
    "nan-below-zero": ("bfloat16", put(-2, b"\xc0\xff"), "no encoder writes"),
    "nan-that-signals": ("float16", put(-2, b"\x01\x7c"), "no encoder writes"),
    "more-ones-than-bits": ("packed", put(BODY + 1, b"\x19"), "25 ones declared among 24 bits"),
    "ones-without-end": ("coded", put(BODY + 1, b"\xff\xff"), "65535 ones declared among 300"),
    "a-one-too-many": ("packed", put(BODY + 1, b"\x0d"), "12 ones among 24 bits, not 13"),
    "a-one-too-few": ("packed", put(BODY + 1, b"\x0b"), "12 ones among 24 bits, not 11"),
    "all-ones-declared": ("coded", put(BODY + 1, b"\x2c\x01"), "bits"),
    "no-ones-declared": ("packed", put(BODY + 1, b"\0"), "bytes after the end"),
    "coded-zeros": ("coded", put(BODY + 3, bytes(28)), "0 ones among 300 bits, not 40"),
    "coded-noise": ("coded", put(BODY + 3, b"\xa5" * 28), "leave something over"),
    "coded-padding-used": ("coded", put(BODY + 3 + 27, b"\x80"), "leave something over"),
    "indices-that-descend": ("listed", lambda d: _swap(d, BODY + 3), "do not ascend"),
    "indices-that-repeat": ("listed", lambda d: _repeat(d, BODY + 3), "do not ascend"),
    "index-beyond-the-end": ("listed", put(BODY + 5, b"\x2c\x01"), "do not ascend below 300"),
    "index-of-65535": ("listed", put(BODY + 5, b"\xff\xff"), "do not ascend below 300"),
    "all-rows": ("rows", put(BODY + 2, b"\x07"), "3 ones among 3 bits, not 2"),
    "a-row-too-many": ("rows", put(BODY + 1, b"\x03\x07"), "too early"),
    "a-row-beyond": ("rows", put(BODY + 2, b"\x0c"), "fill the last byte are not zero"),
    "a-larger-block": ("blocks", put(BODY + 2, b"\x04"), "too early"),
    "step-not-a-number": ("int8", put(BODY + 1, struct.pack("<f", float("nan"))), "a step of nan"),
    "step-infinite": ("int8", put(BODY + 1, struct.pack("<f", float("inf"))), "a step of inf"),
    "step-negative": ("int8", put(BODY + 1, struct.pack("<f", -1.0)), "a step of -1.0"),
    "step-negative-zero": ("int8", put(BODY + 1, struct.pack("<f", -0.0)), "a step of -0.0"),
    "step-too-large": ("int8", put(BODY + 1, struct.pack("<f", 3e38)), "a step of"),
    "step-zero-and-values": ("int8", put(BODY + 1, bytes(4)), "steps that no encoder takes"),
    "step-too-fine": ("int8", put(BODY + 1, struct.pack("<f", 1e-40)), "a step of 9.99"),
    "step-doubled": ("int8", lambda d: _double(d, BODY + 1), "steps that no encoder takes"),
    "step-and-nothing": ("int8", lambda d: _zero(d, BODY + 5), "steps that no encoder takes"),
    "a-step-of-minus-128": ("int8", put(BODY + 5, b"\x80"), "steps that no encoder takes"),
}
TORN: dict[str, tuple[str, Change, str]] = {
    "torn-to-nothing": ("floats", bytearray.clear, "0 bytes are less than a header"),
    "torn-in-the-header": ("floats", cut(40), "less than a header"),
    "torn-in-the-values": ("coded", cut(50), "checksum differs"),
    "flipped-bit": ("coded", lambda d: put(60, bytes([d[60] ^ 1]))(d), "checksum differs"),
    "flipped-checksum": ("coded", lambda d: put(20, bytes([d[20] ^ 1]))(d), "checksum differs"),
}


def _swap(data: bytearray, place: int) -> None:
    data[place : place + 4] = data[place + 2 : place + 4] + data[place : place + 2]


def _repeat(data: bytearray, place: int) -> None:
    data[place : place + 2] = data[place + 2 : place + 4]


def _double(data: bytearray, place: int) -> None:
    """Say values by steps twice as long, each of them half as often: the largest is 63 steps."""
    (step,) = struct.unpack_from("<f", data, place)
    struct.pack_into("<f", data, place, 2 * step)
    count = len(data) - place - 4
    steps = struct.unpack_from(f"{count}b", data, place + 4)
    struct.pack_into(f"{count}b", data, place + 4, *(int(each / 2) for each in steps))


def _zero(data: bytearray, place: int) -> None:
    data[place:] = bytes(len(data) - place)


REPLAYED = {
    # Bytes that are right in themselves, and wrong for what the receiver holds.
    "mask-sent-whole-again": ("changed-download", "not in their shortest form"),
    "part-sent-though-held": ("unchanged", "was sent again"),
}


def attacks() -> dict[str, tuple[str, bytes, str]]:
    """Return of every attack whose receiver it is for, its bytes, and what it is refused with."""
    found = {}
    for name, (receiver, change, text) in (CHANGES | TORN).items():
        data = bytearray(SAMPLES[receiver].encode())
        change(data)
        found[name] = (receiver, bytes(data) if name in TORN else forged(bytes(data)), text)
    for name, (receiver, text) in REPLAYED.items():
        found[name] = (receiver, encode(SAMPLES[receiver].message), text)
    return found


def main() -> None:
    """Write the files and the table."""
    table = {}
    for name, (receiver, data, text) in sorted(attacks().items()):
        (HERE / f"{name}.bin").write_bytes(data)
        table[name] = {"receiver": receiver, "says": text}
    (HERE / "attacks.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
