"""Two columns that seem to be swapped: neither looks like itself, and each looks like the other."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from masquerade.tables.faults import Array
from masquerade.tables.known import KnownColumn

FEW = 10
"""Rows below which nothing can be said of how values are distributed."""
SLACK = 0.1
"""The share of a range's width beyond which a few rows are strange: someone is the oldest."""
FAR = 0.3
"""The distance from training at which a column does not look like itself."""

Found = tuple[KnownColumn, Array]
"""A column, and the numbers that stand in it."""


def swapped(found: Sequence[Found]) -> Iterator[tuple[Found, Found]]:
    """Yield pairs of columns whose numbers are each other's."""
    # A column that never changed says nothing of what else it could be.
    strange = [each for each in found if np.ptp(each[0].quantiles) > 0 and _is_strange(*each)]
    for one, other in combinations(strange, 2):
        if _fit_exchanged(one, other):
            yield one, other


def _is_strange(column: KnownColumn, values: Array) -> bool:
    """Tell whether a column does not look like itself; a few rows have to be far out of range."""
    if len(values) < FEW:
        return not column.fits(values, SLACK).any()
    return column.distance(values) >= FAR


def _fit_exchanged(one: Found, other: Found) -> bool:
    """Tell whether each column looks like the other: at most half as far as from itself."""
    (known, values), (known_too, values_too) = one, other
    if min(len(values), len(values_too)) < FEW:
        return bool(known.fits(values_too).all() and known_too.fits(values).all())
    own = min(known.distance(values), known_too.distance(values_too))
    return max(known.distance(values_too), known_too.distance(values)) <= own / 2


def leave_range(*pair: Found) -> bool:
    """Tell whether most numbers of one of the columns are beyond what training had."""
    return any(column.fits(values).mean() < 0.5 for column, values in pair)
