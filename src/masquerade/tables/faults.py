"""All that is wrong with a table, in one message: where, what, and the option that mends it."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from masquerade.errors import MasqueradeError
from masquerade.tables.words import in_one_text

Array = npt.NDArray[Any]

SHOWN = 3
"""Places that are shown of one fault."""
LISTED = 20
"""Faults that are shown of one table."""
LONGEST = 24
"""Characters that are shown of one value."""
SEVERAL = ("categorical", "drop", "missing")
"""Options that take several words."""

Option = tuple[str, ...]
"""An option and its words: ("drop", "id")."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    text: str
    options: tuple[Option, ...] = ()
    """Each of them mends it; the first is the likeliest."""
    advice: str = ""
    """What else to do."""
    sure: bool = True
    """Whether the first option is worth a try."""


@dataclass(frozen=True, eq=False)
class Places:
    """What the rows of a table are called: lines of a file, or rows of a frame."""

    word: str
    numbers: Array

    def shown(
        self, rows: Sequence[int] | Array, values: Array | None = None, most: int = SHOWN
    ) -> str:
        """Write the first of some rows, with their values."""
        parts = []
        for row in rows[:most]:
            value = "" if values is None else f" {short(values[row])}"
            parts.append(f"{self.word} {self.numbers[row]}{value}")
        return ", ".join([*parts, *["..."] * (len(rows) > most)])


def rows_by_number(count: int) -> Places:
    """Name rows of arrays and frames by their numbers, from 0."""
    return Places("row", np.arange(count))


def short(value: object) -> str:
    """Write a value so that it fits into a line."""
    text = str(value)
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def refusal(source: str, faults: Sequence[Fault], in_python: bool) -> MasqueradeError:
    """Return the error that lists all faults, and the options that mend them."""
    lines = [f"- {fault.text}{_advice(fault, in_python)}" for fault in faults[:LISTED]]
    if len(faults) > LISTED:
        lines.append(f"- and {len(faults) - LISTED} more of this kind")
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    text = f"{source} has {count}:\n" + "\n".join(lines)
    mended = [fault.options[0] for fault in faults if fault.options and fault.sure]
    if mended:
        # As it can be copied: arguments have commas between them, options have none.
        text += f"\nTry: {(', ' if in_python else ' ').join(written(mended, in_python))}"
    return MasqueradeError("E302", text)


def _advice(fault: Fault, in_python: bool) -> str:
    said = [written([each], in_python)[0] for each in fault.options]
    every = ", ".join(filter(None, (" or ".join(said), fault.advice)))
    return f"; {every}" if every else ""


def written(options: Iterable[Option], in_python: bool) -> list[str]:
    """Write options as they are typed, those of one name together."""
    given: dict[str, list[str]] = {}
    for name, *words in options:
        given[name] = list(dict.fromkeys([*given.get(name, ()), *words]))
    return [_written(name, words, in_python) for name, words in given.items()]


def _written(name: str, words: list[str], in_python: bool) -> str:
    if in_python:
        return f"{name}={words if name in SEVERAL else words[0]!r}"
    return f"--{name} {shlex.quote(in_one_text(words) if name in SEVERAL else words[0])}"
