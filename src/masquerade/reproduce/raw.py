"""Raw results: what every client reached, counted, beside a result; and statistics of it.

A file is an archive of arrays that `numpy.load` reads. A figure is a count over a count:

    held = numpy.load(file)
    figures = held["right"] / (held["draws"][:, None] * held["tests"]) * 100

Rows are named by `columns`: `own`, `shift/40`, `pooled/40`, and `rules/NAME/own` under a rule on
outputs. A client without test samples has no figure. Figures that are no shares of test samples
are there as they are, in `figures`.
"""

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
from masquerade.results import AVERAGED, Accuracy, ClientFigures, Overlap, Statistics, Summary
from masquerade.storage import atomic

Figures = Sequence[float | None]
Array = npt.NDArray[Any]

RULES = "rules"
"""What columns of figures under a rule begin with."""
NEAR = 1e-5
"""Percentage points by which a figure may be away from the count that is kept of it."""
MOST_DRAWS = 100
"""Draws of partners among which that of a figure is looked for."""


def path_of(result: Path) -> Path:
    """Return the file of clients' figures beside that of a result."""
    return result.with_suffix(".npz")


def write(result: Path, summary: Summary) -> None:
    """Write clients' figures beside a result, where the summary has any."""
    clients = summary.per_client
    if clients is None:
        return
    columns = _columns(clients)
    for name, rule in summary.rules.items():
        if rule.per_client is not None:
            columns |= _columns(rule.per_client, f"{RULES}/{name}/")
    counts = {key: getattr(clients, key) for key in ("ids", "samples", "tests")}
    arrays: dict[str, Any] = {key: _whole(each) for key, each in counts.items()}
    if clients.names:
        arrays["names"] = np.array(clients.names)
    arrays["columns"] = np.array(list(columns))
    arrays |= _counted(columns, clients.tests)
    if summary.overlap is not None and summary.overlap.with_global:
        shared = summary.overlap.with_global
        arrays["masked"] = np.array(list(shared))
        arrays["with_global"] = _whole(list(shared.values()))
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)
    atomic.write_file(path_of(result), held.getvalue())


def _columns(clients: ClientFigures, start: str = "") -> dict[str, Figures]:
    """Return figures by column; what follows from others is left out."""
    found: dict[str, Figures] = {f"{start}own": clients.own}
    for kind, by_degree in (("shift", clients.shift), ("pooled", clients.pooled)):
        for degree, figures in by_degree.items():
            unshifted = degree == "0" and figures == clients.own
            if not unshifted and degree != AVERAGED:
                found[f"{start}{kind}/{degree}"] = figures
    return found


def _counted(columns: Mapping[str, Figures], tests: Sequence[int]) -> dict[str, Array]:
    """Return figures as counts of right answers, or as they are where one is no such count."""
    asked = np.array(tests, dtype=np.float64)
    figures = np.array([list(column) for column in columns.values()], dtype=np.float64)
    right, draws = np.zeros_like(figures), np.zeros(len(figures))
    for row, column in enumerate(figures):
        none = np.isnan(column)
        if np.array_equal(none, asked == 0):
            share, present = column[~none] / 100, asked[~none]
            for count in range(1, MOST_DRAWS + 1):
                whole = np.round(share * present * count)
                if np.all(np.abs(whole / (present * count) - share) < NEAR / 100):
                    right[row, ~none], draws[row] = whole, count
                    break
    if not draws.all():
        return {"figures": figures.astype(np.float32)}
    # Of whatever type the others are, products with draws have room.
    return {"draws": draws.astype(np.int64), "right": _whole(right)}


def _whole(values: npt.ArrayLike) -> Array:
    """Return whole numbers in the smallest type that has room for them."""
    found = np.asarray(values)
    return found.astype(np.min_scalar_type(int(found.max(initial=0))))


def without(summary: Summary) -> Summary:
    """Return a summary as its own file has it: clients' figures lie beside it.

    What no page of a table shows is left out: the majority class, costs layer by layer, and
    overlaps of every two clients. So is what clients' figures give again, of rules, by degree.
    """
    rules = {
        name: rule
        if rule.per_client is None
        else replace(rule, per_client=None, accuracy=replace(rule.accuracy, shift={}, pooled={}))
        for name, rule in summary.rules.items()
    }
    overlap = summary.overlap and replace(summary.overlap, pairs={}, with_global={})
    costs = replace(summary.costs, layers={})
    return replace(
        summary, per_client=None, rules=rules, majority=None, overlap=overlap, costs=costs
    )


def of_try(summary: Summary) -> Summary:
    """Return what is kept of a try: how good its settings are, on own data, and what it cost."""
    clients = summary.per_client and replace(summary.per_client, shift={}, pooled={})
    accuracy = replace(summary.accuracy, shift={}, pooled={})
    bare = replace(summary, accuracy=accuracy, per_client=clients)
    return replace(bare, rules={}, majority=None, overlap=None, global_view=None, history=())


def read(result: Path, summary: Summary) -> Summary:
    """Return a summary with the clients' figures beside it, where there are any."""
    path = path_of(result)
    if not path.is_file():
        return summary
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = {key: held[key] for key in held.files}
        figures = _figures(arrays)
        rules = dict(summary.rules)
        for name, rule in rules.items():
            if f"{RULES}/{name}/own" in figures:
                start, known = f"{RULES}/{name}/", rule.accuracy
                left_out = not known.shift and any(
                    key.startswith(f"{start}shift/") for key in figures
                )
                # Under a rule degrees are those of the view.
                own = _clients(arrays, figures, summary.accuracy if left_out else known, start)
                accuracy = _accuracy(own, known) if left_out else known
                rules[name] = replace(rule, accuracy=accuracy, per_client=own)
        return replace(
            summary,
            per_client=_clients(arrays, figures, summary.accuracy),
            rules=rules,
            overlap=summary.overlap and _overlap(arrays, summary.overlap),
        )
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        text = f"{path} is damaged ({error}); restore it, or remove it"
        raise MasqueradeError("E401", text) from None


def _figures(arrays: Mapping[str, Array]) -> dict[str, tuple[float | None, ...]]:
    """Return figures by column."""
    if "figures" in arrays:
        found = arrays["figures"].astype(np.float64)
    else:
        asked = arrays["draws"][:, None] * arrays["tests"]
        found = np.full(arrays["right"].shape, np.nan)
        np.divide(arrays["right"], asked, out=found, where=asked > 0)
        found *= 100
    return {
        str(name): tuple(None if math.isnan(each) else each for each in row.tolist())
        for name, row in zip(arrays["columns"], found, strict=True)
    }


def _clients(
    arrays: Mapping[str, Array],
    figures: Mapping[str, tuple[float | None, ...]],
    accuracy: Accuracy,
    start: str = "",
) -> ClientFigures:
    """Return the figures of columns that begin so; the accuracy says of which degrees."""

    def by_degree(kind: str, degrees: Sequence[str]) -> dict[str, tuple[float | None, ...]]:
        found: dict[str, tuple[float | None, ...]] = {}
        for degree in degrees:
            if degree == AVERAGED:
                found[degree] = tuple(map(_mean, zip(*found.values(), strict=True)))
            elif degree == "0":
                found[degree] = figures.get(f"{start}{kind}/0", figures[f"{start}own"])
            else:
                found[degree] = figures[f"{start}{kind}/{degree}"]
        return found

    ids, samples, tests = (tuple(arrays[key].tolist()) for key in ("ids", "samples", "tests"))
    return ClientFigures(
        ids=ids,
        samples=samples,
        own=figures[f"{start}own"],
        names=tuple(str(name) for name in arrays.get("names", ())),
        tests=tests,
        shift=by_degree("shift", list(accuracy.shift)),
        pooled=by_degree("pooled", list(accuracy.pooled)),
    )


def _mean(values: Figures) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _overlap(arrays: Mapping[str, Array], overlap: Overlap) -> Overlap:
    shared = zip(arrays.get("masked", ()), arrays.get("with_global", ()), strict=True)
    return replace(overlap, with_global={str(name): tuple(row.tolist()) for name, row in shared})


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
