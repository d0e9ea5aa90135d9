"""Clients as figures: which labels each has, what it gets of every method, and what it gains."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from masquerade.report import clients
from masquerade.report.charts import (
    COLORS,
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
    told,
)
from masquerade.report.tables import Results, by_method
from masquerade.results import Summary

DRAWN = 400
"""Clients, at most, that a figure has a dot for: every so many-th by its value."""
CELLS = 4000
"""Clients by labels, at most, that a figure has."""


def over_clients(results: Results) -> Chart | None:
    """Draw every client's own metric, one row per method; none where clients are not listed."""
    found = clients.own(results)
    caption = (
        f"The clients that a mean hides: every dot is one client{clients.whose(results)}, and the"
        " bar is their mean. A client under the pointer stands out in all rows."
    )
    label = metric(results, "of each client on its own data")
    return _rows(results, found, "clients", "Every client", label, caption, digits(results))


def over_gains(results: Results) -> Chart | None:
    """Draw what every client gains from each method instead of the first; none with one."""
    first, *others = by_method(results)
    instead = by_method(results)[first][0].title
    gains = {name: clients.difference(results, name, first).clients for name in others}
    points = "points" if metric(results).endswith("(%)") else metric(results)
    caption = (
        f"Who wins and who loses against {instead}: every dot is one client, to the right of 0"
        " where it is better off."
    )
    label = f"Gain of each client over {instead} ({points})"
    # An explicit sign says that it is a difference.
    form = "+" + digits(results)
    return _rows(results, gains, "gains", "Gains and losses of clients", label, caption, form)


def _rows(
    results: Results,
    found: Mapping[str, Mapping[int, float]],
    name: str,
    title: str,
    label: str,
    caption: str,
    form: str,
) -> Chart | None:
    """Draw one row per method, with a dot for each client and a bar at their mean."""
    kept_out, known, samples = clients.novel(results), clients.names(results), _samples(results)
    shown = [seeds for key, seeds in by_method(results).items() if found.get(key)]
    if not shown:
        return None

    def dots(seeds: list[Summary]) -> list[Row]:
        values = found.get(seeds[0].method, {})
        return [
            {
                "client": clients.called(id, kept_out, known),
                "value": values[id],
                "samples": samples.get(id),
                "novel": id in kept_out,
                # Multiples of the golden ratio place dots evenly without any randomness.
                "beside": place * 0.618 % 1 - 0.5,
            }
            for place, id in enumerate(_some(values))
        ]

    def means(seeds: list[Summary]) -> list[Row]:
        values = found.get(seeds[0].method, {})
        inside = [value for id, value in values.items() if id not in kept_out]
        given = inside or list(values.values())
        return [{"mean": statistics.fmean(given)}] if given else []

    if kept_out:
        caption += " Rings took no part in training."
    left_out = sum(map(len, found.values())) - sum(len(_some(each)) for each in found.values())
    if left_out:
        caption += f" Of many clients {DRAWN} are drawn, evenly from the lowest to the highest."
    listed = [seed for seeds in shown for seed in seeds]
    color = by_color(results, named=True)
    here = "client == datum.client"
    tell: dict[str, str | tuple[str, str]] = {"Client": "client", "Method": "method"}
    tell |= {label: ("value", form), "Training samples": "samples"}
    zero: list[Spec] = [{"data": {"values": [{}]}, "mark": "rule", "encoding": {"x": {"datum": 0}}}]
    spec: Spec = {
        "params": FOLLOWED,
        "layer": [
            *(zero if name == "gains" else []),
            {
                "data": {"values": rows_of(results, dots)},
                "mark": {"type": "circle", "aria": False, "strokeWidth": 1.2},
                "encoding": {
                    "y": methods_as_rows(listed),
                    "yOffset": {
                        "field": "beside",
                        "type": "quantitative",
                        "scale": {"domain": [-1, 1]},
                    },
                    "x": number("value", label, padding=8),
                    "color": color["color"],
                    "stroke": {"condition": {"test": here, "value": "currentColor"}}
                    | {k: v for k, v in color["color"].items() if k != "condition"},
                    "fillOpacity": {"condition": {"test": "datum.novel", "value": 0}, "value": 0.7},
                    "opacity": color["opacity"],
                    "size": {"condition": {"test": here, "value": 170}, "value": 34},
                    "tooltip": told(tell),
                },
            },
            {
                "data": {"values": rows_of(results, means)},
                "mark": {"type": "tick", "thickness": 2, "size": 26, "color": "currentColor"},
                "encoding": {
                    "y": methods_as_rows(listed),
                    "x": {"field": "mean", "type": "quantitative"},
                    "tooltip": told({"Method": "method", "Mean over clients": ("mean", form)}),
                },
            },
        ],
    }
    return Chart(name, title, caption, spec, 38 * len(shown) + 40)


def _some(values: Mapping[int, float]) -> list[int]:
    """Return the clients that are drawn, in their order: all, or some from lowest to highest."""
    ranked = sorted(values, key=lambda id: (values[id], id))
    chosen = {ranked[place * len(ranked) // DRAWN] for place in range(DRAWN)} if ranked else set()
    return sorted(ranked if len(ranked) <= DRAWN else chosen)


def _samples(results: Results) -> dict[int, int]:
    """Return the training samples of clients."""
    found: dict[int, int] = {}
    for group in clients.groups(results):
        found |= dict(zip(group.ids, group.samples, strict=True))
    return found


def over_labels(results: Results) -> Chart | None:
    """Draw how each client's labels are distributed; none where they are not known."""
    counts, kind = clients.labels(results)
    if not counts:
        return None
    known, kept_out = clients.names(results), clients.novel(results)
    called = {id: clients.called(id, kept_out, known) for id in counts}
    caption = f"Who holds which labels: the share of each label in a client's {kind} samples."
    return label_chart(
        {called[id]: found for id, found in counts.items()}, caption, "labels", "Labels of clients"
    )


def label_chart(
    counts: Mapping[str, Mapping[str, int]], caption: str, name: str, title: str
) -> Chart:
    """Draw counts of labels, client → label → samples, as shares of each client's samples."""
    labels = list(dict.fromkeys(label for found in counts.values() for label in found))
    most = max(1, CELLS // max(1, len(labels)))
    shown = dict(list(counts.items())[:most])
    if len(shown) < len(counts):
        caption += f" The first {len(shown):,} of {len(counts):,} clients are drawn."
    rows: list[Row] = [
        {"client": client, "label": label, "samples": count, "of": sum(found.values())}
        for client, found in shown.items()
        for label, count in found.items()
        if count
    ]
    most_share = max((row["samples"] / row["of"] for row in rows), default=1.0)
    few = len(shown) <= 40
    across: dict[str, Any] = {"title": "Client", "labels": few, "ticks": False, "domain": False}
    spec: Spec = {
        "params": FOLLOWED,
        "data": {"values": rows},
        "transform": [{"calculate": "datum.samples / datum.of", "as": "share"}],
        "mark": {"type": "rect", "color": COLORS[0], "aria": False},
        "encoding": {
            "x": {
                "field": "client",
                "type": "nominal",
                "sort": None,
                "scale": {"domain": list(shown)},
                "axis": across | {"labelAngle": 0 if _short(shown) else -90, "labelLimit": 90},
            },
            "y": {
                "field": "label",
                "type": "nominal",
                "scale": {"domain": labels},
                "axis": {"title": None, "ticks": False, "domain": False},
            },
            "opacity": {
                "field": "share",
                "type": "quantitative",
                "scale": {"domain": [0, most_share], "range": [0.06, 1]},
            },
            "stroke": {"condition": {"test": "client == datum.client", "value": "currentColor"}}
            | {"value": None},
            "tooltip": told(
                {
                    "Client": "client",
                    "Label": "label",
                    "Samples": ("samples", ",d"),
                    "Share": ("share", ".0%"),
                }
            ),
        },
    }
    caption += f" The fullest color is {100 * most_share:.0f}\u00a0% of them."
    return Chart(name, title, caption, spec, max(140, min(420, 22 * len(labels))))


def _short(names: Sequence[str] | Mapping[str, object]) -> bool:
    """Tell whether names fit beside each other."""
    return max(map(len, names), default=0) * len(names) <= 70
