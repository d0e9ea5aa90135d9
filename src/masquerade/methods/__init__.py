"""The methods: one paper, one file, which has its class and its entries of the table."""

from typing import Any

from masquerade.errors import nearest
from masquerade.methods.registry import MethodEntry, MethodRegistry, find

_OURS = find(__name__, __path__)
_CLASSES = {entry.method.__name__: entry.method for entry in _OURS.values()}

METHODS = MethodRegistry(_OURS)

__all__ = ["METHODS", "MethodEntry"]


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return _CLASSES[name]
    raise AttributeError(f"module `{__name__}` has no name `{name}`{nearest(name, _CLASSES)}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_CLASSES])
