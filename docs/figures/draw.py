"""Draw the figures of the documentation: `python docs/figures/draw.py` writes all of them.

Coordinates are hundredths of an inch from the top left corner; a figure is 640 of them wide.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple

from masquerade.report.drawing import COLORS, Line, drawn, label_points, standalone
from masquerade.reproduce import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
FIGURES = Path("docs/figures")
SHARED, OWN, SENT, GRAY = COLORS[0], COLORS[1], COLORS[2], COLORS[6]
"""What everybody has, what one client has, what is sent, and what is off or frozen."""

Paint = Callable[["Axes"], None]
Cells = Sequence[Sequence[str]]
"""Rows of a matrix: a color for each entry, or nothing where it is off."""


def canvas(figure: "Figure", paint: Paint) -> None:
    """Paint on axes that cover a figure, in hundredths of an inch."""
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    width, height = figure.get_size_inches() * 100
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    paint(axes)


def text(
    axes: "Axes",
    x: float,
    y: float,
    words: str,
    align: Literal["left", "center", "right"] = "center",
    bold: bool = False,
    size: float = 8.5,
) -> None:
    """Write lines around a point."""
    weight = "bold" if bold else "normal"
    kinds = {"horizontalalignment": align, "verticalalignment": "center"}
    axes.text(x, y, words, size=size, weight=weight, linespacing=1.35, **kinds)


def box(
    axes: "Axes", x: float, y: float, width: float, height: float, color: str, words: str = ""
) -> None:
    """Draw a box with rounded corners and words in its middle."""
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=5"
    sides = {"boxstyle": style, "edgecolor": color, "facecolor": f"{color}20"}
    axes.add_patch(FancyBboxPatch((x, y), width, height, linewidth=1.2, **sides))
    text(axes, x + width / 2, y + height / 2, words)


def arrow(axes: "Axes", begin: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """Draw an arrow between two points."""
    line = {"arrowstyle": "-|>", "color": color, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=begin, arrowprops=line | {"mutation_scale": 9})


def matrix(axes: "Axes", x: float, y: float, cells: Cells, size: float = 17) -> None:
    """Draw a matrix: filled where an entry has a color, empty where it is off."""
    from matplotlib.patches import Rectangle

    for row, colors in enumerate(cells):
        for column, color in enumerate(colors):
            corner = (x + column * size, y + row * size)
            fill = f"{color}b0" if color else "none"
            axes.add_patch(
                Rectangle(corner, size, size, facecolor=fill, edgecolor=GRAY, linewidth=0.7)
            )


def places(axes: "Axes") -> None:
    """The five places: who sees what, how long it lives, what it costs."""
    text(axes, 112, 18, "the server", bold=True)
    text(axes, 320, 18, "the wire", bold=True)
    text(axes, 528, 18, "one client", bold=True)
    box(axes, 15, 35, 195, 60, SHARED, "server\nthe run · costs nothing")
    box(axes, 15, 110, 195, 60, SHARED, "row, one per client\nthe run · costs nothing")
    box(axes, 248, 72, 144, 60, SENT, "message\none exchange · bytes")
    box(axes, 430, 35, 195, 60, OWN, "work\none round · memory, FLOPs")
    box(axes, 430, 110, 195, 60, OWN, "client, never sent\nthe run · storage on device")
    for y, left, right in ((88, 212, 246), (88, 394, 428)):
        arrow(axes, (left, y), (right, y), SENT)
    for y, left, right in ((116, 212, 246), (116, 394, 428)):
        arrow(axes, (right, y), (left, y), SENT)
    text(axes, 320, 55, "download →", size=8)
    text(axes, 320, 149, "← upload", size=8)


def one_round(axes: "Axes") -> None:
    """One round, from the schedule to the new server."""
    text(axes, 105, 16, "the server", bold=True)
    text(axes, 475, 16, "every sampled client", bold=True)
    box(axes, 15, 32, 180, 34, SHARED, "schedule: the phase")
    box(axes, 15, 80, 180, 34, SHARED, "sample the cohort")
    box(axes, 15, 128, 180, 34, SHARED, "download(server, row)")
    box(axes, 15, 278, 180, 34, SHARED, "aggregate(server, rows,\nuploads, cohort)")
    for y in (66, 114):
        arrow(axes, (105, y), (105, y + 14), SHARED)
    box(axes, 335, 128, 280, 34, OWN, "start(message, client) → work")
    box(axes, 335, 178, 280, 84, OWN)
    text(axes, 475, 193, "for each stage in plan", bold=True)
    for x, words in ((345, "begin"), (435, "step, batch\nby batch"), (525, "then")):
        box(axes, x, 207, 80, 42, OWN, words)
    for x in (425, 515):
        arrow(axes, (x, 228), (x + 10, 228), OWN)
    box(axes, 335, 278, 280, 34, OWN, "finish(work, …) → upload, client")
    for y in (162, 262):
        arrow(axes, (475, y), (475, y + 16), OWN)
    arrow(axes, (195, 145), (333, 145), SENT)
    text(axes, 264, 134, "message", size=8)
    arrow(axes, (335, 295), (197, 295), SENT)
    text(axes, 264, 284, "message", size=8)
    arrow(axes, (105, 312), (105, 332), SHARED)
    text(axes, 105, 342, "new server, new rows")
    arrow(axes, (475, 312), (475, 332), OWN)
    text(axes, 475, 342, "client: kept until its next round")


GLOBAL_MASK = "11..1 .11.. 1..1. .11.1 1..1."
OWN_MASK = "1.1.1 .1.1. 11.1. ..1.1 .1.1."
"""Rows of m_g and m_c, twelve of 25 entries each."""


def overlay(pattern: str, *, shared: str, own: str) -> Cells:
    """Return the cells of a mask: one color where m_g has the entry too, another where not."""
    return [
        [(shared if known == "1" else own) if one == "1" else "" for one, known in pair]
        for pair in (
            zip(*rows, strict=True)
            for rows in zip(pattern.split(), GLOBAL_MASK.split(), strict=True)
        )
    ]


def dual_masks(axes: "Axes") -> None:
    """DM-PFL's two masks, their intersection, and the two models."""
    panels = (
        (65, 34, "m_g, the server's mask", overlay(GLOBAL_MASK, shared=SHARED, own=SHARED)),
        (270, 34, "m_c, a client's mask", overlay(OWN_MASK, shared=GRAY, own=GRAY)),
        (475, 34, "m_g ∩ m_c, shared weights", overlay(OWN_MASK, shared=SHARED, own="")),
        (65, 166, "θ_g, the global model", overlay(GLOBAL_MASK, shared=SHARED, own=SHARED)),
        (270, 166, "θ_c, the personal model", overlay(OWN_MASK, shared=SHARED, own=OWN)),
    )
    for x, y, title, cells in panels:
        text(axes, x + 42, y - 16, title, bold=True)
        matrix(axes, x, y, cells)
    text(axes, 210, 76, "∩", size=14)
    text(axes, 415, 76, "=", size=14)
    text(axes, 107, 266, "w_g on m_g")
    text(axes, 312, 275, "w_g on m_g ∩ m_c\n+ w_c on m_c − m_g")
    for y, color, words in (
        (180, SHARED, "weight of the server, w_g"),
        (206, OWN, "weight of this client, w_c"),
        (232, "", "off: zero"),
    ):
        matrix(axes, 440, y - 8, [[color]])
        text(axes, 468, y, words, "left")


def fedmask_bits(axes: "Axes") -> None:
    """FedMask's scores, bits, frozen weights, and what is sent."""
    scores = [["+.02", "-.01", "+.04"], ["-.03", "+.01", "+.02"], ["+.05", "+.01", "-.02"]]
    bits = [[float(score) >= 0 for score in row] for row in scores]
    signs = [["+w", "-w", "-w"], ["-w", "+w", "-w"], ["+w", "-w", "+w"]]
    used = [
        [sign if bit else "0" for sign, bit in zip(*row, strict=True)]
        for row in zip(signs, bits, strict=True)
    ]
    ones = [["1" if bit else "0" for bit in row] for row in bits]
    panels = (
        ("scores, trained", scores, OWN, bits),
        ("bits", ones, SENT, bits),
        ("weights, frozen", signs, GRAY, [[True] * 3] * 3),
        ("the model", used, OWN, bits),
    )
    for place, (title, words, color, on) in enumerate(panels):
        x = 18 + place * 162
        text(axes, x + 54, 18, title, bold=True)
        cells = [[color if flag else "" for flag in row] for row in on]
        matrix(axes, x, 34, cells, size=36)
        for row, line in enumerate(words):
            for column, word in enumerate(line):
                text(axes, x + 18 + column * 36, 52 + row * 36, word, size=8)
    text(axes, 153, 78, "σ ≥ ½", size=8)
    arrow(axes, (130, 92), (176, 92), OWN)
    text(axes, 315, 88, "×", size=13)
    text(axes, 477, 88, "=", size=13)
    text(axes, 396, 156, "the same for all, from a seed", size=8)
    box(axes, 150, 192, 180, 44, SHARED, "the server: mean of bits,\nrounded, where two overlap")
    arrow(axes, (250, 144), (250, 190), SENT)
    text(axes, 258, 172, "up: one bit per weight", "left", size=8)
    arrow(axes, (148, 214), (72, 146), SENT)
    text(axes, 118, 206, "down: bits,\nstart as ±c", "right", size=8)
    text(axes, 350, 214, "Scores stay with the client.", "left", size=8)


def pfedgate_gate(axes: "Axes") -> None:
    """PFedGate's gate: from a batch to the blocks that a client uses."""
    box(axes, 10, 45, 80, 50, GRAY, "batch x")
    box(axes, 125, 30, 140, 80, OWN, "gate, private\nnorm → linear →\nnorm → sigmoid")
    scores = (0.9, 0.3, 0.7, 0.2, 0.6)
    # Blocks are of one size here, and the budget has room for three.
    chosen = [score in sorted(scores)[-3:] for score in scores]
    text(axes, 350, 18, "block scores", bold=True)
    text(axes, 545, 18, "blocks chosen", bold=True)
    for place, (score, on) in enumerate(zip(scores, chosen, strict=True)):
        y = 32 + place * 17
        box(axes, 310, y, 80 * score, 13, OWN)
        text(axes, 303, y + 7, f"{place + 1}", "right", size=7.5)
        matrix(axes, 520, y - 2, [[OWN if on else ""]])
        text(axes, 545, y + 7, "1" if on else "0", "left", size=7.5)
    arrow(axes, (90, 70), (123, 70), OWN)
    arrow(axes, (265, 70), (292, 70), OWN)
    arrow(axes, (400, 70), (510, 70), OWN)
    text(axes, 455, 56, "knapsack", size=8)
    text(axes, 455, 84, "within the\nclient's budget", size=8)
    box(axes, 125, 160, 140, 50, SHARED, "shared model θ_g\nin blocks")
    box(
        axes,
        370,
        160,
        250,
        50,
        OWN,
        "the client's model: θ_g × chosen\n× the gate's weight of the block",
    )
    arrow(axes, (265, 185), (368, 185), SHARED)
    arrow(axes, (530, 120), (530, 158), OWN)
    text(axes, 10, 232, "The gate stays with its client.", "left", size=8)
    text(axes, 620, 232, "Sent: a bit per block, and the blocks chosen.", "right", size=8)


class Point(NamedTuple):
    """A row of Table 1: accuracy on own data and at full shift."""

    title: str
    ours: tuple[float, float]
    paper: tuple[float, float]


def points() -> list[Point]:
    """Read what Table 1 prints, and the mean of our seeds."""
    found = table.read("dmpfl/table1", ROOT)
    at = {column.name: place for place, column in enumerate(found.columns)}
    own, shifted = at["w/o shift"], at["100 %"]
    rows = []
    for row, papers in found.figures.items():
        files = sorted(found.results.glob(f"{row}-seed*.json"))
        results = [json.loads(file.read_text(encoding="utf-8"))["result"] for file in files]
        shifts = [result["accuracy"]["shift"] for result in results]
        ours = (fmean(shift[degree]["mean"] for shift in shifts) for degree in ("0", "100"))
        rows.append(Point(found.title_of(row), tuple(ours), (papers[own][0], papers[shifted][0])))
    return rows


def tradeoff(axes: "Axes") -> None:
    """Draw accuracy on own data against full shift, of every row of DM-PFL's Table 1."""
    labels, between = [], []
    for number, (title, ours, paper) in enumerate(points()):
        line = Line(title, number, [ours])
        axes.plot(*zip(paper, ours, strict=True), color=line.color, linewidth=0.8, alpha=0.6)
        axes.plot(*ours, line.marker, color=line.color, markersize=7)
        axes.plot(*paper, line.marker, color=line.color, markersize=7, fillstyle="none")
        labels.append((line, axes.transData))
        between += [
            tuple(a + (b - a) * step / 8 for a, b in zip(ours, paper, strict=True))
            for step in range(1, 9)
        ]
    axes.set(xlabel="Accuracy on own data (%)", ylabel="Accuracy at 100 % shift (%)")
    axes.grid(linewidth=0.4, alpha=0.35)
    axes.set_title("filled: ours, open: the paper's; better is up and to the right", fontsize=8.5)
    label_points(axes, labels, between)


DIAGRAMS: dict[str, tuple[float, str, Paint]] = {
    "places": (
        1.9,
        "The five places: server and row at the server, work and client at a client, "
        "and messages between them",
        places,
    ),
    "round": (
        3.55,
        "A round: the server sends a message to every sampled client, which starts, runs the "
        "stages of its plan and finishes; the server aggregates the uploads",
        one_round,
    ),
    "dual-masks": (
        2.95,
        "DM-PFL: the masks m_g and m_c, their intersection, the global model and the personal one",
        dual_masks,
    ),
    "fedmask-bits": (
        2.5,
        "FedMask: scores become bits by a threshold, bits select frozen weights, "
        "and only bits are sent",
        fedmask_bits,
    ),
    "pfedgate-gate": (
        2.5,
        "pFedGate: a private gate scores blocks by the batch, a knapsack chooses blocks within "
        "the client's budget, and the shared model is masked and scaled by them",
        pfedgate_gate,
    ),
}
"""Height in inches, alternative text, and what paints it."""


def figures() -> dict[Path, str]:
    """Return every figure's SVG by its path."""
    found = {
        FIGURES / f"{name}.svg": standalone(
            drawn(name, label, height, partial(canvas, paint=paint))
        )
        for name, (height, label, paint) in DIAGRAMS.items()
    }
    label = "Own data against 100 % shift: every row of Table 1, ours filled, the paper's open"
    curve = drawn("tradeoff", label, 4.6, lambda figure: tradeoff(figure.subplots()))
    return {**found, Path("docs/results/dmpfl-table1/tradeoff.svg"): standalone(curve)}


if __name__ == "__main__":
    for path, svg in figures().items():
        (ROOT / path).write_text(svg, encoding="utf-8")
        print(path)
