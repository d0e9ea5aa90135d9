"""Characters as numbers, and texts as windows: eighty characters, and the one that follows."""

import numpy as np

from masquerade.data.dataset import Array

# LEAF's alphabet (Caldas et al. 2018), in its order.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
"""Characters of a window."""

_PLACES = np.full(256, -1, dtype=np.int8)
_PLACES[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


def tokens(text: str) -> Array:
    """Number the characters of a text by their places in the alphabet."""
    numbers = _PLACES[np.frombuffer(text.encode("latin-1"), np.uint8)]
    if (numbers < 0).any():
        strange = text[int(np.argmin(numbers))]
        raise ValueError(f"the character {strange!r} is not in LEAF's alphabet")
    return numbers


def windows(text: Array) -> tuple[Array, Array]:
    """Cut all windows of a text: (windows [n, 80], the character after each [n])."""
    every = np.lib.stride_tricks.sliding_window_view(text, LENGTH)
    return every[:-1], text[LENGTH:]
