"""What a figure is: a text in Vega-Lite, drawn alike on a page, as a file and in a notebook."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from masquerade.report.tables import Results, by_method, is_percent
from masquerade.results import Summary
from masquerade.results.metric_names import metric_title

Spec = dict[str, Any]
"""A piece of Vega-Lite."""
Row = dict[str, Any]
"""What is drawn of one thing, by the name of a field."""

# Okabe and Ito's colors without black and yellow, which vanish on a dark or a light page.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right")

WIDTH = 560
"""Of a figure that is no part of a page; on a page it is as wide as there is room."""
INK = "currentColor"
"""Text and axes take the color of what surrounds them: a page may be light, dark, or paper."""
NARROW = 36
"""Letters, at most, in a line of what stands at an axis."""
FONT = "system-ui, sans-serif"
LETTER, MARK = 7.0, 36.0
"""Pixels, at most, of a usual letter of a legend, and of the marker and the gap beside a name."""

_QUIET = {"titleFontWeight": "normal", "titleFontSize": 12, "labelFontSize": 11.5}
_CONFIG: Spec = {
    "background": None,
    "font": FONT,
    "padding": {"left": 0, "right": 6, "top": 6, "bottom": 4},
    "view": {"stroke": None},
    "axis": {
        **_QUIET,
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor", "gridColor"), INK),
        "gridOpacity": 0.13,
        "domainOpacity": 0.5,
        "tickOpacity": 0.5,
        "titlePadding": 10,
        "labelLimit": 150,
        "labelOverlap": True,
        "labelPadding": 5,
        # A number stands under its tick, also at an end; on a phone some are left out.
        "labelFlush": False,
        "labelSeparation": 6,
    },
    "axisX": {"grid": False},
    "legend": {
        **_QUIET,
        "labelColor": INK,
        "titleColor": INK,
        "orient": "top",
        "title": None,
        "symbolStrokeWidth": 0,
        "columnPadding": 14,
    },
    "text": {"color": INK, "fontSize": 11.5},
    "rule": {"color": INK, "opacity": 0.5},
    # Each mark's own description would be half of a figure's text; what is drawn is in the tables.
    **{kind: {"aria": False} for kind in ("line", "area", "bar", "tick")},
}


@dataclass(frozen=True)
class Chart:
    """A figure: what stands above and below it, and how it is drawn."""

    name: str
    title: str
    caption: str
    spec: Spec
    """Its marks and data, without a size or a style."""
    height: int = 300

    def on_page(self) -> Spec:
        """Return all that a page's script draws: as wide as there is room, in the page's colors.

        Methods have no legend here: a page has one for all of its figures.
        """
        return self._styled("container", {"legend": {**_CONFIG["legend"], "disable": True}})

    def alone(self, *, legend: bool = True, title: bool = False) -> Spec:
        """Return all that is drawn without a script, as wide as a column of text."""
        drawn = list(_encodings(self.spec))
        shown = _legend(drawn) if legend else {"disable": True}
        off: Spec = {"legend": {**_CONFIG["legend"], **shown}}
        # Letters may be wider where the file is read than where it was drawn, also names at rows.
        named = any(each.get("y", {}).get("type") == "nominal" for each in drawn)
        off["padding"] = {**_CONFIG["padding"], "left": 16 if named else 0, "right": 24}
        style: Spec = {"anchor": "start", "color": INK, "fontSize": 14, "offset": 12}
        return self._styled(WIDTH, off) | (
            {"title": {"text": self.title, **style}} if title else {}
        )

    def _styled(self, width: int | str, config: Spec) -> Spec:
        return {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "description": self.title,
            "width": width,
            "height": self.height,
            "autosize": {"type": "fit-x", "contains": "padding"},
            "config": _CONFIG | config,
            **self.spec,
        }


def _encodings(spec: Spec) -> Iterator[Spec]:
    """Yield how a figure and its layers are drawn from their data."""
    yield spec.get("encoding", {})
    for layer in spec.get("layer", ()):
        yield from _encodings(layer)


def _legend(encodings: Iterable[Spec]) -> Spec:
    """Break the legend of methods into lines where a single one would be wider than a figure."""
    colors = [each.get("color", {}) for each in encodings]
    usual = [color for color in colors if "legend" not in color]
    names = {name for color in usual for name in color.get("scale", {}).get("domain", ())}
    widths = [LETTER * len(name) + MARK for name in names]
    lines = {"columns": max(1, int(WIDTH // max(widths)))} if sum(widths) > WIDTH else {}
    # A band is faint, and its method is not.
    return {**lines, "symbolOpacity": 1} if names else {}


FOLLOWED: list[Spec] = [{"name": "method", "value": ""}, {"name": "client", "value": ""}]
"""What a reader follows through all figures of a page, which its script sets; nothing at first."""
FAINT: Spec = {
    "condition": {"test": "method == '' || method == datum.method", "value": 1},
    "value": 0.12,
}
"""The opacity of a mark: the method that is followed stands out."""


def titles(results: Results) -> list[str]:
    """Return what methods are called, in their order."""
    return list(dict.fromkeys(seeds[0].title for seeds in by_method(results).values()))


def color_of(place: int) -> str:
    """Return the color of a method, the same in all figures."""
    return COLORS[place % len(COLORS)]


def shape_of(place: int) -> str:
    """Return the marker of a method, so that no one has to tell colors apart."""
    return SHAPES[(place + place // len(COLORS)) % len(SHAPES)]


def by_color(results: Results, named: bool = False) -> Spec:
    """Return the encodings by which methods are told apart, and how the one followed stands out.

    Where methods are named, as rows are, no legend names them once more.
    """
    names = titles(results)
    kinds = {"color": color_of, "shape": shape_of}
    channels: Spec = {
        channel: {
            "field": "method",
            "type": "nominal",
            "scale": {"domain": names, "range": list(map(found, range(len(names))))},
        }
        for channel, found in kinds.items()
    }
    if named:
        channels = {name: {**found, "legend": None} for name, found in channels.items()}
    return {**channels, "opacity": FAINT}


def without_shape(channels: Spec) -> Spec:
    """Return the encodings of marks that have no shape."""
    return {name: found for name, found in channels.items() if name != "shape"}


def rows_of(results: Results, rows: Callable[[list[Summary]], Sequence[Row]]) -> list[Row]:
    """Return the rows of all methods, each with its method; what is not finite has no place."""
    return [
        {"method": seeds[0].title, **row}
        for seeds in by_method(results).values()
        for row in rows(seeds)
        if all(math.isfinite(each) for each in row.values() if isinstance(each, float))
    ]


def number(field: str, title: str, *, form: str = "", **scale: Any) -> Spec:
    """Encode numbers along an axis."""
    # A phone has room for so many letters side by side.
    lines = wrap(title, NARROW)
    axis: Spec = {
        "title": lines[0] if len(lines) == 1 else lines,
        "tickCount": 6,
        **({"format": form} if form else {}),
        # Between two rounds there is none, which Vega would call as the nearest one.
        **({"labelExpr": "datum.value % 1 ? '' : datum.label"} if form == "d" else {}),
    }
    return {
        "field": field,
        "type": "quantitative",
        "axis": axis,
        "scale": {"nice": True, **({} if "type" in scale else {"zero": False}), **scale},
    }


def methods_as_rows(results: Results) -> Spec:
    """Encode methods as the rows of a figure."""
    axis = {"title": None, "domain": False, "ticks": False, "labelFontSize": 12, "labelLimit": 130}
    return {"field": "method", "type": "nominal", "sort": titles(results), "axis": axis}


def told(fields: Mapping[str, str | tuple[str, str]]) -> list[Spec]:
    """Return what is told of a mark beneath the pointer: title → field, or field and format."""
    found = []
    for title, field in fields.items():
        name, form = (field, "") if isinstance(field, str) else field
        found.append({"field": name, "title": title} | ({"format": form} if form else {}))
    return found


def digits(results: Results) -> str:
    """Return the format in which figures of the metric are told."""
    return ".1f" if is_percent(results) else ".3~r"


def metric(results: Results, where: str = "") -> str:
    """Return the label of an axis of the metric."""
    name = metric_title(results[0].metric)
    return " ".join(filter(None, (name, where, "(%)" if is_percent(results) else "")))
