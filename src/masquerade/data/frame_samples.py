"""Rows of a frame (pandas, polars, Arrow) as samples, in the columns that the data named."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from masquerade.core.features import Feature
from masquerade.errors import MasqueradeError, listed, told


def is_frame(x: object) -> bool:
    """Tell a frame from arrays and lists."""
    return hasattr(x, "columns")


def samples_of(frame: Any, features: Sequence[Feature]) -> npt.NDArray[Any]:
    """Return rows as samples [rows, features]; of unnamed features, all columns in their order.

    Words become the numbers of their categories, and what is missing becomes NaN.
    """
    # Training needs torch and numpy alone.
    import narwhals

    try:
        table = narwhals.from_native(frame, eager_only=True)
    except TypeError:
        text = f"`x` is {told(frame)}; give a frame of pandas, polars or Arrow that is in memory"
        raise MasqueradeError("E202", text) from None
    if not features:
        return np.asarray(table.to_numpy())
    missing = [each.name for each in features if each.name not in table.columns]
    if missing:
        text = f"`x` has no column {listed(f'`{name}`' for name in missing)}; the data have"
        raise MasqueradeError("E302", f"{text} {listed(each.name for each in features)}")
    columns = [_numbers(table[each.name].to_list(), each) for each in features]
    return np.array(columns, dtype=np.float32).T


def _numbers(values: Sequence[Any], feature: Feature) -> list[float]:
    known = {word: float(place) for place, word in enumerate(feature.categories)}
    return [math.nan if _is_missing(each) else _number(each, feature, known) for each in values]


def _is_missing(value: Any) -> bool:
    """Tell what frames have where a value is missing: None, NaN, or pandas' NA and NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _number(value: Any, feature: Feature, known: dict[str, float]) -> float:
    if feature.is_category:
        # Whole numbers that stand for categories may come as floats, where some are missing.
        whole = isinstance(value, float) and value.is_integer()
        word = str(int(value) if whole else value)
        if word in known:
            return known[word]
        text = f"column `{feature.name}` holds {value!r}; its categories are {listed(known)}"
        raise MasqueradeError("E302", f"{text}; give a missing value where it is none of them")
    try:
        return float(value)
    except (TypeError, ValueError):
        text = f"column `{feature.name}` holds {value!r}, which is no number; correct it"
        raise MasqueradeError("E302", text) from None
