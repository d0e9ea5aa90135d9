"""Pickles as descriptions: their opcodes are walked through, and nothing is ever executed.

A pickle is a program. Only the few opcodes that plain containers, numbers and texts need are
understood; every name it asks for is looked up in a closed table of our own functions, and anything
else is refused.
"""

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_MARK = object()
_ARGUMENTS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE"),
}
_FRESH: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}


@dataclass(frozen=True)
class Name:
    """A name that a pickle asks for, such as `numpy dtype`; nothing is imported."""

    text: str


@dataclass(frozen=True)
class Language:
    """What the pickles of one kind of file may say."""

    makers: Mapping[str, Callable[..., Any] | None]
    """All names that may be asked for, and our own function where they may be called."""
    fill: Callable[[Any, Any], Any] = lambda thing, state: thing
    """What a made thing becomes when it is given its state; it stays as it is by default."""
    elsewhere: Callable[[Any], Any] | None = None
    """What stands for a thing that lies outside of the pickle."""

    def read(self, source: bytes | io.BytesIO) -> Any:
        """Return what one pickle describes; a stream is read up to its end."""
        walk = _Walk(self)
        for opcode, argument, _ in pickletools.genops(source):
            if opcode.name == "STOP":
                return walk.pop(1)[0]
            walk.step(opcode.name, argument)
        raise ValueError("its pickle has no end")


class _Walk:
    """The stack and the memory of a walk through a pickle."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self.stack: list[Any] = []
        self.memory: dict[Any, Any] = {}

    def pop(self, count: int) -> list[Any]:
        """Take so many things off the stack."""
        start = len(self.stack) - count
        taken = self.stack[max(start, 0) :]
        if start < 0 or any(each is _MARK for each in taken):
            raise ValueError("its pickle takes what it has not put")
        del self.stack[start:]
        return taken

    def pop_to_mark(self) -> list[Any]:
        """Take everything above the last mark, and the mark."""
        places = (n for n, each in enumerate(reversed(self.stack)) if each is _MARK)
        taken = self.pop(next(places, len(self.stack) + 1))
        self.stack.pop()
        return taken

    def top(self, kind: type[Any]) -> Any:
        """Return the container on top."""
        if not self.stack or type(self.stack[-1]) is not kind:
            raise ValueError("its pickle fills what is no container")
        return self.stack[-1]

    def step(self, name: str, argument: Any) -> None:
        """Follow one opcode, or refuse it."""
        if name in _ARGUMENTS:
            self.stack.append(argument)
        elif name in _FRESH:
            self.stack.append(_FRESH[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memory[len(self.memory) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memory[argument])
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            taken = self.pop_to_mark() if name == "TUPLE" else self.pop(int(name[-1]))
            self.stack.append(tuple(taken))
        elif name in ("APPEND", "APPENDS"):
            taken = self.pop(1) if name == "APPEND" else self.pop_to_mark()
            self.top(list).extend(taken)
        elif name in ("SETITEM", "SETITEMS"):
            self._set(self.pop(2) if name == "SETITEM" else self.pop_to_mark())
        elif name not in ("PROTO", "FRAME"):
            self._make(name, argument)

    def _set(self, taken: list[Any]) -> None:
        # Nested tuples that share their parts would take forever to hash or to print.
        if not all(type(key) in (str, int) for key in taken[::2]):
            raise ValueError("its pickle has keys that are no names")
        self.top(dict).update(zip(taken[::2], taken[1::2], strict=True))

    def _make(self, name: str, argument: Any) -> None:
        if name in ("GLOBAL", "STACK_GLOBAL"):
            words = argument if name == "GLOBAL" else " ".join(self.pop(2))
            if words not in self.language.makers:
                raise ValueError(f"its pickle asks for `{words:.60}`")
            self.stack.append(Name(words))
        elif name == "REDUCE":
            called, arguments = self.pop(2)
            maker = self.language.makers[called.text] if type(called) is Name else None
            if maker is None:
                raise ValueError("its pickle calls what is not to be called")
            self.stack.append(maker(*arguments))
        elif name == "BUILD":
            thing, state = self.pop(2)
            self.stack.append(self.language.fill(thing, state))
        elif name == "BINPERSID" and self.language.elsewhere is not None:
            self.stack.append(self.language.elsewhere(self.pop(1)[0]))
        else:
            raise ValueError(f"its pickle has the opcode {name}")
