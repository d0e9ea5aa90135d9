"""Shakespeare by speaking role, from the text of Project Gutenberg, under LEAF's rules.

A play begins at its line "by William Shakespeare". A speech begins with two spaces, the role's name
and a period; its further lines have four spaces. In "The Comedy of Errors" these are not indented,
but names are capitals. A role is a play and a name in capitals. Roles with two lines or fewer are
left out, and so are roles that fill no window. A role's lines are joined by single spaces.
"""

import re
from dataclasses import replace

import numpy as np

from masquerade.data.dataset import from_arrays
from masquerade.data.readers.files import Files
from masquerade.data.readers.reading import Reading
from masquerade.data.readers.text import ALPHABET, LENGTH, tokens, windows

AUTHOR = "by William Shakespeare"
SPEECH, MORE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)")
ODD_PLAY = "THE COMEDY OF ERRORS"
ODD_SPEECH, ODD_MORE = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"(.*)")
END = 124196
"""The line of the file behind the last play; a poem and the license follow."""
LEAST = 3
"""Lines of the smallest role."""

Lines = dict[tuple[str, str], list[str]]


def roles(text: str) -> dict[str, str]:
    """Split the works into what each role says, by the names that LEAF gives them."""
    lines = text.splitlines()[1 : END + 1]
    starts = [place for place, line in enumerate(lines) if AUTHOR in line]
    if len(starts) < 3:
        raise ValueError(f"it has {len(starts)} lines with `{AUTHOR}`; is this Gutenberg's #100?")
    spoken: dict[str, str] = {}
    # The first is in the preface or over the sonnets, which nobody speaks.
    for start, end in zip(starts[1:], [*starts[2:], len(lines)], strict=True):
        play = _title(lines, start)
        said = _speeches(lines[start + 1 : end], odd=play == ODD_PLAY)
        if len(said) < 2:
            continue
        for role, bites in said.items():
            if len(bites) >= LEAST:
                spoken[_label(play, role)] = re.sub("  +", " ", " ".join(bites) + " ")
    return spoken


def _title(lines: list[str], start: int) -> str:
    """Find a play's title, a few lines above its author."""
    above = (lines[place].strip() for place in range(start - 2, max(start - 8, -1), -1))
    return next((line for line in above if line), "")


def _speeches(lines: list[str], odd: bool) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    speaker = ""
    for line in lines:
        begun = (ODD_SPEECH if odd else SPEECH).match(line)
        more = (ODD_MORE if odd else MORE).match(line)
        if begun:
            speaker = begun[1].upper()
            if odd and speaker.startswith("ACT "):
                speaker = ""
            else:
                said.setdefault(speaker, []).append(begun[2])
        elif speaker and more:
            if odd and more[1].startswith("<"):
                speaker = ""
            else:
                said[speaker].append(more[1])
    return said


def _label(play: str, role: str) -> str:
    return re.sub(r"\W+", "_", f"{play}_{role}".replace(" ", "_"))


def read(files: Files, name: str) -> Reading:
    """Read the one .txt file: windows of eighty characters, and the character that follows."""
    texts = [path for path in files.names if path.endswith(".txt")]
    if len(texts) != 1:
        raise ValueError(f"one .txt file is needed, and there are {len(texts)}")
    spoken = roles(files.read(texts[0]).decode("utf-8-sig"))
    long = {role: tokens(text) for role, text in spoken.items() if len(text) > LENGTH}
    sizes = [len(text) - LENGTH for text in long.values()]
    x = np.empty((sum(sizes), LENGTH), dtype=np.int8)
    y = np.empty(len(x), dtype=np.int64)
    end = 0
    for text, size in zip(long.values(), sizes, strict=True):
        x[end : end + size], y[end : end + size] = windows(text)
        end += size
    names, numbers = np.unique(list(long), return_inverse=True)
    client = np.repeat(numbers, sizes)
    dataset = from_arrays(x, y, client, name, classes=len(ALPHABET), copy=False)
    letters = tuple(map(repr, ALPHABET))
    return Reading(replace(dataset, names=tuple(names.tolist()), class_names=letters))
