"""What a sweep tries, as `--over` writes it: lists of values, and ranges for Optuna."""

import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from masquerade.config.toml import said_of, value_of
from masquerade.errors import MasqueradeError
from masquerade.methods import METHODS

Trial = dict[str, Any]
"""What a trial sets: `section.key` → value."""


@dataclass(frozen=True)
class Values:
    """Some values; a grid tries all of them."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """Return the values that are checked before anything is trained: all."""
        return self.values


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones where both are."""

    low: float
    high: float
    log: bool

    @property
    def ends(self) -> tuple[float, ...]:
        """Return the values that are checked before anything is trained: both ends."""
        return self.low, self.high


Space = Mapping[str, Values | Range]
"""By key."""

SWEPT = ("method", "train")
"""Sections whose settings may be swept: others would change what trials are compared on."""


def parse(texts: Iterable[str]) -> dict[str, Values | Range]:
    """Read `KEY=V1,V2`, `KEY=uniform:LOW:HIGH` and `KEY=log:LOW:HIGH`; E201 says what is wrong."""
    space: dict[str, Values | Range] = {}
    for text in texts:
        key, found, given = text.partition("=")
        key = key.strip()
        if not found or not given.strip():
            raise _fault(text, "write section.key=value,value")
        if key in space:
            raise _fault(text, f"`{key}` is there twice; write one list")
        if key.split(".")[0] not in SWEPT and key != "data.normalize":
            advice = "sweep settings of `method` or `train`, or `data.normalize`"
            raise _fault(text, advice + said_of("", key))
        if key == "train.seeds":
            raise _fault(text, "write --seeds: all trials have the same seeds")
        space[key] = _dimension(text, given.strip())
    if not space:
        raise MasqueradeError("E201", "nothing to sweep; write --over section.key=value,value")
    return space


def _fault(text: str, advice: str) -> MasqueradeError:
    return MasqueradeError("E201", f"`--over {text}`: {advice}")


def _dimension(text: str, given: str) -> Values | Range:
    kind, *bounds = given.split(":")
    if kind in ("uniform", "log"):
        return _range(text, kind == "log", bounds)
    values = _values(given)
    if any(value in values[:place] for place, value in enumerate(values)):
        raise _fault(text, "a value is there twice")
    return Values(values)


def _range(text: str, log: bool, bounds: list[str]) -> Range:
    numbers = [value_of(bound) for bound in bounds]
    fit = all(type(each) in (int, float) and math.isfinite(each) for each in numbers)
    if not fit or len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise _fault(text, "write uniform:LOW:HIGH or log:LOW:HIGH, with LOW < HIGH")
    if log and numbers[0] <= 0:
        raise _fault(text, "a log scale begins above 0")
    return Range(numbers[0], numbers[1], log)


def _values(given: str) -> tuple[Any, ...]:
    """Read values as a list of TOML, in which values may be lists too, or else as words."""
    try:
        return tuple(tomllib.loads(f"values = [{given}]")["values"])
    except tomllib.TOMLDecodeError:
        return tuple(value_of(word) for word in given.split(","))


def grid(space: Space) -> list[Trial]:
    """Return all combinations of the values."""
    ranges = [key for key, each in space.items() if isinstance(each, Range)]
    if ranges:
        text = f"`--over {ranges[0]}` is a range, which a grid cannot try in full"
        raise MasqueradeError("E201", f"{text}; write values, or give --optuna TRIALS")
    return corners(space)


def corners(space: Space) -> list[Trial]:
    """Return all combinations of the values, and of the ends of ranges."""
    combined = itertools.product(*(each.ends for each in space.values()))
    return [dict(zip(space, values, strict=True)) for values in combined]


def concerns(key: str, method: str) -> bool:
    """Tell whether a setting is one of a method: of its hyperparameters, or of all training."""
    section, *path = key.split(".")
    if section != "method":
        return True
    if len(path) == 2:
        return path[0] == method
    return path[0] in {each.name for each in fields(METHODS[method].method)}


def own(trial: Mapping[str, Any], method: str) -> Trial:
    """Return what a trial sets of a method."""
    return {key: value for key, value in trial.items() if concerns(key, method)}


def written(trial: Mapping[str, Any]) -> str:
    """Write down what a trial sets."""
    return ", ".join(f"{key}={_short(value)}" for key, value in trial.items()) or "as it is"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
