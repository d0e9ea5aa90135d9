"""Results as tables: a row per method, its std over clients, an interval, and who is ahead."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from masquerade.errors import MasqueradeError, counted, listed
from masquerade.report import blocks, decimals, listing
from masquerade.report.intervals import (
    ENOUGH,
    FEWEST,
    Interval,
    Trained,
    of_difference,
    of_mean,
    over_seeds,
)
from masquerade.report.listing import Cell, Listing
from masquerade.results import AVERAGED, Accuracy, ClientFigures, Spent, Statistics, Summary
from masquerade.results.accuracy import ByStep
from masquerade.results.alarms import alarms
from masquerade.results.lead import led
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


@dataclass(frozen=True)
class Ahead:
    """How far the best row of a block is ahead of another one."""

    best: int
    of: int
    """The next best row; of rows that it is not separated from, the best."""
    gap: Interval
    """Above 0 where the best one is ahead, also where less is better."""


@dataclass(frozen=True)
class Lead:
    """Whether a row of a column is better than all others of its block."""

    rows: frozenset[int]
    """The rows that a paired 95 % interval separates from every other one of their block."""
    by: frozenset[str]
    """What was paired: "seeds", "clients"; empty where there was nothing to compare."""
    ahead: tuple[Ahead, ...] = ()
    """For every block whose best row was compared: how far it is ahead."""


def leads(results: Results) -> dict[str, Lead]:
    """Return for each column of the metric who is ahead, as far as intervals can tell.

    Rows are compared within their block alone: rules may look at what methods cannot. The majority
    class is no method, and not compared.
    """
    groups = list(by_row(results).values())
    lower, behind = lower_is_better(results), of_clients(results)
    parts = blocks.parted(range(len(groups)), groups).values()

    def lead(name: str, pick: Pick) -> Lead:
        found = [trainings(seeds, pick, behind.get(name)) for seeds in groups]
        sign = -1 if name in lower else 1
        each = [
            _lead({row: found[row] for row in part if not is_baseline(groups[row])}, sign)
            for part in parts
        ]
        rows = frozenset(row for row, _, _ in each if row is not None)
        by = frozenset(by for _, pairs, _ in each for by in pairs)
        return Lead(rows, by, tuple(ahead for _, _, ahead in each if ahead))

    return {name: lead(name, pick) for name, pick in columns(results).items()}


def _lead(
    rows: Mapping[int, Mapping[int, Trained]], sign: int
) -> tuple[int | None, set[str], Ahead | None]:
    """Return the row that is ahead of all others, if there is one, what was paired, how far."""
    means = {
        row: sign * statistics.fmean(each.figure for each in found.values())
        for row, found in rows.items()
        if found
    }
    ranked = sorted(means, key=lambda row: -means[row])
    by: set[str] = set()
    next_best: Ahead | None = None
    # The next best first: it is the one that a lead most often fails against.
    for row in ranked[1:]:
        gap = of_difference(rows[ranked[0]], rows[row])
        if gap is None:
            return None, by, None
        by |= {gap.by}
        ahead = Ahead(ranked[0], row, gap if sign > 0 else gap.turned())
        if gap.sign != sign:
            return None, by, ahead
        next_best = next_best or ahead
    return (ranked[0] if by else None), by, next_best


def lower_is_better(results: Results) -> set[str]:
    """Return the columns in which a smaller figure is the better one."""
    others = {metric_title(n): m for each in results for n, m in each.metrics.items()}
    own = columns(results).keys() - others.keys() if results[0].better == "lower" else set()
    return own | {heading for heading, metric in others.items() if metric.better == "lower"}


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


def footnotes(results: Results) -> list[str]:
    """Return the sentences that a reader of the table needs."""
    spread = (
        "± is the standard deviation over clients; under shift a client's figure is its mean over"
        " the partners drawn."
    )
    groups = by_method(results).values()
    notes = [" ".join([spread, *_about_intervals(results)]), *about_bold(results)]
    notes += _about_lead(results)
    of = splits(results)
    if of != "test":
        notes.append(
            f"Measured on {of} data (evaluate.split): what settings were chosen by is"
            " better there than on samples that nobody has looked at."
        )
    if BY_SAMPLES in columns(results):
        notes.append(
            f"Own data is the mean over clients; by samples it is the mean over the {of} samples of"
            " all clients, so that a client counts by how many it has."
        )
    notes.append("Bottom decile: nine clients in ten do at least as well.")
    notes += about_defined(results, lambda summary: summary.accuracy, lambda s: s.metrics)
    notes += _about_majority(results)
    if "Pooled shifts" in columns(results):
        notes.append(
            "Shifted samples come from one other client, pooled ones from all others; both are"
            " averaged over all degrees, 0 % included."
        )
    notes += _about_corruption(results) + blocks.notes(results)
    notes += sorted({result.data_note for result in results if result.data_note})
    done = {result.preprocessing.text for result in results if result.preprocessing}
    notes += [f"Before the network reads them, {text}." for text in sorted(done)]
    if any(result.class_weights for result in results):
        notes.append("In the loss, classes weigh by how rare they are (train.class_weights).")
    notes.append(
        "MB (10⁶ bytes, down and up) and GFLOP (as the masks allow) are per client, over all of"
        " training; only products (matrix products and convolutions) are counted as FLOPs."
    )
    if "Novel clients" in columns(results):
        notes.append(
            "Novel clients took no part in training; the gap is how far the others are ahead of"
            " them on own data."
        )
    networks = {seeds[0].title: seeds[0].network for seeds in groups}
    usual = Counter(networks.values()).most_common(1)[0][0]
    other = [f"{name} on {found}" for name, found in networks.items() if found != usual]
    if other:
        notes.append(f"Trained on another network than the rest ({usual}): {', '.join(other)}.")
    if any(found and found.lost for row in figures(results) for found in row.values()):
        notes.append(
            "Where seeds diverged, or have figures that are not finite, no mean is given: one of"
            " the other seeds would hide them."
        )
    refused = {seeds[0].title: sum(s.refused for s in seeds) for seeds in groups}
    some = [f"{name} {count}" for name, count in refused.items() if count]
    if some:
        notes.append(
            f"Updates that were refused (metrics.jsonl has the reasons): {', '.join(some)}."
        )
    return notes + _about_apart(results)


def about_defined(
    results: Results,
    own: Callable[[Summary], Accuracy | None],
    others: Callable[[Summary], Mapping[str, Accuracy]],
    clients: Callable[[Summary], int] = lambda summary: summary.clients,
) -> list[str]:
    """Say over how many clients means are taken, where that is not over all of them."""
    counts: dict[str, set[tuple[int, int]]] = {}
    for summary in results:
        named = {metric_title(name): found for name, found in others(summary).items()}
        for heading, found in ({"Own data": own(summary)} | named).items():
            if found is not None and found.own.defined is not None:
                counts.setdefault(heading, set()).add((found.own.defined, clients(summary)))
    told = [
        f"{heading} {_span(found)}{_without(results, heading)}"
        for heading, found in counts.items()
        if any(some < all for some, all in found)
    ]
    if not told:
        return []
    return [
        "A mean is over the clients for which there is a figure (AUROC and balanced accuracy need"
        f" a {splits(results)} set of two classes): {', '.join(told)}."
    ]


def _without(results: Results, heading: str) -> str:
    """Name the clients that have no figure in a column; "" where the data do not name them."""
    named: dict[str, None] = {}
    for summary in results:
        group = summary.per_client
        figures = of_clients([summary]).get(heading)
        if group is not None and group.names and figures is not None:
            own = figures(group)[0]
            named |= {
                name: None for name, one in zip(group.names, own, strict=False) if one is None
            }
    return f" (not {listed(named)})" if named else ""


def _about_majority(results: Results) -> list[str]:
    """Say what the majority class is, and which methods are not better."""
    groups = by_row(results)
    if MAJORITY not in groups:
        return []
    text = (
        "Majority class: each client answers the most frequent label of its own training samples,"
        " without a model."
    )
    sign = -1 if results[0].better == "lower" else 1
    own = {name: mean(seeds, lambda each: each.accuracy.own.mean) for name, seeds in groups.items()}
    least = own.pop(MAJORITY)
    below = [
        groups[name][0].title
        for name, value in own.items()
        if value is not None and least is not None and sign * (value - least) <= 0
        if not groups[name][0].scope
    ]
    if below:
        text += f" Not above it: {listed(below)}."
        if results[0].metric == "accuracy":
            text += " Where classes are rare, evaluate.metrics=balanced_accuracy says more."
    return [text]


def _span(found: set[tuple[int, int]]) -> str:
    """Write how many clients of all: "17 of 20", or "17 to 19 of 20" where trainings differ."""
    some, all = sorted({each for each, _ in found}), max(each for _, each in found)
    return " to ".join(map(str, dict.fromkeys((some[0], some[-1])))) + f" of {all}"


def _about_apart(results: Results) -> list[str]:
    """Say what clients are sent and compute before training and before use; the same said once."""
    notes = []
    apart: dict[str, tuple[Pick, Pick]] = {
        "before training": (bytes_before, of_setup(lambda spent: spent.flops.masked)),
        "before use": (
            of_adapt(lambda spent: spent.bytes.both),
            of_adapt(lambda spent: spent.flops.masked),
        ),
    }
    for when, (bytes, flops) in apart.items():
        costs: dict[str, list[str]] = {}
        for seeds in by_method(results).values():
            sent, done = mean(seeds, bytes), mean(seeds, flops)
            words = [show_bytes(sent)] if sent else []
            words += [f"{show_cost(done, 1e9)} GFLOP"] * bool(done)
            if words:
                costs.setdefault(" and ".join(words), []).append(seeds[0].title)
        told = "; ".join(f"{', '.join(titles)} {text}" for text, titles in costs.items())
        if told:
            notes.append(f"Counted apart, once {when}: {told}.")
    return notes


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


def _about_intervals(results: Results) -> list[str]:
    """Say what stands in parentheses: what it is taken over, and what it says nothing of."""
    taken = {found.by for row in figures(results) for found in row.values() if found}
    notes = []
    if "seeds" in taken:
        notes.append("In parentheses: half of the 95 % interval over seeds (Student's t).")
    if "clients" in taken:
        few = [len(seeds) for seeds in by_method(results).values() if len(seeds) < ENOUGH]
        some = ", of fewer than three seeds" if "seeds" in taken else ""
        notes.append(
            f"In parentheses{some}: half of the 95 % interval over the clients of"
            f" {'one training' if max(few) == 1 else 'two trainings'} (bootstrap), which says"
            " nothing about other trainings or partitions."
        )
    return notes


UNTESTED = f"a paired interval takes {ENOUGH} seeds, or {FEWEST} clients"
_PAIRS = {"seeds": "trainings of the same seed", "clients": "the same clients of a training"}


def _about_lead(results: Results) -> list[str]:
    """Say what the columns of a table are of, where there are further metrics."""
    if not further(results):
        return []
    name = metric_title(results[0].metric)
    return [
        f"{name} leads: shift, the bottom decile and figures of clients are of it too. The first of"
        " evaluate.metrics does, or that of report --metric; all metrics are of own data."
    ]


def about_bold(results: Results) -> list[str]:
    """Say what is bold and why, or why nothing is; of a single method there is nothing to say."""
    if len(by_method(results)) < 2:
        return []
    found = leads(results).values()
    pairs = " or ".join(_PAIRS[by] for by in _PAIRS if any(by in lead.by for lead in found))
    if not pairs:
        return [f"Nothing is bold, as leads cannot be tested: {UNTESTED}."]
    if not any(lead.rows for lead in found):
        return [
            "Nothing is bold: in no column does a paired 95 % interval separate the best row from"
            f" every other (pairs are {pairs})."
        ]
    return [
        "Bold is the best row of a column where a paired 95 % interval separates it from every"
        f" other row that has a figure (pairs are {pairs}); where nothing is bold, no lead is"
        " separated."
    ]


def cells(results: Results) -> tuple[list[str], list[list[Cell]]]:
    """Return the headings and the rows of the table in a form that is easy to set."""
    body, ahead = rows(results), leads(results)
    table = []
    for number, row in enumerate(body):
        parts = {name: split(text) for name, text in row.items()} | {"Method": (row["Method"], "")}
        table.append(
            [
                Cell(*part, name in ahead and number in ahead[name].rows)
                for name, part in parts.items()
            ]
        )
    return [title_of(results, heading) for heading in body[0]], table


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


def markdown(results: Results) -> str:
    """Return the table in Markdown, values that lead bold, with its footnotes."""
    return listing.markdown(listings(results))


def listings(results: Results) -> list[Listing]:
    """Return the table with its footnotes, and that of corruptions where there are some."""
    results = led(results)
    headings, body = cells(results)
    parts = blocks.parted(range(len(body)), by_row(results).values())
    begins = {rows[0]: title for title, rows in parts.items()} if len(parts) > 1 else None
    warned = [f"{text}." for text in alarms(results)]
    notes = " ".join([f"{heading(results)}.", *warned, *footnotes(results)])
    return [Listing("", headings, body, notes, begins), *_kinds(results)]


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


def _kinds(results: Results) -> list[Listing]:
    table, form = by_kind(results), number_format(results)
    titles = [seeds[0].title for seeds in by_row(results).values()]
    rows = [
        [kind_name(kind), *(show(each, form) for each in found)] for kind, found in table.items()
    ]
    return [Listing("", ["Corruption", *titles], rows)] if rows else []
