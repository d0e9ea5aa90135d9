"""A row's result as a file: the summary, the settings, and the machine that made it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from masquerade.reproduce import raw
from masquerade.results import Summary
from masquerade.results.json_records import Json, from_json, to_json

DIGITS = 10
"""Significant digits of measured numbers in a file."""


@dataclass(frozen=True)
class Circumstances:
    """When, with what and on what a training was done."""

    date: str
    masquerade: str
    python: str
    torch: str
    numpy: str
    device: str
    compute: Mapping[str, Json]
    at_a_time: int
    """How many trainings were done at a time."""
    wall_seconds: float


@dataclass(frozen=True)
class RowRecord:
    """The result of one run of one row."""

    table: str
    row: str
    made: Circumstances
    result: Summary
    settings: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """Return the record as JSON; the summary has its schema, and clients lie beside it."""
        found = to_json(self)
        assert isinstance(found, dict)
        return {**found, "result": _shorter(raw.without(self.result).to_json())}

    def text(self) -> str:
        """Return the text of its file: a line for everything that is said, so that it is short."""
        lines = []
        for name, found in self.to_json().items():
            inner = found if isinstance(found, dict) else {}
            parts = [f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in inner.items()]
            value = "{\n" + ",\n".join(parts) + "\n }" if parts else json.dumps(found)
            lines.append(f" {json.dumps(name)}: {value}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Read a record; what does not fit raises ValueError, a wrong summary E401."""
        if not isinstance(data, dict) or not isinstance(data.get("settings"), dict):
            raise ValueError("it has no settings")
        settings = data["settings"]
        assert isinstance(settings, dict)
        return cls(
            table=str(data.get("table")),
            row=str(data.get("row")),
            made=from_json(Circumstances, data.get("made")),
            result=Summary.from_json(data.get("result")),
            settings=settings,
        )


def _shorter(value: Json) -> Json:
    """Round all numbers of a result."""
    if isinstance(value, dict):
        return {key: _shorter(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shorter(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
