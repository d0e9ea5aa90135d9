"""Results as figures: a row per method, a column per measure, std over clients, an interval."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from masquerade.errors import MasqueradeError, counted
from masquerade.report import blocks, decimals
from masquerade.report.intervals import (
    ENOUGH,
    Trained,
    of_mean,
    over_seeds,
)
from masquerade.results import AVERAGED, Accuracy, ClientFigures, Spent, Statistics, Summary
from masquerade.results.accuracy import ByStep
from masquerade.results.metric_names import metric_title
from masquerade.results.summary import MAJORITY, splits

Results = Sequence[Summary]
"""Summaries of one or several methods and seeds."""
Value = Statistics | float | None
Pick = Callable[[Summary], Value]
"""From a summary to a figure; statistics bring their standard deviation along."""
Weighted = tuple[Sequence[float | None], Sequence[int]]
"""One figure per client, and what clients count for; all the same where that is empty."""
ClientPick = Callable[[ClientFigures], Weighted]
"""From a summary to the clients' figures that a figure is the mean of."""

ABSENT = "–"
BY_SAMPLES = "Own data, by samples"

_COMMON = ("data", "clients", "rounds", "metric", "better")


@dataclass(frozen=True)
class Figure:
    """One number of one method, over all of its seeds."""

    mean: float
    std: float | None
    """The standard deviation over clients, averaged over seeds."""
    half: float | None
    """Half of the 95 % interval of the mean, where there is one."""
    by: str = ""
    """What the interval is taken over: "seeds" or "clients"."""
    lost: str = ""
    """Why there is no mean, though there are seeds: "diverged (1 of 3)"."""

    def show(self, form: str) -> str:
        """Write the figure as `mean ± std (half)`, leaving out what is not there."""
        if self.lost:
            return self.lost
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


def by_row(results: Results) -> dict[str, list[Summary]]:
    """Group results as rows of a table: the majority class first, where it is known, then methods.

    The majority class is the same for all methods of a seed.
    """
    methods, found = by_method(results), dict[int, Summary]()
    for seeds in methods.values():
        for summary in seeds:
            row = summary.majority_row()
            if row is not None:
                found.setdefault(row.seed, row)
    return ({MAJORITY: list(found.values())} if found else {}) | methods


def is_baseline(seeds: Results) -> bool:
    """Tell whether a row is the majority class: no method, and never said to lead."""
    return seeds[0].scope == "baseline"


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
    """Tell whether the metric is given in percent, as accuracy is."""
    return results[0].percent


def number_format(results: Results) -> str:
    """Return the format of the metric's values: of percent one decimal, else by their spread."""
    if is_percent(results):
        return ".1f"
    return _by_spread([each.accuracy for seeds in by_row(results).values() for each in seeds])


def _by_spread(found: Sequence[Accuracy]) -> str:
    """Return the format that tells apart what accuracies have on own data and over shifts."""
    known = [at for each in found for at in (each.own, each.shift.get(AVERAGED)) if at is not None]
    return decimals.number_format([at.mean for at in known], [at.std for at in known])


def _number(value: Value) -> float | None:
    return value.mean if isinstance(value, Statistics) else value


def numbers(seeds: Results, pick: Pick) -> list[float]:
    """Return what the seeds have, finite or not; a seed that has nothing there is left out."""
    return [value for value in map(_number, map(pick, seeds)) if value is not None]


def mean(seeds: Results, pick: Pick) -> float | None:
    """Return the mean over seeds; none where it is not finite."""
    values = numbers(seeds, pick)
    found = statistics.fmean(values) if values else math.nan
    return found if math.isfinite(found) else None


def figure(seeds: Results, pick: Pick, clients: ClientPick | None = None) -> Figure | None:
    """Return a figure over seeds, with the standard deviation over clients where it has one.

    `clients` is what it is a mean of. A seed that diverged, or whose figure is not finite, is not
    left out of the mean: there is none then.
    """
    values = numbers(seeds, pick)
    if not values:
        return None
    if text := lost(seeds, pick):
        return Figure(math.nan, None, None, lost=text)
    stds = [found.std for found in map(pick, seeds) if isinstance(found, Statistics)]
    known = [std for std in stds if math.isfinite(std)]
    std = statistics.fmean(known) if known else None
    interval = of_mean(list(trainings(seeds, pick, clients).values()))
    half, by = (None, "") if interval is None else (interval.half, interval.by)
    return Figure(statistics.fmean(values), std, half, by)


def lost(seeds: Results, pick: Pick) -> str:
    """Say how many seeds have figures that mean nothing, if any."""
    given = [seed for seed in seeds if pick(seed) is not None]
    finite = [math.isfinite(value) for value in numbers(given, pick)]
    diverged = [seed.diverged is not None for seed in given]
    if not any(diverged) and all(finite):
        return ""
    count = sum(gone or not fine for gone, fine in zip(diverged, finite, strict=True))
    return f"{'diverged' if any(diverged) else 'non-finite'} ({count} of {len(given)})"


def trainings(seeds: Results, pick: Pick, clients: ClientPick | None) -> dict[int, Trained]:
    """Return by seed what trainings have in a column; nothing where that means nothing."""
    found = {seed.seed: _number(pick(seed)) for seed in seeds}
    if lost(seeds, pick):
        return {}
    listed = {seed.seed: _clients(seed, clients) for seed in seeds}
    return {
        seed: Trained(value, *listed[seed]) for seed, value in found.items() if value is not None
    }


def _clients(
    summary: Summary, pick: ClientPick | None
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return by client the figures that there are, and what clients count for."""
    if pick is None or summary.per_client is None:
        return {}, {}
    ids, (figures, weights) = summary.per_client.ids, pick(summary.per_client)
    pairs = zip(ids, figures, strict=False)
    known = {id: figure for id, figure in pairs if figure is not None}
    return known, dict(zip(ids, weights, strict=False))


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of the mean by Student's t; of two values half their range.

    The interval of two would be nearly thirteen times as wide as they are apart: it says nothing.
    """
    if len(values) < ENOUGH:
        return abs(values[0] - values[1]) / 2 if len(values) == 2 else None
    return over_seeds(values).half


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

    picks: dict[str, Callable[[Accuracy], Value]] = {"Own data": lambda found: found.own}
    if any(result.accuracy.own.weighted is not None for result in results):
        picks[BY_SAMPLES] = lambda found: found.own.weighted
    picks["Bottom decile"] = lambda found: found.own.bottom_decile
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


def of_clients(results: Results) -> dict[str, ClientPick]:
    """Return what clients have in the columns that are means over them."""
    picks: dict[str, ClientPick] = {
        "Own data": lambda found: (found.own, ()),
        BY_SAMPLES: lambda found: (found.own if found.tests else (), found.tests),
        "All shifts": client_step("shift", AVERAGED),
        "Pooled shifts": client_step("pooled", AVERAGED),
    }
    degrees = steps(results, lambda found: found.shift)
    picks |= {f"{at} % shift": client_step("shift", str(at)) for at in degrees}
    return picks | {metric_title(name): _client_metric(name) for name in further(results)}


def _client_metric(name: str) -> ClientPick:
    """Pick clients' figures of a further metric."""
    return lambda found: (found.metrics[name].own if name in found.metrics else (), ())


def client_step(kind: str, step: str) -> ClientPick:
    """Pick clients' figures at a degree of "shift", or of "pooled" shift."""
    return lambda found: ((found.shift if kind == "shift" else found.pooled).get(step, ()), ())


def columns(results: Results) -> dict[str, Pick]:
    """Return the columns of the metric: heading → what of a summary stands there.

    What further metrics were asked for stands right beside it, and shift behind them.
    """

    def of_summary(pick: Callable[[Accuracy], Value]) -> Pick:
        return lambda summary: pick(summary.accuracy)

    def of_metric(name: str) -> Pick:
        return lambda summary: own_of(summary.metrics.get(name))

    own, *rest = ((heading, of_summary(pick)) for heading, pick in of_accuracy(results).items())
    asked = ((metric_title(name), of_metric(name)) for name in further(results))
    picks = dict((own, *asked, *rest))
    if any(result.novel for result in results):
        picks["Novel clients"] = lambda s: own_of(s.novel.accuracy if s.novel else None)
    return picks


def own_of(found: Accuracy | None) -> Statistics | None:
    """Return the figure on own data; none where no client has one, as a metric may be undefined."""
    if found is None or (found.own.bottom_decile is None and math.isnan(found.own.mean)):
        return None
    return found.own


def further(results: Results) -> list[str]:
    """Name the further metrics that any of the results has."""
    return list(dict.fromkeys(name for result in results for name in result.metrics))


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
    if 0 < value < 1e-4:
        # Two digits, and no exponent.
        return format(value, f".{1 - math.floor(math.log10(value))}f")
    return format(value, ".2f" if value >= 0.1 else ".2g")


def show_bytes(amount: float) -> str:
    """Write bytes in the unit that a person would give them in."""
    for size, unit in ((1e6, "MB"), (1e3, "kB")):
        if amount >= size:
            value = amount / size
            return f"{value:.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    return f"{amount:.0f} bytes"


def rows(results: Results) -> list[dict[str, str]]:
    """Return one row per method, heading → text, seeds taken together."""
    groups = by_row(results).values()
    form, forms, picks = number_format(results), formats(results), columns(results)
    shown = figures(results)

    def gap(seeds: Results) -> dict[str, str]:
        if "Novel clients" not in picks:
            return {}
        return {"Gap": show(figure(seeds, lambda s: s.novel.gap if s.novel else None), form)}

    return [
        {"Method": seeds[0].title}
        | {heading: show(found, forms.get(heading, form)) for heading, found in each.items()}
        | gap(seeds)
        | _costs([] if is_baseline(seeds) else seeds)
        for seeds, each in zip(groups, shown, strict=True)
    ]


def _costs(seeds: Results) -> dict[str, str]:
    return {
        "MB": show_cost(mean(seeds, lambda s: s.costs.train.bytes.both), 1e6),
        "GFLOP": show_cost(mean(seeds, lambda s: s.costs.train.flops.masked), 1e9),
        "Density": show_cost(mean(seeds, lambda s: s.model.density)),
    }


def formats(results: Results) -> dict[str, str]:
    """Return the formats of columns that are in another unit than the rest."""
    found: dict[str, list[Accuracy]] = {}
    for each in chain(*by_row(results).values()):
        for name, metric in each.metrics.items():
            if not metric.percent:
                found.setdefault(metric_title(name), []).append(metric)
    return {heading: _by_spread(those) for heading, those in found.items()}


def figures(results: Results) -> list[dict[str, Figure | None]]:
    """Return every method's figure in every column of the metric."""
    picks, behind = columns(results), of_clients(results)
    return [
        {name: figure(seeds, pick, behind.get(name)) for name, pick in picks.items()}
        for seeds in by_row(results).values()
    ]


def heading(results: Results) -> str:
    """Return what the results are about, in one line."""
    first = results[0]
    name = metric_title(first.metric) + (" (%)" if is_percent(results) else "")
    seeds = sorted({result.seed for result in results})
    facts = [name, first.data, counted(first.clients, "client"), counted(first.rounds, "round")]
    facts.append(("seeds " if len(seeds) > 1 else "seed ") + ", ".join(map(str, seeds)))
    # Figures are of test data unless something else is said.
    facts.append("" if splits(results) == "test" else f"{splits(results)} data")
    return " · ".join(fact for fact in facts if fact)


def bytes_before(summary: Summary) -> float:
    """Return what a client is sent and sends once before training.

    It is for a setup, and for sums and counts that preprocessing and class weights are found from.
    """
    parts = (summary.costs.setup, summary.preprocessing, summary.class_weights)
    return sum(part.bytes.both for part in parts if part is not None)


def of_setup(amount: Callable[[Spent], float]) -> Pick:
    """Pick an amount of what clients do once before their first round, where there is any."""
    return lambda summary: amount(summary.costs.setup) if summary.costs.setup else None


def of_adapt(amount: Callable[[Spent], float]) -> Pick:
    """Pick an amount of what a view costs before use, its download and training, if any."""
    return lambda summary: amount(summary.costs.adapt) if summary.costs.adapt else None


def title_of(results: Results, heading: str) -> str:
    """Return what stands above a column: beside further metrics the first has its name."""
    if heading != "Own data" or not further(results):
        return heading
    return metric_title(results[0].metric)


def between(headings: Iterable[str]) -> list[str]:
    """Return the columns of shift that lie between none and the most."""
    return [heading for heading in headings if heading.endswith(" % shift")][:-1]


def split(text: str) -> tuple[str, str]:
    """Part a shown figure into its value and what follows it."""
    value, _, rest = text.partition(" ")
    return value, rest


def by_kind(results: Results) -> dict[str, list[Figure | None]]:
    """Return every method's figure under each kind of corruption, over all severities."""
    groups = by_row(results).values()

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
