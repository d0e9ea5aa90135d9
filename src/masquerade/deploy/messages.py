"""What the server and a client say to each other, as bytes that any carrier can take.

    message = "MQF", version, CRC-32 of the rest, length of the head, head, body
    head    = JSON of a `Question` or an `Answer`, without the body

What a body holds depends on the kind of question. Of rounds it is a message of `wire`, with a
header of its own; else it is JSON.
"""

import json
import struct
import zlib
from dataclasses import dataclass, replace
from typing import TypeVar

from masquerade.errors import MasqueradeError
from masquerade.results.json_records import from_json, parsed, to_json

_HEAD = struct.Struct("<3sBII")
_MAGIC, _VERSION = b"MQF", 1
LONGEST = 1 << 20
"""Bytes that a head may have."""

HELLO, SUMS, SETTLE = "hello", "sums", "settle"
"""What is asked before training: facts of the data, sums of samples; what was agreed is told."""
REFUSED = "refused"
"""Tells a client why it cannot take part."""
WORK = ("setup", "train", "adapt")
"""What is asked in rounds."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the server asks of a client."""

    run: str
    client: str
    """The client's name."""
    nonce: str
    """Names this very question: an answer has to repeat it."""
    kind: str
    order: tuple[int, int] = (0, 0)
    """The start of the server, and the question's number in it: later ones are larger."""
    body: bytes = b""
    id: int = 0
    """The client's number; that and what follows are of rounds."""
    number: int = 0
    base: int = 0
    view: str = ""
    novel: bool = False
    final: bool = False

    @property
    def is_possible(self) -> bool:
        """Tell whether its numbers can be of a client, a round and a session."""
        return 0 <= self.id < 1 << 32 and 0 <= self.number < 1 << 32 and 0 <= self.base < 1 << 64


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client answers."""

    run: str
    client: str
    nonce: str
    body: bytes = b""
    code: str = ""
    """Why it did not do what it was asked; empty where it did."""
    text: str = ""
    flops: tuple[tuple[float, ...], ...] = ()
    """Operations that it took: the columns of `Flops`, by layer."""


Said = TypeVar("Said", Question, Answer)


def write(said: Question | Answer) -> bytes:
    """Write a question or an answer."""
    facts = {name: value for name, value in vars(said).items() if name != "body"}
    head = json.dumps(to_json(facts)).encode()
    rest = head + said.body
    return _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(rest), len(head)) + rest


def read(cls: type[Said], data: bytes) -> Said:
    """Read a question or an answer; E610 says what is wrong with other bytes."""
    if len(data) < _HEAD.size:
        raise MasqueradeError("E610", f"{len(data)} bytes are less than a header")
    magic, version, check, size = _HEAD.unpack(data[: _HEAD.size])
    if (magic, version) != (_MAGIC, _VERSION):
        raise MasqueradeError("E610", f"no message of a federation: it begins {data[:4]!r}")
    rest = data[_HEAD.size :]
    if zlib.crc32(rest) != check:
        raise MasqueradeError("E610", "the message is damaged: its checksum differs")
    if not size <= min(LONGEST, len(rest)):
        raise MasqueradeError("E610", f"a head of {size} bytes in a message of {len(data)}")
    try:
        said = from_json(cls, parsed(rest[:size], LONGEST))
    except ValueError as error:
        raise MasqueradeError("E610", f"the head of a message cannot be read: {error}") from None
    if isinstance(said, Question) and not said.is_possible:
        raise MasqueradeError("E610", "a question with numbers that no server has")
    return replace(said, body=rest[size:])
