"""Results as tables: a row per method, its spread over clients and, given seeds, an interval."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from masquerade.errors import MasqueradeError
from masquerade.report import blocks
from masquerade.results import AVERAGED, Accuracy, Spent, Statistics, Summary
from masquerade.results.accuracy import ByStep

Results = Sequence[Summary]
"""Of one method or several, of one seed or several."""
Value = Statistics | float | None
Pick = Callable[[Summary], Value]
"""What of a summary a figure is of; statistics bring their standard deviation along."""

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


def by_method(results: Results) -> dict[str, list[Summary]]:
    """Group results by method in the order given; refuse what must not stand in one table.

    A method under a rule on outputs is a row of its own.
    """
    if not results:
        raise MasqueradeError("E305", "there are no results to report; run a method first")
    groups: dict[str, list[Summary]] = {}
    for result in under_rules(results):
        _check(result, results[0])
        group = groups.setdefault(result.method, [])
        if any(result.seed == other.seed for other in group):
            name = f"`{result.method}` with seed {result.seed}"
            raise MasqueradeError("E305", f"{name} is there twice; remove one of the results")
        group.append(result)
    return groups


def under_rules(results: Results) -> list[Summary]:
    """Return results, and after them, in blocks, the same under their rules on outputs."""
    return blocks.in_blocks(row for each in results for row in each.under_rules())


def _check(result: Summary, first: Summary) -> None:
    for key in _COMMON:
        ours, theirs = getattr(result, key), getattr(first, key)
        if ours != theirs:
            raise MasqueradeError(
                "E305",
                f"`{key}` is {theirs!r} for `{first.method}` but {ours!r} for"
                f" `{result.method}`; report such results apart",
            )


def is_percent(results: Results) -> bool:
    """Tell whether the metric is an accuracy, which is given in percent."""
    return results[0].metric == "accuracy"


def number_format(results: Results) -> str:
    """Return the format of the metric's values."""
    return ".1f" if is_percent(results) else ".3g"


def numbers(seeds: Results, pick: Pick) -> list[float]:
    """Return what the seeds have; a seed that has nothing there is left out."""
    found = map(pick, seeds)
    values = (each.mean if isinstance(each, Statistics) else each for each in found)
    return [value for value in values if value is not None and math.isfinite(value)]


def mean(seeds: Results, pick: Pick) -> float | None:
    """Return the mean over seeds."""
    values = numbers(seeds, pick)
    return statistics.fmean(values) if values else None


def figure(seeds: Results, pick: Pick) -> Figure | None:
    """Return a figure over seeds, with the standard deviation over clients where it has one."""
    values = numbers(seeds, pick)
    if not values:
        return None
    stds = [found.std for found in map(pick, seeds) if isinstance(found, Statistics)]
    known = [std for std in stds if math.isfinite(std)]
    std = statistics.fmean(known) if known else None
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


def about_seeds(groups: Iterable[Sequence[object]]) -> list[str]:
    """Say what stands in parentheses where methods have so many seeds."""
    counts = {len(seeds) for seeds in groups}
    notes = []
    if max(counts, default=0) >= ENOUGH:
        notes.append("In parentheses: half of the 95 % interval over seeds (Student's t).")
    if 2 in counts:
        notes.append("In parentheses, of two seeds: how far each is from their mean; no interval.")
    return notes


def of_accuracy(results: Results) -> dict[str, Callable[[Accuracy], Value]]:
    """Return the columns that every accuracy of these results has: heading → what stands there."""

    def at(by_step: Callable[[Accuracy], ByStep], step: str) -> Callable[[Accuracy], Value]:
        return lambda found: by_step(found).get(step)

    picks: dict[str, Callable[[Accuracy], Value]] = {
        "Own data": lambda found: found.own,
        "Bottom decile": lambda found: found.own.bottom_decile,
    }
    degrees = steps(results, lambda found: found.shift)
    for degree in degrees:
        picks[f"{degree} % shift"] = at(lambda found: found.shift, str(degree))
    if degrees:
        picks["All shifts"] = at(lambda found: found.shift, AVERAGED)
    if steps(results, lambda found: found.pooled):
        picks["Pooled shifts"] = at(lambda found: found.pooled, AVERAGED)
    if kinds(results):
        picks["Corrupt images"] = at(lambda found: found.corruption.get(AVERAGED, {}), AVERAGED)
    return picks


def columns(results: Results) -> dict[str, Pick]:
    """Return the columns of the metric: heading → what of a summary stands there."""

    def of_summary(pick: Callable[[Accuracy], Value]) -> Pick:
        return lambda summary: pick(summary.accuracy)

    def of_metric(name: str) -> Pick:
        return lambda summary: summary.metrics[name].own if name in summary.metrics else None

    picks = {heading: of_summary(pick) for heading, pick in of_accuracy(results).items()}
    picks |= {metric_title(name): of_metric(name) for name in _metrics(results)}
    if any(result.novel for result in results):
        picks["Novel clients"] = lambda s: s.novel.accuracy.own if s.novel else None
    return picks


def _metrics(results: Results) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result.metrics))


def metric_title(name: str) -> str:
    """Write the name of a further metric: "macro_f1" is "Macro F1"."""
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:].replace(" f1", " F1") if words != "auroc" else "AUROC"


def steps(results: Results, by_step: Callable[[Accuracy], ByStep]) -> list[int]:
    """Return the degrees of shift, or severities, above 0 that any result was evaluated at."""
    found = {int(key) for each in results for key in by_step(each.accuracy) if key.isdigit()}
    return sorted(found - {0})


def kinds(results: Results) -> list[str]:
    """Return the kinds of corruption that results were evaluated under."""
    named = {kind: None for result in results for kind in result.accuracy.corruption}
    return [kind for kind in named if kind != AVERAGED]


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
    form, picks = number_format(results), columns(results)

    def gap(seeds: Results) -> dict[str, str]:
        if "Novel clients" not in picks:
            return {}
        return {"Gap": show(figure(seeds, lambda s: s.novel.gap if s.novel else None), form)}

    return [
        {"Method": seeds[0].title}
        | {heading: show(figure(seeds, pick), form) for heading, pick in picks.items()}
        | gap(seeds)
        | {
            "MB": show_cost(mean(seeds, lambda s: s.costs.train.bytes.both), 1e6),
            "GFLOP": show_cost(mean(seeds, lambda s: s.costs.train.flops.masked), 1e9),
            "Density": show_cost(mean(seeds, lambda s: s.model.density)),
        }
        for seeds in groups
    ]


def best(results: Results) -> dict[str, list[int]]:
    """Return for each column of the metric the rows with the best value as shown."""
    groups = list(by_method(results).values())
    form = number_format(results)
    lower, found = _lower_is_better(results), {}
    for heading, pick in columns(results).items():
        sign = -1 if heading in lower else 1
        values = {row: mean(seeds, pick) for row, seeds in enumerate(groups)}
        known = {row: value for row, value in values.items() if value is not None}
        if known:
            top = format(max(known.values(), key=lambda value: sign * value), form)
            found[heading] = [row for row, value in known.items() if format(value, form) == top]
    return found


def _lower_is_better(results: Results) -> set[str]:
    """Return the columns in which a smaller figure is the better one."""
    further = {metric_title(n): m for each in results for n, m in each.metrics.items()}
    own = columns(results).keys() - further.keys() if results[0].better == "lower" else set()
    return own | {heading for heading, metric in further.items() if metric.better == "lower"}


def winners(results: Results) -> dict[str, str]:
    """Return who is best in each column of the metric; all of them where values tie as shown."""
    titles = [seeds[0].title for seeds in by_method(results).values()]
    return {
        heading: " and ".join(titles[row] for row in leaders)
        for heading, leaders in best(results).items()
    }


def heading(results: Results) -> str:
    """Return what the results are about, in one line."""
    first = results[0]
    name = "Accuracy (%)" if is_percent(results) else first.metric.capitalize()
    seeds = sorted({result.seed for result in results})
    facts = [name, first.data, f"{first.clients:,} clients", f"{first.rounds:,} rounds"]
    facts.append(("seeds " if len(seeds) > 1 else "seed ") + ", ".join(map(str, seeds)))
    return " · ".join(fact for fact in facts if fact)


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
    notes += _about_corruption(results) + blocks.notes(results)
    notes += sorted({result.data_note for result in results if result.data_note})
    done = {result.preprocessing.text for result in results if result.preprocessing}
    notes += [f"Before the network reads them, {text}." for text in sorted(done)]
    notes.append(
        "MB (10⁶ bytes, down and up) and GFLOP (as the masks allow) are per client, over all of"
        " training."
    )
    if "Novel clients" in columns(results):
        notes.append(
            "Novel clients took no part in training; the gap is what the others' own data have"
            " ahead of theirs."
        )
    networks = {seeds[0].title: seeds[0].network for seeds in groups}
    usual = Counter(networks.values()).most_common(1)[0][0]
    other = [f"{name} on {found}" for name, found in networks.items() if found != usual]
    if other:
        notes.append(f"Trained on another network than the rest ({usual}): {', '.join(other)}.")
    lost = [seeds[0].title for seeds in groups if any(s.diverged is not None for s in seeds)]
    if lost:
        notes.append(f"Diverged, so that the figures mean nothing: {', '.join(lost)}.")
    refused = {seeds[0].title: sum(s.refused for s in seeds) for seeds in groups}
    some = [f"{name} {count}" for name, count in refused.items() if count]
    if some:
        notes.append(
            f"Updates that were refused (metrics.jsonl has the reasons): {', '.join(some)}."
        )
    for spent, when in ((of_setup, "before training"), (of_adapt, "before use")):
        costs = [
            f"{seeds[0].title} {show_cost(mean(seeds, spent(lambda s: s.bytes.both)), 1e6)} MB and"
            f" {show_cost(mean(seeds, spent(lambda s: s.flops.masked)), 1e9)} GFLOP"
            for seeds in groups
            if mean(seeds, spent(lambda s: s.flops.masked))
        ]
        if costs:
            notes.append(f"Counted apart, once {when}: {'; '.join(costs)}.")
    return notes


def of_setup(amount: Callable[[Spent], float]) -> Pick:
    """Pick an amount of what clients do once before their first round, where there is any."""
    return lambda summary: amount(summary.costs.setup) if summary.costs.setup else None


def of_adapt(amount: Callable[[Spent], float]) -> Pick:
    """Pick an amount of what a view costs before use, where it costs any."""
    return lambda summary: amount(summary.costs.adapt) if summary.costs.adapt else None


def _about_corruption(results: Results) -> list[str]:
    """Say what images were corrupted by, and whose corrupted images they are."""
    named = kinds(results)
    if not named:
        return []
    few = " and ".join(named).replace("_", " ")
    which = few if len(named) < 3 else f"{len(named)} kinds of corruption"
    first = steps(results, lambda found: found.corruption.get(named[0], {}))
    severities = ", ".join(map(str, first))
    sources = sorted({result.corrupted_images for result in results if kinds([result])})
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
    parts = blocks.parted(body, by_method(results).values())
    for title, row in ((title, row) for title, part in parts.items() for row in part):
        if len(parts) > 1 and row is parts[title][0]:
            lines.append(f"| *{title}* |" + " |" * (len(headings) - 1))
        values = [f"**{cell.value}**" if cell.best else cell.value for cell in row]
        texts = [f"{value} {cell.rest}".strip() for value, cell in zip(values, row, strict=True)]
        lines.append("| " + " | ".join(text.replace("|", r"\|") for text in texts) + " |")
    notes = heading(results) + ". " + " ".join(footnotes(results))
    return "\n".join([*lines, "", notes, "", *_markdown_kinds(results)])


def by_kind(results: Results) -> dict[str, list[Figure | None]]:
    """Return every method's figure under each kind of corruption, over all severities."""
    groups = by_method(results).values()

    def over_severities(kind: str) -> Pick:
        return lambda summary: summary.accuracy.corruption.get(kind, {}).get(AVERAGED)

    return {
        kind: [figure(seeds, over_severities(kind)) for seeds in groups]
        for kind in [*kinds(results), AVERAGED] * bool(kinds(results))
    }


def kind_name(kind: str) -> str:
    """Write the name of a kind of corruption, or of all of them."""
    name = kind.replace("_", " ").capitalize().replace("Jpeg", "JPEG")
    return "All kinds" if kind == AVERAGED else name


def _markdown_kinds(results: Results) -> list[str]:
    table, form = by_kind(results), number_format(results)
    if not table:
        return []
    titles = [seeds[0].title.replace("|", r"\|") for seeds in by_method(results).values()]
    lines = [f"| Corruption | {' | '.join(titles)} |", "|---" + "|--:" * len(titles) + "|"]
    for kind, found in table.items():
        lines.append(f"| {kind_name(kind)} | {' | '.join(show(each, form) for each in found)} |")
    return [*lines, ""]
