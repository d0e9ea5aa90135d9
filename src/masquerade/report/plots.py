"""Results as figures: what a method is worth over rounds, bytes, operations, shift, corruption."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from masquerade.cost.bandwidth import FEDMASK, Bandwidth, unit
from masquerade.report import client_plots, mask_plots
from masquerade.report.charts import (
    COLORS,
    FAINT,
    FOLLOWED,
    Chart,
    Row,
    Spec,
    by_color,
    digits,
    methods_as_rows,
    metric,
    number,
    rows_of,
    titles,
    told,
    without_shape,
)
from masquerade.report.tables import Pick, Results, is_percent, kinds, mean, steps
from masquerade.results import AVERAGED, Accuracy, Statistics, Summary
from masquerade.results.accuracy import ByStep
from masquerade.results.lead import led, with_lead
from masquerade.results.metric_names import metric_title


def figures(
    results: Results, rate: Bandwidth = FEDMASK, only: Collection[str] | None = None
) -> dict[str, Chart]:
    """Return by name what the results allow of all figures, or of those that are named."""
    making: dict[str, Callable[[], Chart | None]] = {
        "rounds": lambda: over_rounds(results),
        "traffic": lambda: over_traffic(results),
        "operations": lambda: over_operations(results),
        "time": lambda: over_time(results, rate),
        "labels": lambda: client_plots.over_labels(results),
        "clients": lambda: client_plots.over_clients(results),
        "gains": lambda: client_plots.over_gains(results),
        "shift": lambda: over_shift(results),
        "pooled": lambda: over_pooled(results),
        "severity": lambda: over_severity(results),
        "density": lambda: mask_plots.over_layers(results),
        "moving": lambda: mask_plots.over_rounds(results),
        "gates": lambda: mask_plots.over_gates(results),
    }
    made = {name: make() for name, make in making.items() if only is None or name in only}
    found = {name: chart for name, chart in made.items() if chart is not None}
    if only is None or "overlap" in only:
        found |= {chart.name: chart for chart in mask_plots.over_pairs(results)}
    return found


def over_rounds(results: Results) -> Chart | None:
    """Draw the metric on own data against rounds; none where every method has one point alone."""
    rows = _curves(results)
    if len({row["round"] for row in rows}) < 2:
        return None
    caption = "How fast a method gets to what it has at the end: each client on its own test data."
    counts = Counter(row["method"] for row in rows)
    if 1 in counts.values():
        caption += " A lone marker is a view that trains only when it is used."
    if (measured := _measured(results)[0].metric) != results[0].metric:
        caption += f" Between rounds {metric_title(measured).lower()} alone is measured."
    x = number("round", "Round", form="d", nice=False)
    return Chart("rounds", "By round", caption, _curve_spec(results, rows, x))


def over_traffic(results: Results) -> Chart | None:
    """Draw the metric on own data against MB per client, from round to round."""
    return _against(
        *(results, "traffic", "mb", "By bytes", "MB per client, down and up so far"),
        "What the bytes buy: the further left a marker, the less a client had sent and received by"
        " then. The last marker of a line is the end of training.",
    )


def over_operations(results: Results) -> Chart | None:
    """Draw the metric on own data against operations per client, from round to round."""
    return _against(
        *(results, "operations", "gflop", "By operations", "GFLOP per client so far"),
        "What the computing buys: products, as a client's masks allow them.",
    )


def _curves(results: Results) -> list[Row]:
    # Between rounds the metric of the task is measured, also where another one leads.
    return rows_of(_measured(results), _curve)


def _measured(results: Results) -> list[Summary]:
    return led(with_lead(results, results[0].measured or results[0].metric))


def _curve(seeds: list[Summary]) -> list[Row]:
    """Return the points of a method, the mean of its seeds."""
    by_round: dict[int, list[tuple[float, float, float, float]]] = {}
    for seed in seeds:
        for point in seed.history:
            spent = (point.down + point.up) / 1e6, point.flops / 1e9
            by_round.setdefault(point.round, []).append((point.own, point.std, *spent))
    rows = []
    for round, found in sorted(by_round.items()):
        own, std, mb, gflop = map(statistics.fmean, zip(*found, strict=True))
        # A seed that is not finite is not left out of a mean: there is no point then.
        if math.isfinite(own):
            rows.append({"round": round, "own": own, "std": std, "mb": mb, "gflop": gflop})
    return rows


def _against(
    results: Results, name: str, field: str, title: str, label: str, caption: str
) -> Chart | None:
    rows = [row for row in _curves(results) if math.isfinite(row[field])]
    spent = [row for row in rows if row[field] > 0]
    if not spent:
        return None
    sizes = [row[field] for row in spent]
    wide = max(sizes) > 20 * min(sizes)
    scale = {"type": "log", "nice": False} if wide else {"zero": True}
    spec = _curve_spec(results, spent, number(field, label, form="~g" if wide else "", **scale))
    # What spends nothing has no place on such an axis: it is a line to be above.
    free = {row["method"]: row for row in rows if not row[field]}
    free = {method: row for method, row in free.items() if method not in _methods(spent)}
    if free:
        level: Spec = {"y": {"field": "own", "type": "quantitative"}, "opacity": FAINT}
        color = {"color": by_color(results)["color"]}
        none = "sends nothing" if field == "mb" else "computes nothing"
        said = {"calculate": f"datum.method + ' {none}'", "as": "said"}
        spec["layer"] += [
            {"data": {"values": list(free.values())}, **layer}
            for layer in (
                {
                    "mark": {"type": "rule", "strokeDash": [4, 4], "opacity": 1},
                    "encoding": level | color,
                },
                {
                    "mark": {"type": "text", "align": "left", "dx": 8, "dy": 11},
                    "transform": [said],
                    "encoding": level | {"x": {"value": 0}, "text": {"field": "said"}},
                },
            )
        ]
    return Chart(name, title, caption, spec)


def _methods(rows: list[Row]) -> set[str]:
    return {row["method"] for row in rows}


def _curve_spec(results: Results, rows: list[Row], x: Spec) -> Spec:
    """Return lines with a marker at every evaluation, of which the nearest is told about."""
    measured = _measured(results)
    form = digits(measured)
    tell = told(
        {
            "Method": "method",
            "Round": "round",
            metric(measured): ("own", form),
            "± over clients": ("std", form),
            "MB per client": ("mb", ".3~s"),
            "GFLOP per client": ("gflop", ".3~s"),
        }
    )
    y = number("own", metric(measured, "on own data"))
    return _lines(measured, rows, x, y, tell)


def _lines(results: Results, rows: list[Row], x: Spec, y: Spec, tell: list[Spec]) -> Spec:
    color = by_color(results)
    nearest = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    size = {"condition": {"param": "nearest", "empty": False, "value": 150}, "value": 42}
    return {
        "params": FOLLOWED,
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 1.8},
                "encoding": {"x": x, "y": y, **without_shape(color)},
            },
            {
                "mark": {"type": "point", "filled": True, "aria": False},
                "params": [{"name": "nearest", "select": nearest}],
                "encoding": {"x": x, "y": y, **color, "size": size, "tooltip": tell},
            },
        ],
    }


def over_shift(results: Results) -> Chart | None:
    """Draw the metric against the degree of shift from one other client; none without shift."""
    caption = (
        "Whose line stays flat while more and more of a client's test data come from one other"
        " client. The bands are ± one standard deviation over clients."
    )
    label = "Test data from one other client (%)"
    return _by_degree(
        results, "shift", "From one other client", label, caption, lambda found: found.shift
    )


def over_pooled(results: Results) -> Chart | None:
    """Draw the metric against the degree of shift from all others; none without shift."""
    caption = (
        "The same with samples of all other clients, so that no single partner decides what a"
        " client meets."
    )
    label = "Test data from all other clients (%)"
    return _by_degree(
        results, "pooled", "From all other clients", label, caption, lambda found: found.pooled
    )


def _by_degree(
    results: Results,
    name: str,
    title: str,
    label: str,
    caption: str,
    by_degree: Callable[[Accuracy], ByStep],
) -> Chart | None:
    degrees = steps(results, by_degree)
    if not degrees:
        return None
    picks = {float(at): _at(by_degree, str(at)) for at in (0, *degrees)}
    return Chart(name, title, caption, _over_steps(results, label, picks))


def over_severity(results: Results) -> Chart | None:
    """Draw the metric against the severity of corruption, ± std over clients; 0 is own data."""
    found = kinds(results)
    if not found:
        return None

    def over_kinds(accuracy: Accuracy) -> ByStep:
        return accuracy.corruption.get(AVERAGED, {})

    severities = steps(results, lambda accuracy: accuracy.corruption.get(found[0], {}))
    picks: dict[float, Callable[[Summary], Statistics | None]] = {0.0: lambda s: s.accuracy.own}
    picks |= {float(at): _at(over_kinds, str(at)) for at in severities}
    caption = (
        "What is left as images get worse; 0 is the clean image. The bands are ± one standard"
        " deviation over clients."
    )
    spec = _over_steps(results, "Severity of corruption, over all kinds", picks)
    return Chart("severity", "By severity", caption, spec)


def _at(by_step: Callable[[Accuracy], ByStep], step: str) -> Callable[[Summary], Statistics | None]:
    return lambda summary: by_step(summary.accuracy).get(step)


def _over_steps(
    results: Results,
    label: str,
    picks: Mapping[float, Callable[[Summary], Statistics | None]],
) -> Spec:
    """Draw the metric at some steps, each of which has a mean and a standard deviation."""
    # A standard deviation may be more than is left to 100 %.
    least, most = (0.0, 100.0) if is_percent(results) else (-math.inf, math.inf)

    def points(seeds: list[Summary]) -> list[Row]:
        found = []
        for step, pick in picks.items():
            own, std = (mean(seeds, _part(pick, part)) for part in ("mean", "std"))
            if own is not None and std is not None:
                band = {"low": max(own - std, least), "high": min(own + std, most)}
                found.append({"step": step, "own": own, "std": std, **band})
        return found

    rows = rows_of(results, points)
    form = digits(results)
    tell = told(
        {
            "Method": "method",
            label: "step",
            metric(results): ("own", form),
            "± over clients": ("std", form),
        }
    )
    x, y = number("step", label, nice=False), number("own", metric(results))
    x["axis"]["values"] = list(picks)
    spec = _lines(results, rows, x, y, tell)
    color = by_color(results)["color"]
    shade = {"condition": FAINT["condition"] | {"value": 0.09}, "value": 0.02}
    band = {
        "mark": {"type": "area"},
        "encoding": {
            "color": color,
            "opacity": shade,
            "x": x,
            "y": {"field": "low", "type": "quantitative"},
            "y2": {"field": "high"},
        },
    }
    return spec | {"layer": [band, *spec["layer"]]}


def _part(pick: Callable[[Summary], Statistics | None], part: str) -> Pick:
    def value(summary: Summary) -> float | None:
        found = pick(summary)
        return None if found is None else float(getattr(found, part))

    return value


PARTS = {"down": 1.0, "up": 0.65, "computing": 0.3}
"""What a client's time is spent on, and how dark it is drawn."""


def over_time(results: Results, rate: Bandwidth) -> Chart | None:
    """Draw how long a client waits for its messages and computes; none where nothing is known."""

    def spent(seeds: list[Summary]) -> list[Row]:
        down = mean(seeds, lambda s: s.costs.train.bytes.down)
        up = mean(seeds, lambda s: s.costs.train.bytes.up)
        computing = mean(seeds, lambda s: s.costs.seconds.get("training"))
        if down is None or up is None or computing is None:
            return []
        amounts = (down / rate.down, up / rate.up, computing / seeds[0].clients)
        return [
            {"part": part, "place": place, "seconds": amount}
            for place, (part, amount) in enumerate(zip(PARTS, amounts, strict=True))
        ]

    rows = rows_of(results, spent)
    if not rows:
        return None
    whole = [
        sum(row["seconds"] for row in rows if row["method"] == name) for name in titles(results)
    ]
    name, size = unit(max(whole))
    rows = [{**row, "time": row["seconds"] / size} for row in rows]
    darkness = {
        "field": "part",
        "type": "ordinal",
        "sort": None,
        "scale": {"domain": list(PARTS), "range": list(PARTS.values())},
        "legend": {"title": None, "orient": "top", "symbolFillColor": COLORS[-1]},
    }
    tell = told({"Method": "method", "What": "part", f"Time ({name})": ("time", ".3~r")})
    spec: Spec = {
        "params": FOLLOWED,
        "data": {"values": rows},
        "mark": {"type": "bar", "size": 16},
        "encoding": {
            "y": methods_as_rows(results),
            "x": number("time", f"Time per client ({name})", zero=True),
            "color": by_color(results, named=True)["color"],
            "opacity": darkness,
            "order": {"field": "place"},
            "tooltip": tell,
        },
    }
    caption = (
        f"What a client waits for over all of training: its messages, at {rate.text}, and its"
        " computing: the seconds of training of this run, divided by its clients."
    )
    return Chart("time", "Time of a client", caption, spec, 30 * len(whole) + 40)
