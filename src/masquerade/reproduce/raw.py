"""Raw results: what every client reached, as arrays beside a result; and statistics of them."""

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from masquerade.errors import MasqueradeError
from masquerade.results import Accuracy, ClientFigures, Statistics, Summary
from masquerade.storage import atomic

Arrays = dict[str, Any]
"""Numpy arrays by name."""
Figures = Sequence[float | None]

RULES = "rules/"
"""Arrays of a rule on outputs are called `rules/NAME/ARRAY`."""


def path_of(result: Path) -> Path:
    """Return the file of clients' figures beside that of a result."""
    return result.with_suffix(".npz")


def write(result: Path, summary: Summary) -> None:
    """Write clients' figures beside a result, where the summary has any."""
    if summary.per_client is None:
        return
    arrays = _arrays(summary.per_client)
    for name, rule in summary.rules.items():
        if rule.per_client is not None:
            own = _arrays(rule.per_client).items()
            arrays |= {f"{RULES}{name}/{key}": array for key, array in own}
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)
    atomic.write_file(path_of(result), held.getvalue())


def without(summary: Summary) -> Summary:
    """Return a summary as its own file has it: clients' figures lie beside it.

    What no page of a table shows is left out: the majority class and overlaps client by client.
    """
    rules = {name: replace(rule, per_client=None) for name, rule in summary.rules.items()}
    majority = summary.majority and replace(summary.majority, per_client=None)
    overlap = summary.overlap and replace(summary.overlap, pairs={})
    return replace(summary, per_client=None, rules=rules, majority=majority, overlap=overlap)


def of_try(summary: Summary) -> Summary:
    """Return what is kept of a try: how good its settings are, on own data, and what it cost."""
    clients = summary.per_client and replace(summary.per_client, shift={}, pooled={})
    accuracy = replace(summary.accuracy, shift={}, pooled={})
    bare = replace(summary, accuracy=accuracy, per_client=clients)
    return replace(bare, majority=None, overlap=None, global_view=None, history=())


def read(result: Path, summary: Summary) -> Summary:
    """Return a summary with the clients' figures beside it, where there are any."""
    path = path_of(result)
    if not path.is_file():
        return summary
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = {key: held[key] for key in held.files}
        rules = {
            name: replace(rule, per_client=_of_rule(arrays, name))
            for name, rule in summary.rules.items()
        }
        return replace(summary, per_client=_clients(arrays), rules=rules)
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        text = f"{path} is damaged ({error}); restore it, or remove it"
        raise MasqueradeError("E401", text) from None


def _of_rule(arrays: Arrays, name: str) -> ClientFigures | None:
    start = f"{RULES}{name}/"
    own = {key.removeprefix(start): each for key, each in arrays.items() if key.startswith(start)}
    return _clients(own) if own else None


def _arrays(clients: ClientFigures) -> Arrays:
    """Return figures as float32, NaN where there is none; by degree [degrees, clients]."""
    counts = {"ids": clients.ids, "samples": clients.samples, "tests": clients.tests}
    found: Arrays = {key: np.array(each, dtype=np.int32) for key, each in counts.items()}
    found["own"] = np.array(clients.own, dtype=np.float32)
    for key, figures in {"shift": clients.shift, "pooled": clients.pooled}.items():
        found[key] = np.array(list(figures.values()), dtype=np.float32)
        found[f"{key}_degrees"] = np.array(list(figures), dtype=np.str_)
    if clients.names:
        found["names"] = np.array(clients.names, dtype=np.str_)
    return found


def _clients(arrays: Arrays) -> ClientFigures:
    ids, samples, tests = (
        tuple(int(each) for each in arrays[key]) for key in ("ids", "samples", "tests")
    )
    return ClientFigures(
        ids=ids,
        samples=samples,
        own=_figures(arrays["own"]),
        names=tuple(str(name) for name in arrays.get("names", ())),
        tests=tests,
        shift=_by_degree(arrays, "shift"),
        pooled=_by_degree(arrays, "pooled"),
    )


def _by_degree(arrays: Arrays, key: str) -> dict[str, tuple[float | None, ...]]:
    degrees = arrays[f"{key}_degrees"]
    return {str(d): _figures(row) for d, row in zip(degrees, arrays[key], strict=True)}


def _figures(array: npt.NDArray[Any]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else float(value) for value in array)


def recompute(summary: Summary) -> Summary:
    """Return a summary whose statistics over clients are computed from clients' figures alone."""
    assert summary.per_client is not None
    rules = {
        name: rule
        if rule.per_client is None
        else replace(rule, accuracy=_accuracy(rule.per_client, rule.accuracy))
        for name, rule in summary.rules.items()
    }
    accuracy = _accuracy(summary.per_client, summary.accuracy)
    return replace(summary, accuracy=accuracy, rules=rules)


def _accuracy(clients: ClientFigures, before: Accuracy) -> Accuracy:
    """Describe figures; what they say nothing of (corruption) is as it was."""

    def by_degree(figures: Mapping[str, Figures]) -> dict[str, Statistics]:
        return {d: describe(each, clients.tests, before.better) for d, each in figures.items()}

    return replace(
        before,
        own=describe(clients.own, clients.tests, before.better),
        shift=by_degree(clients.shift),
        pooled=by_degree(clients.pooled),
    )


def describe(figures: Figures, tests: Sequence[int], better: str = "higher") -> Statistics:
    """Return mean and standard deviation over clients, the mean over samples, the bottom decile.

    Clients without a figure are left out. The bottom decile is the figure of the client after the
    worst tenth, counted down: of 100 clients that of the eleventh from below.
    """
    pairs = zip(figures, tests, strict=True)
    present = [(figure, count) for figure, count in pairs if figure is not None]
    if not present:
        return Statistics(math.nan, math.nan, defined=0)
    values, weights = np.array(present, dtype=np.float64).T
    worst_first = np.sort(values)[:: -1 if better == "lower" else 1]
    return Statistics(
        mean=float(values.mean()),
        std=float(values.std()),
        weighted=float(np.average(values, weights=weights)),
        bottom_decile=float(worst_first[len(values) // 10]),
        defined=len(present),
    )
