"""Frozen records as JSON and back: field by field, by the types that the fields have.

JSON has no numbers that are not finite: they are written as null, and a null that stands for a
number is read as NaN. Fields that have their default are left out.
"""

import dataclasses
import json
import math
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from masquerade.errors import is_deeper

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""What JSON can hold."""

Record = TypeVar("Record")

LONGEST = 64 << 20
"""Bytes of JSON that are read at most: values take up to thirty times as many."""
DEEPEST = 32
"""Lists and objects within one another, at most."""
LARGEST = int(sys.float_info.max)


def parsed(data: bytes | str, most: int = LONGEST) -> Any:
    """Read JSON of bounded length and nesting; all else raises ValueError."""
    if len(data) > most:
        raise ValueError(f"it has {len(data)} bytes, and {most} are read")
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if is_deeper(found, DEEPEST):
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    return found


def to_json(value: object) -> Json:
    """Return a record, and all records in it, as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: to_json(found)
            for each in dataclasses.fields(value)
            if not _is_default(each, found := getattr(value, each.name))
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"{type(value).__name__} is nothing that JSON can hold")


def from_json(cls: type[Record], data: Json) -> Record:
    """Make a record of JSON; what does not fit raises ValueError and says where."""
    made: Record = _read(cls, data, cls.__name__)
    return made


def _is_default(field: "dataclasses.Field[Any]", value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return field.default is not dataclasses.MISSING and value == field.default


@cache
def _types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(kind: Any, data: Json, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_record(kind, data, where)
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        rest = [each for each in inside if each is not types.NoneType]
        # A union of several types is Json itself.
        return data if data is None or len(rest) > 1 else _read(rest[0], data, where)
    if origin is tuple:
        found = _expect(list, data, where)
        return tuple(_read(inside[0], one, f"{where}[{at}]") for at, one in enumerate(found))
    if origin is not None:  # Mapping[str, T]
        held = _expect(dict, data, where)
        return {key: _read(inside[1], one, f"{where}.{key}") for key, one in held.items()}
    if kind is float:
        number = math.nan if data is None else _expect((int, float), data, where)
        if isinstance(number, int) and abs(number) > LARGEST:
            raise ValueError(f"{where} is no number that a float can be")
        return float(number)
    return _expect(kind, data, where)


def _read_record(cls: Any, data: Json, where: str) -> Any:
    given = _expect(dict, data, where)
    known = {each.name: each for each in dataclasses.fields(cls)}
    missing = [
        name
        for name, each in known.items()
        if name not in given
        and each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    ]
    for words, names in (("unknown", given.keys() - known.keys()), ("missing", missing)):
        if names:
            raise ValueError(f"{where}: {words} {', '.join(sorted(names))}")
    kinds = _types(cls)
    return cls(**{name: _read(kinds[name], one, f"{where}.{name}") for name, one in given.items()})


def _expect(kind: Any, data: Json, where: str) -> Any:
    # True is an int to Python, and not to us.
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"{where} is {str(data)[:40]!r}")
    return data
