"""Results as figures: SVG texts that need nothing from elsewhere and follow the page's colors."""

import html
import io
import re
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from masquerade.cost.transfer import FEDMASK, Bandwidth, unit
from masquerade.report.tables import Result, Results, by_method, is_percent, mean, title, traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox, Transform

# Okabe and Ito's colors without black and yellow, which vanish on a dark or a light page.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")
MARKERS = "osD^vPX"

# Text and axes take this color, which is then replaced by that of the surrounding page.
_INK = "#1b1c1d"

_STYLE = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "svg.fonttype": "none",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
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


def figures(results: Results, rate: Bandwidth = FEDMASK) -> dict[str, str]:
    """Return as SVG what the results allow of `rounds`, `shift`, `traffic`, `time`, `clients`."""
    drawn = {
        "rounds": over_rounds(results),
        "shift": over_shift(results),
        "traffic": over_traffic(results),
        "time": over_time(results, rate),
        "clients": over_clients(results),
    }
    return {name: svg for name, svg in drawn.items() if svg}


def over_rounds(results: Results) -> str:
    """Draw the metric on own data against rounds; empty without a history."""
    lines = _lines(results, _history)

    def paint(axes: "Axes") -> None:
        axes.set(xlabel="Round", ylabel=_metric(results, "on own data"))
        _paint_lines(axes, lines)
        axes.locator_params(axis="x", integer=True)

    return _draw("rounds", "Own data against rounds", lines, paint)


def over_shift(results: Results) -> str:
    """Draw the metric against the degree of shift, ± std over clients; empty without shift."""
    lines = _lines(results, lambda seeds: _shift(seeds, "mean"))
    spreads = {line.number: line.points for line in _lines(results, lambda s: _shift(s, "std"))}

    def paint(axes: "Axes") -> None:
        axes.set(xlabel="Test data from another client (%)", ylabel=_metric(results))
        for line in lines:
            around = dict(spreads.get(line.number, ()))
            x = [degree for degree, _ in line.points if degree in around]
            low, high = (
                [value + side * around[degree] for degree, value in line.points if degree in around]
                for side in (-1, 1)
            )
            axes.fill_between(x, low, high, color=line.color, alpha=0.08, linewidth=0)
        _paint_lines(axes, lines)

    return _draw("shift", "Degrees of shift", lines, paint)


def over_traffic(results: Results) -> str:
    """Draw the metric on own data against MB per client; empty where no bytes are known."""

    def sent(seeds: Results) -> list[Point]:
        x, y = traffic(seeds), mean(seeds, "accuracy", "own", "mean")
        return [] if x is None or y is None else [(x / 1e6, y)]

    lines = _lines(results, sent)

    def paint(axes: "Axes") -> None:
        axes.set(xlabel="MB per client, down and up", ylabel=_metric(results, "on own data"))
        _paint_traffic(axes, lines)

    return _draw("traffic", "Own data against MB sent", lines, paint)


def over_time(results: Results, rate: Bandwidth) -> str:
    """Draw how long a client waits for its messages and computes; empty where nothing is known."""

    def spent(seeds: Results) -> list[Point]:
        down, up = (mean(seeds, "bytes", way) for way in ("down", "up"))
        computing = mean(seeds, "time", "training")
        if down is None or up is None or computing is None:
            return []
        clients = seeds[0]["clients"]
        return [(0, down / rate.down), (1, up / rate.up), (2, computing / clients)]

    lines = _lines(results, spent)
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
        _name_rows(axes, lines)

    return _draw("time", "Time to send and to compute", lines, paint, rows=True)


def over_clients(results: Results) -> str:
    """Draw every client's own metric, one row per method; empty where clients are not listed."""

    def dots(seeds: Results) -> list[Point]:
        listed = [seed.get("per_client", {}).get("own", []) for seed in seeds]
        values = [value for seed in listed for value in seed if value is not None]
        # Multiples of the golden ratio spread dots evenly without any randomness.
        return [(value, number * 0.618 % 1 - 0.5) for number, value in enumerate(values)]

    lines = _lines(results, dots)

    def paint(axes: "Axes") -> None:
        axes.set(xlabel=_metric(results, "of each client on its own data"))
        for row, line in enumerate(lines):
            x = [value for value, _ in line.points]
            y = [row + 0.5 * offset for _, offset in line.points]
            axes.scatter(x, y, s=16, color=line.color, alpha=0.75, linewidths=0)
            middle = statistics.fmean(x)
            axes.plot([middle, middle], [row - 0.36, row + 0.36], color=_INK, linewidth=1.6)
        _name_rows(axes, lines)

    return _draw("clients", "Each client's own data", lines, paint, rows=True)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Move ascending places within 0 … 1 as little as it takes to keep them `gap` apart."""
    blocks: list[list[float]] = []
    for rank, place in enumerate(wanted):
        blocks.append([place - rank * gap])
        while len(blocks) > 1 and statistics.fmean(blocks[-2]) > statistics.fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    levels = [statistics.fmean(block) for block in blocks for _ in block]
    top = max(0.0, 1 - (len(wanted) - 1) * gap)
    return [min(max(level, 0.0), top) + rank * gap for rank, level in enumerate(levels)]


def _lines(results: Results, points: Callable[[list[Result]], list[Point]]) -> list[Line]:
    groups = by_method(results).values()
    lines = [Line(title(seeds[0]), number, points(seeds)) for number, seeds in enumerate(groups)]
    return [line for line in lines if line.points]


def _history(seeds: Results) -> list[Point]:
    at: dict[float, list[float]] = {}
    for seed in seeds:
        for entry in seed.get("history", []):
            if entry["own"] is not None:
                at.setdefault(entry["round"], []).append(entry["own"])
    return [(number, statistics.fmean(values)) for number, values in sorted(at.items())]


def _shift(seeds: Results, key: str) -> list[Point]:
    known = seeds[0]["accuracy"].get("shift", {})
    degrees = sorted(int(degree) for degree in known if degree.isdigit())
    found = [(d, mean(seeds, "accuracy", "shift", str(d), key)) for d in degrees]
    return [(degree, value) for degree, value in found if value is not None]


def _metric(results: Results, where: str = "") -> str:
    name = str(results[0].get("metric", "accuracy")).capitalize()
    return " ".join(filter(None, (name, where, "(%)" if is_percent(results) else "")))


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


def _draw(
    name: str, label: str, lines: list[Line], paint: Callable[["Axes"], None], rows: bool = False
) -> str:
    if not lines:
        return ""
    height = 1.0 + 0.42 * len(lines) if rows else _height(len(lines))
    return drawn(name, label, height, lambda figure: paint(figure.subplots()))


def _name_rows(axes: "Axes", lines: list[Line]) -> None:
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _height(names: int) -> float:
    """Return the inches that so many names at the right edge need; 0.6 are below the axes."""
    return max(3.6, 1.0 + 0.22 * names)


def _for_page(svg: str, name: str, label: str) -> str:
    # Several figures stand in one page, so ids get the figure's name; the header is not HTML.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg[svg.index("<svg ") :])
    opening = f'<svg role="img" aria-label="{html.escape(label)}" '
    return svg.replace("<svg ", opening, 1).replace(_INK, "currentColor")


def _paint_lines(axes: "Axes", lines: list[Line]) -> None:
    for line in lines:
        x, y = zip(*line.points, strict=True)
        axes.plot(x, y, color=line.color, marker=line.marker)
    axes.grid(axis="y", linewidth=0.4, alpha=0.35)
    axes.margins(x=0.02)
    low, high = axes.get_ylim()
    ends = sorted(lines, key=lambda line: line.points[-1][1])
    wanted = [(line.points[-1][1] - low) / (high - low) for line in ends]
    places = spread(wanted, gap=0.2 / (_height(len(lines)) - 0.6))
    for line, place in zip(ends, places, strict=True):
        _annotate(axes, line, line.points[-1], (1.04, place), textcoords="axes fraction")


def _paint_traffic(axes: "Axes", lines: list[Line]) -> None:
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
    _label_points(axes, labels)


def _label_points(axes: "Axes", labels: list[tuple[Line, "Transform"]]) -> None:
    """Write names beside points, each at the first place where it covers nothing."""
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    assert isinstance(axes.figure, Figure)
    axes.figure.draw_without_rendering()
    frame = axes.get_window_extent()
    pixels = [across.transform(line.points[0]) for line, across in labels]
    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in pixels]
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
