"""Draw the figures of the documentation: `python docs/figures/draw.py` writes all of them.

Coordinates are hundredths of an inch from the top left corner; a figure is 640 of them wide.
"""

import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from masquerade.report.charts import COLORS, FONT, INK, Chart, Spec, color_of, shape_of
from masquerade.report.render import standalone, svg
from masquerade.reproduce import table

ROOT = Path(__file__).parents[2]
FIGURES = Path("docs/figures")
SHARED, OWN, SENT, GRAY = COLORS[0], COLORS[1], COLORS[2], COLORS[6]
"""What everybody has, what one client has, what is sent, and what is off or frozen."""

Sheet = list[str]
"""The elements of an SVG, in the order in which they are drawn."""
Paint = Callable[[Sheet], None]
Cells = Sequence[Sequence[str]]
"""Rows of a matrix: a color for each entry, or nothing where it is off."""
ANCHORS = {"left": "start", "center": "middle", "right": "end"}


def diagram(height: float, label: str, paint: Paint) -> str:
    """Return what is painted on a sheet as an SVG; `height` is in inches."""
    sheet: Sheet = []
    paint(sheet)
    frame = f'viewBox="0 0 640 {height * 100:g}" font-family="{FONT}" fill="{INK}"'
    opening = f'<svg role="img" aria-label="{html.escape(label)}" {frame}'
    return f'{opening} xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(sheet) + "\n</svg>\n"


def text(
    sheet: Sheet,
    x: float,
    y: float,
    words: str,
    align: str = "center",
    bold: bool = False,
    size: float = 8.5,
) -> None:
    """Write lines around a point; the size of letters is in points."""
    lines, high = words.split("\n"), size * 100 / 72
    style = f'text-anchor="{ANCHORS[align]}" font-size="{high:.1f}"'
    style += ' font-weight="bold"' if bold else ""
    for place, line in enumerate(lines):
        # The middle of a line's small letters lies a third of its size above where it stands.
        below = y + (place - (len(lines) - 1) / 2) * 1.35 * high + 0.34 * high
        sheet.append(f'<text x="{x:g}" y="{below:.1f}" {style}>{html.escape(line)}</text>')


def box(
    sheet: Sheet, x: float, y: float, width: float, height: float, color: str, words: str = ""
) -> None:
    """Draw a box with rounded corners and words in its middle."""
    sides = f'stroke="{color}" stroke-width="1.6" fill="{color}" fill-opacity="0.12"'
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    sheet.append(f'<rect {place} rx="5" {sides}/>')
    if words:
        text(sheet, x + width / 2, y + height / 2, words)


def arrow(sheet: Sheet, begin: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """Draw an arrow between two points."""
    along = (end[0] - begin[0], end[1] - begin[1])
    length = (along[0] ** 2 + along[1] ** 2) ** 0.5
    x, y = along[0] / length * 9, along[1] / length * 9
    line = f"M{begin[0]:g} {begin[1]:g}L{end[0] - x:.1f} {end[1] - y:.1f}"
    sheet.append(f'<path d="{line}" stroke="{color}" stroke-width="1.8"/>')
    sides = f"{-x - 0.45 * y:.1f} {-y + 0.45 * x:.1f}l{0.9 * y:.1f} {-0.9 * x:.1f}Z"
    sheet.append(f'<path d="M{end[0]:g} {end[1]:g}l{sides}" fill="{color}"/>')


def matrix(sheet: Sheet, x: float, y: float, cells: Cells, size: float = 17) -> None:
    """Draw a matrix: filled where an entry has a color, empty where it is off."""
    for row, colors in enumerate(cells):
        for column, color in enumerate(colors):
            place = f'x="{x + column * size:g}" y="{y + row * size:g}"'
            fill = f'fill="{color}" fill-opacity="0.7"' if color else 'fill="none"'
            sides = f'width="{size:g}" height="{size:g}" stroke="{GRAY}"'
            sheet.append(f"<rect {place} {sides} {fill}/>")


def places(sheet: Sheet) -> None:
    """The five places: who sees what, how long it lives, what it costs."""
    text(sheet, 112, 18, "the server", bold=True)
    text(sheet, 320, 18, "the wire", bold=True)
    text(sheet, 528, 18, "one client", bold=True)
    box(sheet, 15, 35, 195, 60, SHARED, "server\nthe run · costs nothing")
    box(sheet, 15, 110, 195, 60, SHARED, "row, one per client\nthe run · costs nothing")
    box(sheet, 248, 72, 144, 60, SENT, "message\none exchange · bytes")
    box(sheet, 430, 35, 195, 60, OWN, "work\none round · memory, FLOPs")
    box(sheet, 430, 110, 195, 60, OWN, "client, never sent\nthe run · storage on device")
    for y, left, right in ((88, 212, 246), (88, 394, 428)):
        arrow(sheet, (left, y), (right, y), SENT)
    for y, left, right in ((116, 212, 246), (116, 394, 428)):
        arrow(sheet, (right, y), (left, y), SENT)
    text(sheet, 320, 55, "download →", size=8)
    text(sheet, 320, 149, "← upload", size=8)


def one_round(sheet: Sheet) -> None:
    """One round, from the schedule to the new server."""
    text(sheet, 105, 16, "the server", bold=True)
    text(sheet, 475, 16, "every sampled client", bold=True)
    box(sheet, 15, 32, 180, 34, SHARED, "schedule: the phase")
    box(sheet, 15, 80, 180, 34, SHARED, "sample the cohort")
    box(sheet, 15, 128, 180, 34, SHARED, "download(server, row)")
    box(sheet, 15, 278, 180, 34, SHARED, "aggregate(server, rows,\nuploads, cohort)")
    for y in (66, 114):
        arrow(sheet, (105, y), (105, y + 14), SHARED)
    box(sheet, 335, 128, 280, 34, OWN, "start(message, client) → work")
    box(sheet, 335, 178, 280, 84, OWN)
    text(sheet, 475, 193, "for each stage in plan", bold=True)
    for x, words in ((345, "begin"), (435, "step, batch\nby batch"), (525, "then")):
        box(sheet, x, 207, 80, 42, OWN, words)
    for x in (425, 515):
        arrow(sheet, (x, 228), (x + 10, 228), OWN)
    box(sheet, 335, 278, 280, 34, OWN, "finish(work, …) → upload, client")
    for y in (162, 262):
        arrow(sheet, (475, y), (475, y + 16), OWN)
    arrow(sheet, (195, 145), (333, 145), SENT)
    text(sheet, 264, 134, "message", size=8)
    arrow(sheet, (335, 295), (197, 295), SENT)
    text(sheet, 264, 284, "message", size=8)
    arrow(sheet, (105, 312), (105, 332), SHARED)
    text(sheet, 105, 342, "new server, new rows")
    arrow(sheet, (475, 312), (475, 332), OWN)
    text(sheet, 475, 342, "client: kept until its next round")


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


def dual_masks(sheet: Sheet) -> None:
    """DM-PFL's two masks, their intersection, and the two models."""
    panels = (
        (65, 34, "m_g, the server's mask", overlay(GLOBAL_MASK, shared=SHARED, own=SHARED)),
        (270, 34, "m_c, a client's mask", overlay(OWN_MASK, shared=GRAY, own=GRAY)),
        (475, 34, "m_g ∩ m_c, shared weights", overlay(OWN_MASK, shared=SHARED, own="")),
        (65, 166, "θ_g, the global model", overlay(GLOBAL_MASK, shared=SHARED, own=SHARED)),
        (270, 166, "θ_c, the personal model", overlay(OWN_MASK, shared=SHARED, own=OWN)),
    )
    for x, y, title, cells in panels:
        text(sheet, x + 42, y - 16, title, bold=True)
        matrix(sheet, x, y, cells)
    text(sheet, 210, 76, "∩", size=14)
    text(sheet, 415, 76, "=", size=14)
    text(sheet, 107, 266, "w_g on m_g")
    text(sheet, 312, 275, "w_g on m_g ∩ m_c\n+ w_c on m_c − m_g")
    for y, color, words in (
        (180, SHARED, "weight of the server, w_g"),
        (206, OWN, "weight of this client, w_c"),
        (232, "", "off: zero"),
    ):
        matrix(sheet, 440, y - 8, [[color]])
        text(sheet, 468, y, words, "left")


def fedmask_bits(sheet: Sheet) -> None:
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
        text(sheet, x + 54, 18, title, bold=True)
        cells = [[color if flag else "" for flag in row] for row in on]
        matrix(sheet, x, 34, cells, size=36)
        for row, line in enumerate(words):
            for column, word in enumerate(line):
                text(sheet, x + 18 + column * 36, 52 + row * 36, word, size=8)
    text(sheet, 153, 78, "σ ≥ ½", size=8)
    arrow(sheet, (130, 92), (176, 92), OWN)
    text(sheet, 315, 88, "×", size=13)
    text(sheet, 477, 88, "=", size=13)
    text(sheet, 396, 156, "the same for all, from a seed", size=8)
    box(sheet, 150, 192, 180, 44, SHARED, "the server: mean of bits,\nrounded, where two overlap")
    arrow(sheet, (250, 144), (250, 190), SENT)
    text(sheet, 258, 172, "up: one bit per weight", "left", size=8)
    arrow(sheet, (148, 214), (72, 146), SENT)
    text(sheet, 118, 206, "down: bits,\nstart as ±c", "right", size=8)
    text(sheet, 350, 214, "Scores stay with the client.", "left", size=8)


def pfedgate_gate(sheet: Sheet) -> None:
    """PFedGate's gate: from a batch to the blocks that a client uses."""
    box(sheet, 10, 45, 80, 50, GRAY, "batch x")
    box(sheet, 125, 30, 140, 80, OWN, "gate, private\nnorm → linear →\nnorm → sigmoid")
    scores = (0.9, 0.3, 0.7, 0.2, 0.6)
    # Blocks are of one size here, and the budget has room for three.
    chosen = [score in sorted(scores)[-3:] for score in scores]
    text(sheet, 350, 18, "block scores", bold=True)
    text(sheet, 545, 18, "blocks chosen", bold=True)
    for place, (score, on) in enumerate(zip(scores, chosen, strict=True)):
        y = 32 + place * 17
        box(sheet, 310, y, 80 * score, 13, OWN)
        text(sheet, 303, y + 7, f"{place + 1}", "right", size=7.5)
        matrix(sheet, 520, y - 2, [[OWN if on else ""]])
        text(sheet, 545, y + 7, "1" if on else "0", "left", size=7.5)
    arrow(sheet, (90, 70), (123, 70), OWN)
    arrow(sheet, (265, 70), (292, 70), OWN)
    arrow(sheet, (400, 70), (510, 70), OWN)
    text(sheet, 455, 56, "knapsack", size=8)
    text(sheet, 455, 84, "within the\nclient's budget", size=8)
    box(sheet, 125, 160, 140, 50, SHARED, "shared model θ_g\nin blocks")
    box(
        sheet,
        370,
        160,
        250,
        50,
        OWN,
        "the client's model: θ_g × chosen\n× the gate's weight of the block",
    )
    arrow(sheet, (265, 185), (368, 185), SHARED)
    arrow(sheet, (530, 120), (530, 158), OWN)
    text(sheet, 10, 232, "The gate stays with its client.", "left", size=8)
    text(sheet, 620, 232, "Sent: a bit per block, and the blocks chosen.", "right", size=8)


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


def tradeoff() -> Chart:
    """Draw accuracy on own data against full shift, of every row of DM-PFL's Table 1."""
    found = points()
    rows = [
        {"method": title, "own": own, "shifted": shifted, "whose": whose}
        for title, ours, paper in found
        for whose, (own, shifted) in (("ours", ours), ("paper", paper))
    ]
    names, places = [point.title for point in found], range(len(found))
    axes: Spec = {
        name: {
            "field": field,
            "type": "quantitative",
            "scale": {"zero": False},
            "axis": {"title": f"Accuracy {where} (%)", "tickCount": 6},
        }
        for name, field, where in (("x", "own", "on own data"), ("y", "shifted", "at 100 % shift"))
    }
    kinds = {"color": color_of, "shape": shape_of}
    told: Spec = {
        channel: {
            "field": "method",
            "type": "nominal",
            "scale": {"domain": names, "range": list(map(kind, places))},
            "legend": {"orient": "right", "labelLimit": 240},
        }
        for channel, kind in kinds.items()
    }
    spec: Spec = {
        "data": {"values": rows},
        "encoding": axes,
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.6},
                "encoding": {"color": told["color"]},
            },
            {
                "transform": [{"filter": "datum.whose == 'ours'"}],
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                "encoding": told,
            },
            {
                "transform": [{"filter": "datum.whose == 'paper'"}],
                "mark": {"type": "point", "filled": False, "size": 70, "opacity": 1},
                "encoding": told,
            },
        ],
    }
    title = "Filled: ours, open: the paper's; better is up and to the right"
    return Chart("tradeoff", title, "", spec, 340)


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
        FIGURES / f"{name}.svg": standalone(diagram(height, label, paint))
        for name, (height, label, paint) in DIAGRAMS.items()
    }
    label = "Own data against 100 % shift: every row of Table 1, ours filled, the paper's open"
    curve = svg(tradeoff().alone(title=True), label)
    return {**found, Path("docs/results/dmpfl-table1/tradeoff.svg"): standalone(curve)}


if __name__ == "__main__":
    for path, drawn in figures().items():
        (ROOT / path).write_text(drawn, encoding="utf-8")
        print(path)
