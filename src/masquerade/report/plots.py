"""Results as figures: what a method is worth over rounds, shifts, corruptions, bytes, clients."""

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from masquerade.cost.bandwidth import FEDMASK, Bandwidth, unit
from masquerade.report import clients
from masquerade.report.drawing import (
    INK,
    Line,
    Point,
    draw,
    height_of_rows,
    lines_of,
    metric,
    name_rows,
    paint_bands,
    paint_lines,
    paint_rows,
    paint_traffic,
)
from masquerade.report.tables import Pick, Results, by_method, is_percent, kinds, mean, steps
from masquerade.results import AVERAGED, Accuracy, Statistics, Summary
from masquerade.results.accuracy import ByStep
from masquerade.results.json_records import Json
from masquerade.results.lead import led, with_lead

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figures(
    results: Results, rate: Bandwidth = FEDMASK, only: Collection[str] | None = None
) -> dict[str, str]:
    """Return as SVG, by name, what the results allow of all figures, or of those that are named."""
    shift, pooled = (
        f"Test data from {who} (%)" for who in ("one other client", "all other clients")
    )
    drawing: dict[str, Callable[[], str]] = {
        "rounds": lambda: over_rounds(results),
        "traffic": lambda: over_traffic(results),
        "time": lambda: over_time(results, rate),
        "clients": lambda: over_clients(results),
        "gains": lambda: over_gains(results),
        "shift": lambda: over_shift(results, "shift", shift),
        "pooled": lambda: over_shift(results, "pooled", pooled),
        "severity": lambda: over_severity(results),
        "gates": lambda: over_gates(results),
    }
    drawn = {name: draw() for name, draw in drawing.items() if only is None or name in only}
    return {name: svg for name, svg in drawn.items() if svg}


def over_rounds(results: Results) -> str:
    """Draw the metric on own data against rounds; empty where every method has one point alone."""
    # Between rounds the metric of the task is measured, also where another one leads.
    measured = led(with_lead(results, results[0].measured or results[0].metric))
    lines = lines_of(measured, _history)
    if all(len(line.points) < 2 for line in lines):
        return ""

    def paint(axes: "Axes") -> None:
        axes.set(xlabel="Round", ylabel=metric(measured, "on own data"))
        paint_lines(axes, lines)
        axes.locator_params(axis="x", integer=True)

    return draw("rounds", "Own data against rounds", lines, paint)


def over_shift(results: Results, kind: str, label: str) -> str:
    """Draw the metric against the degree of shift, ± std over clients; empty without shift."""

    def by_degree(found: Accuracy) -> ByStep:
        return found.shift if kind == "shift" else found.pooled

    degrees = steps(results, by_degree)
    if not degrees:
        return ""
    picks = {float(at): _at(by_degree, str(at)) for at in (0, *degrees)}
    return _over_steps(results, kind, label, picks)


def over_severity(results: Results) -> str:
    """Draw the metric against the severity of corruption, ± std over clients; 0 is own data."""
    found = kinds(results)
    if not found:
        return ""

    def over_kinds(accuracy: Accuracy) -> ByStep:
        return accuracy.corruption.get(AVERAGED, {})

    severities = steps(results, lambda accuracy: accuracy.corruption.get(found[0], {}))
    picks: dict[float, Callable[[Summary], Statistics | None]] = {0.0: lambda s: s.accuracy.own}
    picks |= {float(at): _at(over_kinds, str(at)) for at in severities}
    return _over_steps(results, "severity", "Severity of corruption, over all kinds", picks)


def _at(by_step: Callable[[Accuracy], ByStep], step: str) -> Callable[[Summary], Statistics | None]:
    return lambda summary: by_step(summary.accuracy).get(step)


def _over_steps(
    results: Results,
    name: str,
    label: str,
    picks: Mapping[float, Callable[[Summary], Statistics | None]],
) -> str:
    """Draw the metric at some steps, each of which has a mean and a standard deviation."""

    def at(seeds: Results, amount: Callable[[Statistics], float]) -> list[Point]:
        def read(pick: Callable[[Summary], Statistics | None]) -> Pick:
            def value(summary: Summary) -> float | None:
                found = pick(summary)
                return None if found is None else amount(found)

            return value

        found = [(step, mean(seeds, read(pick))) for step, pick in picks.items()]
        return [(step, value) for step, value in found if value is not None]

    lines = lines_of(results, lambda seeds: at(seeds, lambda found: found.mean))
    stds = lines_of(results, lambda seeds: at(seeds, lambda found: found.std))

    def paint(axes: "Axes") -> None:
        axes.set(xlabel=label, ylabel=metric(results))
        # A standard deviation may be more than is left to 100 %.
        within = (0.0, 100.0) if is_percent(results) else (-math.inf, math.inf)
        paint_bands(axes, lines, stds, within)
        paint_lines(axes, lines)
        axes.set_xticks(list(picks))

    return draw(name, label, lines, paint)


def over_traffic(results: Results) -> str:
    """Draw the metric on own data against MB per client."""

    def sent(seeds: Results) -> list[Point]:
        x = mean(seeds, lambda s: s.costs.train.bytes.both)
        y = mean(seeds, lambda s: s.accuracy.own)
        return [] if x is None or y is None else [(x / 1e6, y)]

    lines = lines_of(results, sent)

    def paint(axes: "Axes") -> None:
        axes.set(xlabel="MB per client, down and up", ylabel=metric(results, "on own data"))
        paint_traffic(axes, lines)

    return draw("traffic", "Own data against MB sent", lines, paint)


def over_time(results: Results, rate: Bandwidth) -> str:
    """Draw how long a client waits for its messages and computes; empty where nothing is known."""

    def spent(seeds: Results) -> list[Point]:
        down = mean(seeds, lambda s: s.costs.train.bytes.down)
        up = mean(seeds, lambda s: s.costs.train.bytes.up)
        computing = mean(seeds, lambda s: s.costs.seconds.get("training"))
        if down is None or up is None or computing is None:
            return []
        clients = seeds[0].clients
        return [(0, down / rate.down), (1, up / rate.up), (2, computing / clients)]

    lines = lines_of(results, spent)
    name, size = unit(max((sum(part for _, part in line.points) for line in lines), default=0))

    def paint(axes: "Axes") -> None:
        axes.set(xlabel=f"Time per client ({name})")
        begins = [0.0] * len(lines)
        for part, (word, shade) in enumerate((("down", 1.0), ("up", 0.65), ("computing", 0.25))):
            widths = [line.points[part][1] / size for line in lines]
            colors = [line.color for line in lines]
            axes.barh(range(len(lines)), widths, 0.6, begins, color=colors, alpha=shade, label=word)
            begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
        axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
        name_rows(axes, lines)

    label = "Time to send and to compute"
    return draw("time", label, lines, paint, height_of_rows(len(lines)))


def over_clients(results: Results) -> str:
    """Draw every client's own metric, one row per method; empty where clients are not listed."""
    found, novel = clients.own(results), clients.novel(results)
    lines = _rows(results, found, novel)

    def paint(axes: "Axes") -> None:
        axes.set(xlabel=metric(results, "of each client on its own data"))
        paint_rows(axes, lines)

    return draw("clients", "Each client's own data", lines, paint, height_of_rows(len(lines)))


def over_gains(results: Results) -> str:
    """Draw what every client gains from each method instead of the first; empty with one."""
    first, *others = by_method(results)
    gains = {name: clients.difference(results, name, first).clients for name in others}
    lines = _rows(results, gains, clients.novel(results))
    points = "points" if metric(results).endswith("(%)") else metric(results)

    def paint(axes: "Axes") -> None:
        instead = by_method(results)[first][0].title
        axes.set(xlabel=f"Gain of each client instead of {instead} ({points})")
        axes.axvline(0, color=INK, linewidth=0.6, alpha=0.5)
        paint_rows(axes, lines)

    return draw("gains", "Gain of each client", lines, paint, height_of_rows(len(lines)))


def _rows(results: Results, found: dict[str, dict[int, float]], novel: set[int]) -> list[Line]:
    def dots(seeds: Results) -> list[Point]:
        values = found.get(seeds[0].method, {})
        return [(values[id], float(id in novel)) for id in sorted(values)]

    return lines_of(results, dots)


def over_gates(results: Results) -> str:
    """Draw how often a gate's weights fall into each bin from 0 to 1; empty without gates."""

    def bins(seeds: Results) -> list[Point]:
        noted = [seed.history[-1].notes.get("gate_weights") for seed in seeds if seed.history]
        counts = [list(map(_number, each)) for each in noted if isinstance(each, list)]
        shares = [statistics.fmean(at) for at in zip(*counts, strict=True)]
        width = 1 / max(len(shares), 1)
        return [(place * width, 100 * share / sum(shares)) for place, share in enumerate(shares)]

    lines = lines_of(results, bins)

    def paint(axes: "Axes") -> None:
        axes.set(xlabel="Weight that a gate gives to a block", ylabel="Share of blocks (%)")
        for line in lines:
            edges = [*(x for x, _ in line.points), 1.0]
            axes.stairs([y for _, y in line.points], edges, color=line.color, linewidth=1.8)
        axes.grid(axis="y", linewidth=0.4, alpha=0.35)
        axes.legend([line.name for line in lines], frameon=False)

    return draw("gates", "Weights of gates", lines, paint, 2.6)


def _number(value: Json) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _history(seeds: Results) -> list[Point]:
    at: dict[float, list[float]] = {}
    for seed in seeds:
        for point in seed.history:
            at.setdefault(point.round, []).append(point.own)
    # A seed that is not finite is not left out of a mean: there is no point then.
    means = [(number, statistics.fmean(values)) for number, values in sorted(at.items())]
    return [point for point in means if math.isfinite(point[1])]
