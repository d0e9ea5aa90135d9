"""A client's model as a file: its tensors by PART/FIELD/TENSOR, and beside them what is no tensor.

A mask means nothing without its grain: one bool may stand for an entry, a block or a row.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from masquerade.core import tree
from masquerade.core.part import Axis, Blocks, Entry, Grain, Message, Part
from masquerade.errors import MasqueradeError
from masquerade.results.json_records import Json, from_json, parsed
from masquerade.storage import sealed
from masquerade.storage.run_directory import decode_tensors, encode_tensors

INITIAL = "initial.safetensors"
"""The file of the initial weights of a program's network, in the form of a model."""
FACTS = "message"
"""The name under which a file says what its tensors are parts of."""


def client_file(id: int, view: str, clients: int) -> str:
    """Name the file of a client's model in a run directory."""
    return f"clients/{id:0{len(str(clients - 1))}d}-{view}.safetensors"


def encode(message: Message, whose: str = "") -> bytes:
    """Return a model as the bytes of its file; one that stands alone is sealed as somebody's."""
    facts = {
        part: {"dtype": held.dtype, "grain": {t: _stated(g) for t, g in held.grain.items()}}
        for part, held in message.items()
    }
    tensors, told = tree.named(message), {FACTS: json.dumps(facts)}
    return sealed.encode(tensors, whose, told) if whose else encode_tensors(tensors, told)


def decode(data: bytes, name: str) -> Message:
    """Read a model from the bytes of the file `name`; E401 says that they hold none."""
    tensors = decode_tensors(data, name)
    try:
        facts = from_json(_Facts, {"parts": parsed(_metadata(data).get(FACTS, "{}"))})
        # A part may have no tensors.
        found: dict[str, dict[str, Any]] = {part: {"values": {}} for part in facts.parts}
        for part, fact in facts.parts.items():
            grain = {tensor: _grain(*stated) for tensor, stated in fact.grain.items()}
            found[part] |= {"dtype": fact.dtype, "grain": grain}
        for path, value in tensors.items():
            part, field, tensor = path.split("/", 2)
            found.setdefault(part, {"values": {}}).setdefault(field, {})[tensor] = value
        return {part: Part(**fields) for part, fields in found.items()}
    except (ValueError, TypeError) as fault:
        text = f"{name} is damaged ({fault}); it is no model. {sealed.NO_OTHER}"
        raise MasqueradeError("E401", text) from None


@dataclass(frozen=True)
class _PartFacts:
    """What is no tensor of a part."""

    dtype: str
    grain: Mapping[str, tuple[Json, ...]]


@dataclass(frozen=True)
class _Facts:
    """What is no tensor of a model, by part."""

    parts: Mapping[str, _PartFacts]


def _metadata(data: bytes) -> dict[str, str]:
    """Return the texts beside the tensors of a safetensors file that is intact."""
    size = int.from_bytes(data[:8], "little")
    found: dict[str, str] = parsed(data[8 : 8 + size]).get("__metadata__", {})
    return found


def _stated(grain: Grain) -> list[Any]:
    match grain:
        case Blocks(sizes):
            return ["blocks", *sizes]
        case Axis(index):
            return ["axis", index]
    return ["entry"]


def _grain(kind: Json, *numbers: Json) -> Grain:
    whole = tuple(each for each in numbers if type(each) is int)
    if kind not in ("blocks", "axis", "entry") or len(whole) < len(numbers):
        raise ValueError(f"a mask of {kind}")
    if kind == "blocks":
        return Blocks(whole)
    return Axis(*whole) if kind == "axis" else Entry()
