"""How many decimals figures are written with: as many as it takes to tell them apart."""

import math
from collections.abc import Iterable
from itertools import pairwise

PLAIN = 1e6
"""Numbers below it are never written with an exponent."""
DIGITS = 3
"""Digits that a figure has at least, from its first on."""
MOST = 6
"""Digits that a figure has at most: what differs behind them is rounding."""


def number_format(values: Iterable[float], spreads: Iterable[float] = ()) -> str:
    """Return one format for figures that stand together.

    It shows what sets them apart: two digits of the smallest of their `spreads`, and the first of
    the smallest distance of two of the values, as far as `MOST` digits of the largest reach.
    """
    known = sorted({abs(value) for value in values if math.isfinite(value) and value})
    if not known:
        return f".{DIGITS}g"
    top, least = _place(known[-1]), _place(known[0])
    wanted = [DIGITS - 1 - least]
    wanted += [1 - _place(each) for each in spreads if math.isfinite(each) and each > 0]
    near = [high - low for low, high in pairwise(known)]
    wanted += [-_place(each) for each in near if _place(each) > top - MOST]
    decimals = min(max(wanted), MOST - 1 - top)
    if known[-1] >= PLAIN or decimals > MOST + DIGITS:
        return f".{max(DIGITS, decimals + top + 1) - 1}e"
    return f".{max(decimals, 0)}f"


def _place(value: float) -> int:
    """Return the place of a number's first digit: 2 of hundreds, -1 of tenths."""
    return math.floor(math.log10(abs(value)))
