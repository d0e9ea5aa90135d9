"""Files that stand alone, each sealed with its own hash: records, and tensors.

The hash covers whose the file is, too: an intact file of another client is as wrong as a torn one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from masquerade.errors import MasqueradeError
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.storage import atomic
from masquerade.storage.manifest import seal, unseal
from masquerade.storage.run_directory import encode_tensors

Record = TypeVar("Record")

NO_OTHER = "Put an intact copy of it there: no other can be made."
"""What to do about damage of what nothing makes again."""
_SEAL = "sha256"
"""The text of a safetensors file that has its hash, reckoned with zeros in its place."""
_ZEROS = b"0" * 64


def write_record(path: Path, whose: str, record: object) -> None:
    """Write a record as JSON."""
    atomic.write_file(path, seal({"whose": whose, "record": to_json(record)}))


def read_record(cls: type[Record], path: Path, whose: str, then: str) -> Record:
    """Read a record; E401 says that it is damaged, and what to do `then`."""
    found = unseal(path.read_bytes())
    if not isinstance(found, dict) or found.get("whose") != whose:
        raise _damaged(path.name, then)
    try:
        return from_json(cls, found.get("record"))
    except ValueError as fault:
        raise _damaged(path.name, then, str(fault)) from None


def encode(tensors: Mapping[str, Tensor], whose: str, facts: Mapping[str, str] = {}) -> bytes:
    """Return tensors, and texts beside them, as the bytes of a safetensors file."""
    data = encode_tensors(tensors, {**facts, _SEAL: _ZEROS.decode()})
    return data.replace(_ZEROS, _digest(data, whose), 1)


def checked(data: bytes, whose: str, name: str, then: str) -> bytes:
    """Return the bytes of the safetensors file `name`, if none differs; E401 as for records."""
    try:
        head = parsed(data[8 : 8 + int.from_bytes(data[:8], "little")])
        found = head["__metadata__"][_SEAL].encode("ascii")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _damaged(name, then) from None
    if _digest(data.replace(found, _ZEROS, 1), whose) != found:
        raise _damaged(name, then)
    return data


def _digest(data: bytes, whose: str) -> bytes:
    return hashlib.sha256(whose.encode() + b"\0" + data).hexdigest().encode()


def _damaged(name: str, then: str, why: str = "its hash differs") -> MasqueradeError:
    return MasqueradeError("E401", f"{name} is damaged ({why}); it is not used. {then}")
