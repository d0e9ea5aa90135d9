"""Errors that a person can act on: a stable code, what was wrong, where, and what to do now."""

import difflib
import sys
import unicodedata
import warnings
from collections.abc import Iterable
from importlib import import_module
from types import FrameType
from typing import Any

EXIT_STATUS = {"E2": 2, "E3": 3, "E4": 4, "E5": 5, "E6": 6, "E7": 7}
"""The command's exit status by the first two characters of the code (2 usage, 3 data, 4 run
store, 5 resources, 6 network, 7 federation)."""


class MasqueradeError(Exception):
    """A refusal with a code such as `E201`; shown without a traceback."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code

    @property
    def exit_status(self) -> int:
        """Return the exit status that the command ends with."""
        return EXIT_STATUS.get(self.code[:2], 1)


class MasqueradeWarning(UserWarning):
    """Something that was handled, but that a person should know of."""


def warn(text: str) -> None:
    """Warn a person, at the line of the program that called this package."""
    level, found = 1, 1
    frame: FrameType | None = sys._getframe(0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "masquerade":
            found = level
        level, frame = level + 1, frame.f_back
    warnings.warn(text, MasqueradeWarning, stacklevel=found + 1)


def told(value: object) -> str:
    """Describe a value in a few words, for where another was expected."""
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name, shape = type(value).__name__, getattr(value, "shape", None)
    if shape is not None:
        return f"a {name} {list(shape)}" if len(shape) else "a single number"
    return f"a {name} of {len(value)}" if isinstance(value, (tuple, list)) else f"a {name}"


def printable(text: str) -> str:
    """Return a text whose control characters are written out: data may bring some along.

    A terminal obeys them, and letters may change their direction. New lines and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else _spelled(c) for c in text)


def _is_shown(character: str) -> bool:
    # Python calls spaces not printable, but for the usual one.
    spaces = character in "\n\t" or unicodedata.category(character) == "Zs"
    return spaces or character.isprintable()


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()


def brief(value: object, most: int = 200) -> str:
    """Write a value as Python does, cut off where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Whole numbers of thousands of digits, and lists within lists.
        return "too long to be shown"
    return text if len(text) <= most else f"{text[:most]}..."


def is_deeper(value: object, most: int) -> bool:
    """Tell whether lists and tables are nested deeper than so many."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        held = (each.values() if isinstance(each, dict) else each for each in level if _holds(each))
        level = [each for values in held for each in values]
        if not level:
            return False
    return True


def _holds(value: Any) -> bool:
    return isinstance(value, (list, dict))


def counted(number: int, word: str) -> str:
    """Write how many there are of something: "1 round", "20 rounds"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def listed(words: Iterable[object], most: int = 10) -> str:
    """Write the first of some words."""
    texts = list(map(str, words))
    return ", ".join([*texts[:most], *["..."] * (len(texts) > most)])


def missing(numbers: Iterable[int], most: int) -> str:
    """Write which numbers from 1 to `most` are not there: "1 to 3, 7"."""
    gaps, before = [], 0
    for each in (*sorted(numbers), most + 1):
        if each == before + 2:
            gaps.append(f"{before + 1}")
        elif each > before + 2:
            gaps.append(f"{before + 1} to {each - 1}")
        before = each
    return listed(gaps)


def near(word: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Return the known words that are nearest to another one, capitals or not."""
    folded: dict[str, str] = {}
    for each in known:
        folded.setdefault(each.casefold(), each)
    return [folded[each] for each in difflib.get_close_matches(word.casefold(), folded, n=most)]


def nearest(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return a suggestion to put after an unknown word, empty where nothing is near."""
    found = [f"`{each}`" for each in near(word, known, most)]
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def require(module: str, extra: str) -> Any:
    """Import a library that an extra installs, or say how to install it."""
    try:
        return import_module(module)
    except ImportError:
        text = f"{extra} is not installed; pip install 'masquerade[{extra}]'"
        raise MasqueradeError("E202", text) from None
