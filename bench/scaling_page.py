"""The page of `bench/scaling.py`: tables, exponents and a plot of what was measured and saved."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

Record = dict[str, Any]

WIDTH = 100
"""Characters of a line."""
BOUNDS = (0.15, 0.85, 1.15)
KINDS = ("no growth", "less than linear", "linear", "more than linear")
"""What growth is called by its exponent, between the bounds."""

TEXT = """# What growth costs

{intro}

![Seconds per round and peak memory against clients, parameters and cohort](scaling.svg)

## What grows, and how

Exponents: by which power of the growing number a figure grew between the last two points.

{exponents}

{said}

{tables}
"""

INTRO = """\
Along each axis one number grows, and all others stay as its heading says. Every point has a process
of its own.

- **Clients** have {train} random samples each for training and {test} for tests.
- **Work**: an MLP with two hidden layers; a round is {epochs} epochs in batches of {batch}. DM-PFL
  readjusts its masks in every round, so it reads, sends and writes masks and weights.
- **Start** is everything before the first round. The **first** round stands apart. A **round** is
  the median of those after it.
- **States** of clients lie in files (`compute.store="disk"`); those of clients that never took
  part are made when they are asked for.
- **Evaluation** measures every client on its own data. A **commit** writes what changed since the
  last one, a round before.
- **Seconds** on a CPU are those of one core, without waiting for the disk. On a GPU they are those
  of a clock.
- **Memory** is the most from when data and network are in place to the end of the rounds, of the
  evaluation and of the commit. On a CPU it is that of the process, less what it had when it began.
  On a GPU it is what was allocated there."""


class Figured(NamedTuple):
    """A figure of a point: its name, how it is read off, its unit."""

    name: str
    unit: str
    read: Callable[[Record], float]


def _seconds(what: str) -> Callable[[Record], float]:
    return lambda point: float(point["seconds"][what])


def memory(what: str) -> Callable[[Record], float]:
    """Return what reads a peak: of the GPU where there is one, else of the process, in MB."""

    def read(point: Record) -> float:
        held = point["memory"]
        gpu = held.get(f"{what} on the GPU")
        return float((held[what] - held["before"] if gpu is None else gpu) / 1e6)

    return read


FIGURES = (
    Figured("start", "s", _seconds("build")),
    Figured("first", "s", _seconds("first round")),
    Figured("round", "s", _seconds("round")),
    Figured("evaluation", "s", _seconds("evaluation")),
    Figured("commit", "s", _seconds("commit")),
    Figured("memory, rounds", "MB", memory("round")),
    Figured("evaluation", "MB", memory("evaluation")),
    Figured("commit", "MB", memory("commit")),
    Figured("on disk", "MB", lambda point: point["disk"] / 1e6),
)
SLOPES = {
    "start": FIGURES[0],
    "round": FIGURES[2],
    "evaluation": FIGURES[3],
    "commit": FIGURES[4],
    "memory of rounds": FIGURES[5],
    "bytes on disk": FIGURES[8],
}
"""What exponents are given of."""


def write(page: Path) -> None:
    """Write the page and its plot from the measurements that lie beside it."""
    files = sorted(page.with_suffix("").glob("*.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    if not found:
        raise SystemExit(f"nothing was measured yet: there is no file in {page.with_suffix('')}")
    text = TEXT.format(
        intro=_intro(found),
        said="\n".join(_item(text) for each in found for text in said(each)),
        exponents=exponents(found),
        tables="\n\n".join(table for each in found for table in tables(each)),
    )
    page.write_text(text, encoding="utf-8")
    page.with_suffix(".svg").write_text(plot(found), encoding="utf-8")


def _wrapped(text: str) -> str:
    return fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _intro(found: list[Record]) -> str:
    made = "; ".join(
        f"on {each['date']}, {each['device']}, torch {each['torch']} (`{each['command']}`)"
        for each in found
    )
    text = INTRO.format(**found[0]["work"])
    wrote = "`python bench/scaling.py --page` wrote this page from what lies in"
    older = [each["place"] for each in found if "store" not in each]
    if older:
        said = "was measured before that: states of all clients lay on the device, in every commit"
        text += "\n" + _item(f"**{', '.join(older)}** {said}.")
    return f"{_wrapped(f'Measured {made}. {wrote} [`scaling`](scaling).')}\n\n{text}"


def along(measured: Record, axis: Record, method: str) -> list[tuple[int, Record]]:
    """Return the points of a method along an axis, with the number that grows."""
    return [
        (point[axis["name"]], point)
        for point in measured["points"]
        if point["method"] == method
        and point[axis["name"]] in axis["values"]
        and all(point[name] == value for name, value in axis["fixed"].items())
    ]


def methods(measured: Record) -> list[str]:
    """List the methods that were measured."""
    return list(dict.fromkeys(point["method"] for point in measured["points"]))


def exponent(points: list[tuple[int, Record]], read: Callable[[Record], float]) -> float | None:
    """Return by which power of the number a figure grows between the last two points."""
    (few, before), (many, after) = points[-2:]
    small, large = read(before), read(after)
    return math.log(large / small) / math.log(many / few) if small > 0 and large > 0 else None


def _kind(power: float) -> str:
    """Name the growth by its exponent."""
    return KINDS[sum(power > bound for bound in BOUNDS)]


def powers(measured: Record, axis: Record, method: str) -> dict[str, float]:
    """Return the exponents of a method along an axis, by figure."""
    points = along(measured, axis, method)
    found = {name: exponent(points, each.read) for name, each in SLOPES.items()}
    return {name: power for name, power in found.items() if power is not None}


def exponents(found: list[Record]) -> str:
    """Return the table of exponents."""
    rows = [["against", "on", "method", *SLOPES]]
    for measured in found:
        for axis in measured["axes"]:
            for method in methods(measured):
                known = powers(measured, axis, method)
                cells = [f"{known[name]:.2f}" if name in known else "–" for name in SLOPES]
                rows.append([axis["name"], measured["place"], method, *cells])
    return markdown(rows)


def said(measured: Record) -> list[str]:
    """Say in words what the exponents are, and what the states of all clients cost."""
    sentences = []
    for axis in measured["axes"]:
        known = {method: powers(measured, axis, method) for method in methods(measured)}
        kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for name in SLOPES:
            found = {method: _kind(own[name]) for method, own in known.items() if name in own}
            for kind in dict.fromkeys(found.values()):
                those = [method for method in found if found[method] == kind]
                alike = len(those) == len(known)
                kinds[kind].append(name if alike else f"{name} ({', '.join(those)})")
        told = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
        told = told[:1].upper() + told[1:]
        sentences.append(f"**{axis['name'].capitalize()}** ({measured['place']}). {told}.")
    return [*sentences, _states(measured)]


def _states(measured: Record) -> str:
    point = max(measured["points"], key=lambda point: (point["clients"], point["states"]))
    count, size = point["clients"], point["states"]
    held = memory("round")(point)
    return (
        f"**States** ({measured['place']}). {point['method']}'s of {count:,} clients with"
        f" {point['exactly']:,} parameters are {size / 1e6:.1f} MB, {size / count / 1e3:.1f} kB"
        f" each; with data ({point['data'] / 1e6:.1f} MB) and all else rounds hold {held:.1f} MB, a"
        f" commit has {point['disk'] / 1e6:.1f} MB on the disk."
    )


def tables(measured: Record) -> list[str]:
    """Return the tables of a device, one per axis, each under its heading."""
    found = []
    for axis in measured["axes"]:
        fixed = ", ".join(f"{value:,} {_noun(name)}" for name, value in axis["fixed"].items())
        rows = [[axis["name"], "method", "engine", *(f"{f.name} ({f.unit})" for f in FIGURES)]]
        for method in methods(measured):
            for value, point in along(measured, axis, method):
                cells = [_shown(each.read(point)) for each in FIGURES]
                rows.append([f"{value:,}", method, point["engine"], *cells])
        head = f"## Against {_noun(axis['name'])}: {fixed} ({measured['place']})"
        found.append(f"{head}\n\n{markdown(rows)}")
    return found


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _noun(name: str) -> str:
    return "clients in a cohort" if name == "cohort" else name


def markdown(rows: list[list[str]]) -> str:
    """Set a table, its first row the head."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def _item(text: str) -> str:
    return fill(f"- {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def plot(found: list[Record]) -> str:
    """Draw seconds per round and memory along every axis, as an SVG that stands alone."""
    from masquerade.report.charts import Chart
    from masquerade.report.render import standalone, svg

    label = "Seconds per round and peak memory in MB against clients, parameters and cohort"
    rows = [
        {"hconcat": [_panel(found, axis, *each) for each in _READ.items()]}
        for axis in range(len(found[0]["axes"]))
    ]
    spec = Chart("scaling", label, "", {"vconcat": rows}).alone()
    # Panels have sizes of their own.
    bare = {key: value for key, value in spec.items() if key not in ("width", "height", "autosize")}
    return standalone(svg(bare | {"padding": 8, "bounds": "full"}, label))


_READ = {"seconds per round": _seconds("round"), "peak memory of rounds (MB)": memory("round")}


POWERS = range(-4, 6)
"""Of ten, where a grid has its lines."""


def _panel(
    found: list[Record], number: int, title: str, read: Callable[[Record], float]
) -> dict[str, Any]:
    """Return a panel: a line for every method and place, on logarithmic axes."""
    from masquerade.report.charts import COLORS, SHAPES

    axis, names = found[0]["axes"][number], methods(found[0])
    rows = [
        {"method": method, "place": measured["place"], "x": value, "y": read(point)}
        for measured in found
        for method in methods(measured)
        for value, point in along(measured, axis, method)
    ]
    places = [measured["place"] for measured in found]
    all_of_them = [read(point) for measured in found for point in measured["points"]]
    plain, tall = {"type": "log", "nice": False}, [min(all_of_them), max(all_of_them)]
    across = {"title": _noun(axis["name"]), "format": "~s", "tickCount": 5}

    def told(field: str, domain: list[str], range: Sequence[object]) -> dict[str, Any]:
        kept = list(range)[: len(domain)]
        return {"field": field, "type": "nominal", "scale": {"domain": domain, "range": kept}}

    lines = [f"{how}: {place}" for how, place in zip(("solid", "dashed"), places, strict=False)]
    legend = {"legend": {"title": ", ".join(lines), "titleLimit": 400}}
    return {
        "title": {"text": title if not number else "", "fontSize": 12, "color": "currentColor"},
        "width": 240,
        "height": 170,
        "data": {"values": rows},
        "mark": {"type": "line", "point": {"filled": True, "size": 40}},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "scale": plain, "axis": across},
            "y": {
                "field": "y",
                "type": "quantitative",
                # The same in all rows, so that they can be compared.
                "scale": plain | {"domain": tall},
                "axis": {"title": None, "format": "~g", "values": [10**power for power in POWERS]},
            },
            "color": told("method", names, COLORS) | legend,
            "shape": told("method", names, SHAPES) | legend,
            "strokeDash": told("place", places, ([1, 0], [5, 4]))
            | {
                "legend": {
                    "symbolType": "stroke",
                    "symbolStrokeWidth": 2,
                    "symbolStrokeColor": "gray",
                }
            },
        },
    }
