"""How figures are drawn: SVG texts that need nothing else and follow the page's colors."""

import html
import io
import re
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from masquerade.report.tables import Results, by_method, is_percent
from masquerade.results import Summary
from masquerade.results.metric_names import metric_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox, Transform

# Okabe and Ito's colors without black and yellow, which vanish on a dark or a light page.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")
MARKERS = "osD^vPX"

# Text and axes take this color, which is then replaced by that of the surrounding page.
INK = "#1b1c1d"

_STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}

# Where a name may stand beside its point, in points, from the best place to the worst.
_PLACES = [
    (side * 11, step * 13, "left" if side > 0 else "right")
    for step in (0, 1, -1, 2, -2, 3, -3, 4, -4)
    for side in (1, -1)
]

Point = tuple[float, float]


class Line(NamedTuple):
    """One method's points, with its style, in the order of x."""

    name: str
    number: int
    points: list[Point]

    @property
    def color(self) -> str:
        """Return the method's color, the same in all figures."""
        return COLORS[self.number % len(COLORS)]

    @property
    def marker(self) -> str:
        """Return the method's marker, so that no one has to tell colors apart."""
        return MARKERS[(self.number + self.number // len(COLORS)) % len(MARKERS)]


def spaced(wanted: Sequence[float], gap: float) -> list[float]:
    """Move ascending places within 0 … 1 as little as it takes to keep them `gap` apart."""
    blocks: list[list[float]] = []
    for rank, place in enumerate(wanted):
        blocks.append([place - rank * gap])
        while len(blocks) > 1 and statistics.fmean(blocks[-2]) > statistics.fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    levels = [statistics.fmean(block) for block in blocks for _ in block]
    top = max(0.0, 1 - (len(wanted) - 1) * gap)
    return [min(max(level, 0.0), top) + rank * gap for rank, level in enumerate(levels)]


def lines_of(results: Results, points: Callable[[list[Summary]], list[Point]]) -> list[Line]:
    """Return a line for every method that has points."""
    groups = by_method(results).values()
    lines = [Line(seeds[0].title, number, points(seeds)) for number, seeds in enumerate(groups)]
    return [line for line in lines if line.points]


def metric(results: Results, where: str = "") -> str:
    """Return the label of an axis of the metric."""
    name = metric_title(results[0].metric)
    return " ".join(filter(None, (name, where, "(%)" if is_percent(results) else "")))


def draw(
    name: str, label: str, lines: list[Line], paint: Callable[["Axes"], None], height: float = 0.0
) -> str:
    """Return the SVG of a figure of lines that is painted on axes; empty without lines."""
    if not lines:
        return ""
    inches = height or _height(len(lines))
    return drawn(name, label, inches, lambda figure: paint(figure.subplots()))


def drawn(name: str, label: str, height: float, paint: Callable[["Figure"], None]) -> str:
    """Return a figure in the style of the page as SVG; `height` is in inches."""
    import matplotlib.style
    from matplotlib.figure import Figure

    stream = io.StringIO()
    with matplotlib.style.context(["default", _STYLE | {"svg.hashsalt": name}]):
        figure = Figure(figsize=(6.4, height), layout="constrained")
        paint(figure)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", metadata=nothing, transparent=True)
    return _for_page(stream.getvalue(), name, label)


def _height(names: int) -> float:
    """Return the inches that so many names at the right edge need; 0.6 are below the axes."""
    return max(3.6, 1.0 + 0.22 * names)


def _for_page(svg: str, name: str, label: str) -> str:
    # Several figures stand in one page, so ids get the figure's name; the header is not HTML.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg[svg.index("<svg ") :])
    opening = f'<svg role="img" aria-label="{html.escape(label)}" '
    return svg.replace("<svg ", opening, 1).replace(INK, "currentColor")


_LIGHT, _DARK = "color:#1b1c1d;background:#ffffff", "color:#e8e8e8;background:#14171c"


def standalone(svg: str) -> str:
    """Return a figure for a file of its own: with a ground, light or dark as the reader's system.

    Without a ground its text would vanish on a page that is dark on a light system.
    """
    head, rest = svg.split(">", 1)
    style = f"svg{{{_LIGHT}}}@media(prefers-color-scheme:dark){{svg{{{_DARK}}}}}"
    return f"{head}><style>{style}</style>{rest}"


def paint_bands(
    axes: "Axes", lines: list[Line], stds: list[Line], within: tuple[float, float]
) -> None:
    """Paint a band around each line, as wide as its standard deviations, `within` two values."""
    least, most = within
    widths = {line.number: dict(line.points) for line in stds}
    for line in lines:
        around = widths.get(line.number, {})
        x = [place for place, _ in line.points if place in around]
        low, high = (
            [
                min(max(value + side * around[place], least), most)
                for place, value in line.points
                if place in around
            ]
            for side in (-1, 1)
        )
        axes.fill_between(x, low, high, color=line.color, alpha=0.08, linewidth=0)


def paint_lines(axes: "Axes", lines: list[Line]) -> None:
    """Paint lines with their names at the right edge."""
    for line in lines:
        x, y = zip(*line.points, strict=True)
        axes.plot(x, y, color=line.color, marker=line.marker)
    axes.grid(axis="y", linewidth=0.4, alpha=0.35)
    axes.margins(x=0.02)
    low, high = axes.get_ylim()
    ends = sorted(lines, key=lambda line: line.points[-1][1])
    wanted = [(line.points[-1][1] - low) / (high - low) for line in ends]
    places = spaced(wanted, gap=0.2 / (_height(len(lines)) - 0.6))
    for line, place in zip(ends, places, strict=True):
        _annotate(axes, line, line.points[-1], (1.04, place), textcoords="axes fraction")


def paint_rows(axes: "Axes", lines: list[Line]) -> None:
    """Paint one row per method, with a dot for each client and a bar at their mean.

    Clients that were not in training, whose points have a second number, are rings beside the mean.
    """
    for row, line in enumerate(lines):
        x = [value for value, _ in line.points]
        # Multiples of the golden ratio place dots evenly without any randomness.
        y = [row + 0.5 * (number * 0.618 % 1 - 0.5) for number in range(len(x))]
        inside = [f"{line.color}{'00' if novel else 'bf'}" for _, novel in line.points]
        axes.scatter(x, y, s=16, facecolors=inside, edgecolors=line.color, linewidths=0.8)
        middle = statistics.fmean([value for value, novel in line.points if not novel] or x)
        axes.plot([middle, middle], [row - 0.36, row + 0.36], color=INK, linewidth=1.6)
    name_rows(axes, lines)


def name_rows(axes: "Axes", lines: list[Line]) -> None:
    """Write the methods' names on the left of their rows."""
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def height_of_rows(rows: int) -> float:
    """Return the inches that so many rows need."""
    return 1.0 + 0.42 * rows


def paint_traffic(axes: "Axes", lines: list[Line]) -> None:
    """Paint a point per method, with its name beside it."""
    sizes = [line.points[0][0] for line in lines if line.points[0][0] > 0]
    if sizes and max(sizes) > 20 * min(sizes):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(min(sizes) / 3, max(sizes) * 6)
    else:
        axes.set_xlim(0, max(sizes, default=1.0) * 1.35)
    axes.margins(y=0.15)
    labels = []
    for line in lines:
        size, value = line.points[0]
        # What sends nothing stands on the left edge, which a logarithmic axis has no number for.
        across = axes.transData if size else axes.get_yaxis_transform()
        (mark,) = axes.plot(size, value, line.marker, color=line.color, transform=across)
        mark.set(markersize=8, clip_on=False, zorder=3)
        name = line.name if size else f"{line.name} (sends nothing)"
        labels.append((line._replace(name=name), across))
    axes.grid(linewidth=0.4, alpha=0.35)
    label_points(axes, labels)


def label_points(
    axes: "Axes", labels: list[tuple[Line, "Transform"]], avoid: Sequence[Point] = ()
) -> None:
    """Write names beside points, where each covers the fewest names, points and those to avoid."""
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    assert isinstance(axes.figure, Figure)
    axes.figure.draw_without_rendering()
    frame = axes.get_window_extent()
    pixels = [across.transform(line.points[0]) for line, across in labels]
    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in pixels]
    taken += [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in map(axes.transData.transform, avoid)]
    for (line, _), pixel in zip(labels, pixels, strict=True):
        x, y = axes.transAxes.inverted().transform(pixel)
        text = _annotate(axes, line, (x, y), xycoords="axes fraction", textcoords="offset points")
        boxes = [_move(text, place) for place in _PLACES]
        faults = [
            sum(box.overlaps(other) for other in taken) + (box.x0 < frame.x0 or box.x1 > frame.x1)
            for box in boxes
        ]
        taken.append(_move(text, _PLACES[faults.index(min(faults))]))


def _move(text: "Annotation", place: tuple[float, float, str]) -> "Bbox":
    from matplotlib.text import Text

    text.set(position=place[:2], horizontalalignment=place[2])
    text.get_window_extent()  # Only this takes the new position; what it returns has the leader.
    return Text.get_window_extent(text)


def _annotate(
    axes: "Axes", line: Line, point: Point, place: Point = (0, 0), **kinds: str
) -> "Annotation":
    leader = {"arrowstyle": "-", "color": line.color, "linewidth": 0.8, "shrinkB": 4}
    # Names at the right edge are reached from the left; those beside points, from any side.
    leader |= {"relpos": (0, 0.5)} if place[0] else {}
    text = axes.annotate(line.name, point, place, arrowprops=leader, annotation_clip=False, **kinds)
    text.set(verticalalignment="center")
    return text


SHADES = 10
"""How many shades a matrix has: cells of one shade are one path, which keeps the page small."""


def matrix(tables: Sequence[Sequence[Sequence[float]]], label: str) -> str:
    """Draw the mean of square tables of shares as an SVG, darker where it is higher."""
    size = len(tables[0])
    cells: dict[int, list[str]] = {}
    for row in range(size):
        for column in range(size):
            value = statistics.fmean(table[row][column] for table in tables)
            cells.setdefault(round(value * SHADES), []).append(f"M{column} {row}h1v1h-1z")
    paths = "".join(
        f'<path fill="currentColor" fill-opacity="{shade / SHADES}" d="{"".join(places)}"/>'
        for shade, places in sorted(cells.items())
        if shade
    )
    opening = f'<svg role="img" aria-label="{html.escape(label)}" viewBox="0 0 {size} {size}"'
    return f'{opening} shape-rendering="crispEdges">{paths}</svg>'
