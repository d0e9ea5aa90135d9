"""Masks as figures: how dense each layer is, whose masks are alike, how gates decide."""

import math
import statistics

from masquerade.report.charts import (
    COLORS,
    FOLLOWED,
    Chart,
    Row,
    Spec,
    by_color,
    number,
    rows_of,
    told,
    without_shape,
)
from masquerade.report.tables import Pick, Results, by_method, mean, show_cost
from masquerade.results import Summary
from masquerade.results.json_records import Json

Square = list[list[float]]
NAMED = 12
"""Clients, at most, whose names stand beside a square."""


def over_layers(results: Results) -> Chart | None:
    """Draw what share of every tensor clients' models keep; none where all keep all."""

    def shares(seeds: list[Summary]) -> list[Row]:
        names = list(dict.fromkeys(name for seed in seeds for name in seed.model.layers))
        found = {name: mean(seeds, _share(name)) for name in names}
        return [
            {"layer": name, "kept": 100 * share}
            for name, share in found.items()
            if share is not None
        ]

    rows = rows_of(results, shares)
    if not rows:
        return None
    color = by_color(results)
    order = list(dict.fromkeys(row["layer"] for row in rows))
    spec: Spec = {
        "params": FOLLOWED,
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "size": 90, "aria": False},
        "encoding": {
            "y": {
                "field": "layer",
                "type": "nominal",
                "sort": order,
                "axis": {"title": None, "grid": True, "ticks": False, "domain": False},
            },
            "x": number("kept", "Kept (%)", domain=[0, 100]),
            **color,
            "tooltip": told({"Method": "method", "Tensor": "layer", "Kept (%)": ("kept", ".1f")}),
        },
    }
    caption = (
        "The share of every tensor that clients' own models keep, on average. Methods without masks"
        " keep all, and are not drawn."
    )
    return Chart("density", "Density by layer", caption, spec, 26 * len(order) + 40)


def _share(name: str) -> Pick:
    return lambda summary: summary.model.layers.get(name)


def over_rounds(results: Results) -> Chart | None:
    """Draw how far clients' masks overlap by round; none where nobody has masks that move apart."""

    def points(seeds: list[Summary]) -> list[Row]:
        by_round: dict[int, list[float]] = {}
        for seed in seeds:
            for point in seed.history:
                noted = point.notes.get("mask_overlap")
                if isinstance(noted, float):
                    by_round.setdefault(point.round, []).append(noted)
        means = {round: statistics.fmean(found) for round, found in sorted(by_round.items())}
        # Where all clients have one mask, there is nothing to compare.
        if all(value == 1 for value in means.values()):
            return []
        return [{"round": round, "overlap": value} for round, value in means.items()]

    rows = rows_of(results, points)
    if len({row["round"] for row in rows}) < 2:
        return None
    color = by_color(results)
    tell = told({"Method": "method", "Round": "round", "Overlap": ("overlap", ".2f")})
    spec: Spec = {
        "params": FOLLOWED,
        "data": {"values": rows},
        "encoding": {
            "x": number("round", "Round", form="d", nice=False),
            "y": number(
                "overlap", "Overlap of two clients' masks", form=".2f", domain=_around(rows)
            ),
        },
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.8}, "encoding": without_shape(color)},
            {
                "mark": {"type": "point", "filled": True, "size": 42, "aria": False},
                "encoding": {**color, "tooltip": tell},
            },
        ],
    }
    caption = (
        "How clients' masks move apart or together: the share of weights that both of two clients"
        " keep, of those that either keeps. It is the mean over the pairs of up to eight clients."
    )
    return Chart("moving", "Overlap of masks by round", caption, spec, 220)


def _around(rows: list[Row]) -> list[float]:
    """Return where an axis of overlaps begins and ends: masks that hardly move have one, too."""
    found = [_number(row["overlap"]) for row in rows]
    return [
        max(0.0, math.floor(20 * min(found) - 1) / 20),
        min(1.0, math.ceil(20 * max(found) + 1) / 20),
    ]


def over_pairs(results: Results) -> list[Chart]:
    """Draw for each method how far the masks of clients overlap, pair by pair."""
    found = []
    for place, seeds in enumerate(by_method(results).values()):
        given = [seed.overlap.pairs.values() for seed in seeds if seed.overlap]
        # Only the last weight has its pairs listed, and a network of vectors has none.
        pairs = [list(map(list, each)) for some in given for each in some]
        if pairs:
            whole = mean(seeds, lambda s: s.overlap.whole if s.overlap else None)
            title = f"{seeds[0].title}: {show_cost(whole)}"
            spec = _matrix(_averaged(pairs), seeds[0])
            found.append(Chart(f"overlap-{place}", title, "", spec, 240))
    return found


def _averaged(tables: list[Square]) -> Square:
    """Return the mean of square tables, entry by entry."""
    return [
        [statistics.fmean(values) for values in zip(*rows, strict=True)]
        for rows in zip(*tables, strict=True)
    ]


def by_similarity(table: Square) -> list[int]:
    """Return an order of the clients in which those whose masks are alike stand together."""
    if len(table) < 3:
        return list(range(len(table)))
    # Machines that only train have no scipy.
    from scipy.cluster.hierarchy import leaves_list, linkage

    apart = [1 - table[a][b] for a in range(len(table)) for b in range(a + 1, len(table))]
    return [int(leaf) for leaf in leaves_list(linkage(apart, "average", optimal_ordering=True))]


def _matrix(table: Square, of: Summary) -> Spec:
    clients = of.per_client
    names = [
        str(clients.names[at] if clients and clients.names else clients.ids[at] if clients else at)
        for at in range(len(table))
    ]
    order = [names[place] for place in by_similarity(table)]
    rows = [
        {"a": mine, "b": names, "overlap": [round(value, 3) for value in values]}
        for mine, values in zip(names, table, strict=True)
    ]
    axis: Spec = {"title": None, "ticks": False, "domain": False, "grid": False}
    # Of few clients the names stand at the rows, and columns are in the same order.
    few = {"labels": len(names) <= NAMED, "labelLimit": 80}
    side: Spec = {"type": "nominal", "scale": {"domain": order}, "axis": axis | {"labels": False}}
    return {
        "data": {"values": rows},
        "transform": [{"flatten": ["b", "overlap"]}],
        "mark": {"type": "rect", "color": COLORS[0], "aria": False},
        "encoding": {
            "x": side | {"field": "b"},
            "y": side | {"field": "a", "axis": axis | few},
            "opacity": {
                "field": "overlap",
                "type": "quantitative",
                "scale": {"domain": [0, 1], "range": [0.03, 1]},
                "legend": None,
            },
            "tooltip": told({"Clients": "a", "and": "b", "Overlap": ("overlap", ".2f")}),
        },
    }


def over_gates(results: Results) -> Chart | None:
    """Draw how often a gate's weights fall into each bin from 0 to 1; none without gates."""

    def bins(seeds: list[Summary]) -> list[Row]:
        noted = [seed.history[-1].notes.get("gate_weights") for seed in seeds if seed.history]
        counts = [list(map(_number, each)) for each in noted if isinstance(each, list)]
        shares = [statistics.fmean(at) for at in zip(*counts, strict=True)]
        width, whole = 1 / max(len(shares), 1), sum(shares) or 1.0
        found = [
            {"from": at * width, "to": (at + 1) * width, "share": 100 * share / whole}
            for at, share in enumerate(shares)
        ]
        # A line of steps ends where its last step begins, unless that is said twice.
        return found + [last | {"from": 1.0} for last in found[-1:]]

    rows = rows_of(results, bins)
    if not rows:
        return None
    color = without_shape(by_color(results))
    spec: Spec = {
        "params": FOLLOWED,
        "data": {"values": rows},
        "encoding": {
            "x": number("from", "Weight that a gate gives to a block", domain=[0, 1]),
            "y": number("share", "Share of blocks (%)", domain=[0, _above(rows)]),
        },
        "layer": [
            {
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.8},
                "encoding": color,
            },
            {
                "mark": {"type": "bar", "binSpacing": 0},
                "encoding": {
                    "x2": {"field": "to"},
                    "opacity": {"value": 0},
                    "tooltip": told(
                        {
                            "Method": "method",
                            "From": ("from", ".2f"),
                            "To": ("to", ".2f"),
                            "Share of blocks (%)": ("share", ".1f"),
                        }
                    ),
                },
            },
        ],
    }
    caption = (
        "How gates decide at the end of training: a block at 0 is left out, one at 1 is used as it"
        " is."
    )
    return Chart("gates", "Gates", caption, spec, 220)


def _above(rows: list[Row]) -> float:
    """Return where an axis of shares ends: at the next multiple of ten."""
    return 10.0 * math.ceil(max(float(row["share"]) for row in rows) / 10)


def _number(value: Json) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
