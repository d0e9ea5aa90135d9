"""Results as tables: a row per method, its spread over clients and, given seeds, an interval."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from masquerade.errors import MasqueradeError

Result = Mapping[str, Any]
"""One object of `results.json`: one method, one seed."""

Results = Sequence[Result]

ABSENT = "–"

_COMMON = ("data", "clients", "rounds", "metric", "better")

ENOUGH = 3
"""Seeds that an interval needs."""


@dataclass(frozen=True)
class Figure:
    """One number of one method, over all of its seeds."""

    mean: float
    std: float | None
    """The standard deviation over clients, averaged over seeds."""
    half: float | None
    """How sure the mean over seeds is, by `half_width`; none for a single seed."""

    def show(self, form: str) -> str:
        """Write the figure as `mean ± std (half)`, leaving out what is not there."""
        text = format(self.mean, form)
        text += "" if self.std is None else f" ± {self.std:{form}}"
        return text + ("" if self.half is None else f" ({self.half:{form}})")


def by_method(results: Results) -> dict[str, list[Result]]:
    """Group results by method in the order given; refuse what must not stand in one table."""
    if not results:
        raise MasqueradeError("E305", "there are no results to report; run a method first")
    groups: dict[str, list[Result]] = {}
    for result in results:
        _check(result, results[0])
        group = groups.setdefault(result["method"], [])
        if any(result["seed"] == other["seed"] for other in group):
            name = f"`{result['method']}` with seed {result['seed']}"
            raise MasqueradeError("E305", f"{name} is there twice; remove one of the results")
        group.append(result)
    return groups


def _check(result: Result, first: Result) -> None:
    missing = [key for key in ("method", "seed", "accuracy") if key not in result]
    if missing:
        keys = ", ".join(f"`{key}`" for key in missing)
        raise MasqueradeError("E305", f"a result lacks {keys}; is this a results.json?")
    for key in _COMMON:
        ours, theirs = result.get(key), first.get(key)
        if ours != theirs:
            raise MasqueradeError(
                "E305",
                f"`{key}` is {theirs!r} for `{first['method']}` but {ours!r} for"
                f" `{result['method']}`; report such results apart",
            )


def title(result: Result) -> str:
    """Return the name that a method is shown by."""
    return str(result.get("title", result["method"]))


def is_percent(results: Results) -> bool:
    """Tell whether the metric is an accuracy, which is given in percent."""
    return bool(results[0].get("metric", "accuracy") == "accuracy")


def number_format(results: Results) -> str:
    """Return the format of the metric's values."""
    return ".1f" if is_percent(results) else ".3g"


def numbers(seeds: Results, *path: str) -> list[float]:
    """Return what the seeds have at a path of keys; a seed that has nothing there is left out."""
    found = []
    for value in seeds:
        at: Any = value
        for key in path:
            # A bare number, as older results have it for the average over shifts, is a mean.
            at = at.get(key) if isinstance(at, Mapping) else at if key == "mean" else None
        if at is not None and math.isfinite(at):
            found.append(float(at))
    return found


def mean(seeds: Results, *path: str) -> float | None:
    """Return the mean over seeds of the number at a path of keys."""
    values = numbers(seeds, *path)
    return statistics.fmean(values) if values else None


def figure(seeds: Results, *path: str) -> Figure | None:
    """Return the figure at a path of keys, with the `std` that stands beside a `mean`."""
    values = numbers(seeds, *path)
    if not values:
        return None
    std = mean(seeds, *path[:-1], "std") if path[-1] == "mean" else None
    return Figure(statistics.fmean(values), std, half_width(values))


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of the mean by Student's t; of two values half their range.

    The interval of two would be nearly thirteen times as wide as they are apart: it says nothing.
    """
    if len(values) < ENOUGH:
        return abs(values[0] - values[1]) / 2 if len(values) == 2 else None
    # Machines that only train have no scipy.
    from scipy.stats import t

    quantile = float(t.ppf(0.975, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def about_seeds(groups: Iterable[Sequence[Any]]) -> list[str]:
    """Say what stands in parentheses where methods have so many seeds."""
    counts = {len(seeds) for seeds in groups}
    notes = []
    if max(counts, default=0) >= ENOUGH:
        notes.append("In parentheses: half of the 95 % interval over seeds (Student's t).")
    if 2 in counts:
        notes.append("In parentheses, of two seeds: how far each is from their mean; no interval.")
    return notes


def columns(results: Results) -> dict[str, tuple[str, ...]]:
    """Return the columns of the metric: heading → path of keys in a result."""
    paths: dict[str, tuple[str, ...]] = {
        "Own data": ("accuracy", "own", "mean"),
        "Bottom decile": ("accuracy", "own", "bottom_decile"),
    }
    for degree in steps(results, "shift"):
        paths[f"{degree} % shift"] = ("accuracy", "shift", str(degree), "mean")
    if steps(results, "shift"):
        paths["All shifts"] = ("accuracy", "shift", "averaged", "mean")
    if steps(results, "pooled"):
        paths["Pooled shifts"] = ("accuracy", "pooled", "averaged", "mean")
    if kinds(results):
        paths["Corrupt images"] = ("accuracy", "corruption", "averaged", "averaged", "mean")
    if any("novel" in result for result in results):
        paths["Novel clients"] = ("novel", "accuracy", "own", "mean")
    return paths


def steps(results: Results, *path: str) -> list[int]:
    """Return the degrees of shift, or severities, above 0 that any result was evaluated at."""
    found: set[int] = set()
    for result in results:
        at = result["accuracy"]
        for key in path:
            at = at.get(key, {})
        found |= {int(key) for key in at if key.isdigit()}
    return sorted(found - {0})


def kinds(results: Results) -> list[str]:
    """Return the kinds of corruption that results were evaluated under."""
    named = {kind: None for result in results for kind in result["accuracy"].get("corruption", {})}
    return [kind for kind in named if kind != "averaged"]


def show(found: Figure | None, form: str) -> str:
    """Write a figure, or a dash where there is none."""
    return ABSENT if found is None else found.show(form)


def show_cost(amount: float | None, unit: float = 1.0) -> str:
    """Write a cost in a unit with two decimals, or two digits where it is small."""
    if amount is None:
        return ABSENT
    value = amount / unit
    return format(value, ".2f" if value >= 0.1 else ".2g")


def rows(results: Results) -> list[dict[str, str]]:
    """Return one row per method, heading → text, seeds taken together."""
    groups = by_method(results).values()
    form, paths = number_format(results), columns(results)
    return [
        {"Method": title(seeds[0])}
        | {heading: show(figure(seeds, *path), form) for heading, path in paths.items()}
        | ({"Gap": show(figure(seeds, "novel", "gap"), form)} if "Novel clients" in paths else {})
        | {
            "MB": show_cost(traffic(seeds), 1e6),
            "GFLOP": show_cost(mean(seeds, "flops", "masked"), 1e9),
            "Density": show_cost(mean(seeds, "density")),
        }
        for seeds in groups
    ]


def traffic(seeds: Results, *apart: str) -> float | None:
    """Return the bytes per client in both directions, of training or of what is counted apart."""
    directions = [mean(seeds, *apart, "bytes", way) for way in ("down", "up")]
    known = [amount for amount in directions if amount is not None]
    return sum(known) if known else None


def best(results: Results) -> dict[str, list[int]]:
    """Return for each column of the metric the rows with the best value as shown."""
    groups = list(by_method(results).values())
    form = number_format(results)
    sign = -1 if results[0].get("better") == "lower" else 1
    found = {}
    for heading, path in columns(results).items():
        values = {row: mean(seeds, *path) for row, seeds in enumerate(groups)}
        known = {row: value for row, value in values.items() if value is not None}
        if known:
            top = format(max(known.values(), key=lambda value: sign * value), form)
            found[heading] = [row for row, value in known.items() if format(value, form) == top]
    return found


def winners(results: Results) -> dict[str, str]:
    """Return who is best in each column of the metric; all of them where values tie as shown."""
    titles = [title(seeds[0]) for seeds in by_method(results).values()]
    return {
        heading: " and ".join(titles[row] for row in leaders)
        for heading, leaders in best(results).items()
    }


def heading(results: Results) -> str:
    """Return what the results are about, in one line."""
    first = results[0]
    name = "Accuracy (%)" if is_percent(results) else str(first["metric"]).capitalize()
    seeds = sorted({result["seed"] for result in results})
    facts = [name, str(first.get("data", "")), *_counted(first)]
    facts.append(("seeds " if len(seeds) > 1 else "seed ") + ", ".join(map(str, seeds)))
    return " · ".join(fact for fact in facts if fact)


def _counted(result: Result) -> list[str]:
    return [f"{result[key]:,} {key}" for key in ("clients", "rounds") if key in result]


def footnotes(results: Results) -> list[str]:
    """Return the sentences that a reader of the table needs."""
    notes = [
        "± is the standard deviation over clients; under shift a client's figure is its mean over"
        " the partners drawn."
    ]
    groups = by_method(results).values()
    notes[0] = " ".join([notes[0], *about_seeds(groups)])
    if "Pooled shifts" in columns(results):
        notes.append(
            "Shifted samples come from one other client, pooled ones from all others; both are"
            " averaged over all degrees, 0 % included."
        )
    notes += _about_corruption(results)
    notes += sorted({str(result["data_note"]) for result in results if "data_note" in result})
    notes.append(
        "MB (10⁶ bytes, down and up) and GFLOP (as the masks allow) are per client, over all of"
        " training."
    )
    if "Novel clients" in columns(results):
        notes.append(
            "Novel clients took no part in training; the gap is what the others' own data have"
            " ahead of theirs."
        )
    networks = {title(seeds[0]): seeds[0].get("network") for seeds in groups}
    usual = Counter(networks.values()).most_common(1)[0][0]
    other = [f"{name} on {found}" for name, found in networks.items() if found != usual]
    if other:
        notes.append(f"Trained on another network than the rest ({usual}): {', '.join(other)}.")
    lost = [
        title(seeds[0]) for seeds in groups if any(s.get("diverged") is not None for s in seeds)
    ]
    if lost:
        notes.append(f"Diverged, so that the figures mean nothing: {', '.join(lost)}.")
    refused = {title(seeds[0]): sum(s.get("refused", 0) for s in seeds) for seeds in groups}
    some = [f"{name} {count}" for name, count in refused.items() if count]
    if some:
        notes.append(
            f"Updates that were refused (metrics.jsonl has the reasons): {', '.join(some)}."
        )
    for part, when in (("setup", "before training"), ("adapt", "before use")):
        costs = [
            f"{title(seeds[0])} {show_cost(traffic(seeds, part), 1e6)} MB and"
            f" {show_cost(mean(seeds, part, 'flops', 'masked'), 1e9)} GFLOP"
            for seeds in groups
            if mean(seeds, part, "flops", "masked")
        ]
        if costs:
            notes.append(f"Counted apart, once {when}: {'; '.join(costs)}.")
    return notes


def _about_corruption(results: Results) -> list[str]:
    """Say what images were corrupted by, and whose corrupted images they are."""
    named = kinds(results)
    if not named:
        return []
    few = " and ".join(named).replace("_", " ")
    which = few if len(named) < 3 else f"{len(named)} kinds of corruption"
    severities = ", ".join(map(str, steps(results, "corruption", named[0])))
    sources = sorted({str(result["corrupted_images"]) for result in results if kinds([result])})
    whose = {"published": "those of CIFAR-10-C", "generated": "made from the clean ones"}
    return [
        f"Corrupt images are clients' own, under {which} at severity {severities};"
        f" {' or '.join(whose[source] for source in sources)}."
    ]


@dataclass(frozen=True)
class Cell:
    """A cell of the table: its value, what follows the value, and whether none is better."""

    value: str
    rest: str
    best: bool


def cells(results: Results) -> tuple[list[str], list[list[Cell]]]:
    """Return the headings and the rows of the table in a form that is easy to set."""
    body, leaders = rows(results), best(results)
    table = []
    for number, row in enumerate(body):
        parts = {name: split(text) for name, text in row.items()} | {"Method": (row["Method"], "")}
        table.append([Cell(*part, number in leaders.get(name, ())) for name, part in parts.items()])
    return list(body[0]), table


def between(headings: Iterable[str]) -> list[str]:
    """Return the columns of shift that lie between none and the most."""
    return [heading for heading in headings if heading.endswith(" % shift")][:-1]


def split(text: str) -> tuple[str, str]:
    """Part a shown figure into its value and what follows it."""
    value, _, rest = text.partition(" ")
    return value, rest


def markdown(results: Results) -> str:
    """Return the table in Markdown, the best values bold, with its footnotes."""
    headings, body = cells(results)
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|--:" * (len(headings) - 1) + "|"]
    for row in body:
        values = [f"**{cell.value}**" if cell.best else cell.value for cell in row]
        texts = [f"{value} {cell.rest}".strip() for value, cell in zip(values, row, strict=True)]
        lines.append("| " + " | ".join(text.replace("|", r"\|") for text in texts) + " |")
    notes = heading(results) + ". " + " ".join(footnotes(results))
    return "\n".join([*lines, "", notes, "", *_markdown_kinds(results)])


def by_kind(results: Results) -> dict[str, list[Figure | None]]:
    """Return every method's figure under each kind of corruption, over all severities."""
    groups = by_method(results).values()
    return {
        kind: [
            figure(seeds, "accuracy", "corruption", kind, "averaged", "mean") for seeds in groups
        ]
        for kind in [*kinds(results), "averaged"] * bool(kinds(results))
    }


def kind_name(kind: str) -> str:
    """Write the name of a kind of corruption, or of all of them."""
    name = kind.replace("_", " ").capitalize().replace("Jpeg", "JPEG")
    return "All kinds" if kind == "averaged" else name


def _markdown_kinds(results: Results) -> list[str]:
    table, form = by_kind(results), number_format(results)
    if not table:
        return []
    titles = [title(seeds[0]).replace("|", r"\|") for seeds in by_method(results).values()]
    lines = [f"| Corruption | {' | '.join(titles)} |", "|---" + "|--:" * len(titles) + "|"]
    for kind, found in table.items():
        lines.append(f"| {kind_name(kind)} | {' | '.join(show(each, form) for each in found)} |")
    return [*lines, ""]
