"""Figures drawn without a browser, and the script that draws them in one, both by vl-convert.

The script is vega, vega-lite and vega-embed in one text. It comes with vl-convert, so that a page
needs nothing of the network; no copy of it lies in this package.
"""

import html
from functools import cache
from importlib.util import find_spec

from masquerade.errors import MasqueradeError
from masquerade.report.charts import INK, Chart, Spec

LANGUAGE = "6.4"
"""The version of Vega-Lite that figures are written in."""

_LIGHT, _DARK = "color:#1b1c1d;background:#ffffff", "color:#e8e8e8;background:#14171c"


def can_draw() -> bool:
    """Tell whether figures can be drawn here; machines that only train have nothing to do so."""
    return find_spec("vl_convert") is not None


@cache
def script() -> str:
    """Return the script that draws figures in a browser."""
    from vl_convert import javascript_bundle

    return javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=LANGUAGE)


def svg(spec: Spec, label: str) -> str:
    """Return a figure as an SVG that takes the colors of what surrounds it."""
    from vl_convert import vegalite_to_svg

    text = vegalite_to_svg(spec, vl_version=LANGUAGE)
    opening = f'<svg role="img" aria-label="{html.escape(label)}" '
    return text.replace("<svg ", opening, 1)


def standalone(drawn: str) -> str:
    """Return an SVG for a file of its own: with a ground, light or dark as the reader's system.

    Without a ground its text would vanish on a page that is dark on a light system.
    """
    head, rest = drawn.split(">", 1)
    style = f"svg{{{_LIGHT}}}@media(prefers-color-scheme:dark){{svg{{{_DARK}}}}}"
    return f"{head}><style>{style}</style>{rest}"


def file_of(chart: Chart, kind: str) -> bytes:
    """Return a figure as the bytes of a file: "svg" or "png"."""
    spec = chart.alone(title=True)
    if kind == "svg":
        return standalone(svg(spec, chart.title)).encode()
    if kind != "png":
        raise MasqueradeError("E201", f"figures are written as svg or png, not as `{kind}`")
    from vl_convert import svg_to_png

    drawn = svg(spec, chart.title).replace(INK, "#1b1c1d")
    return svg_to_png(drawn, scale=2.0)
