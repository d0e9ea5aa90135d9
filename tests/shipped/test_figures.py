"""The figures of the documentation are what `python docs/figures/draw.py` draws."""

import itertools
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_figure_is_what_its_program_draws() -> None:
    found = runpy.run_path(str(ROOT / "docs/figures/draw.py"))["figures"]()
    assert len(found) == 6
    for path, svg in found.items():
        assert (ROOT / path).read_text(encoding="utf-8") == svg, f"{path}: draw it again"
        # Words can be searched and read aloud, and both grounds have an ink.
        assert re.search(r"<text[^>]*>[^<]*\w", svg)
        assert re.match(r'<svg role="img" aria-label="[^"]{40,}"', svg)
        assert "prefers-color-scheme:dark" in svg


def test_the_intersection_of_masks_is_drawn_right() -> None:
    draw = runpy.run_path(str(ROOT / "docs/figures/draw.py"))
    shared = draw["overlay"](draw["OWN_MASK"], shared="g", own="")
    personal = draw["overlay"](draw["OWN_MASK"], shared="g", own="o")
    own, whole = (
        [list(map(int, row.replace(".", "0"))) for row in draw[name].split()]
        for name in ("OWN_MASK", "GLOBAL_MASK")
    )
    # By arithmetic instead of by letters: the product of two masks, and what it lacks.
    for row in range(5):
        for column in range(5):
            both = own[row][column] * whole[row][column]
            assert (shared[row][column] == "g") == bool(both)
            assert (personal[row][column] == "o") == bool(own[row][column] - both)


def test_the_points_of_the_trade_off_are_those_of_the_page() -> None:
    points = runpy.run_path(str(ROOT / "docs/figures/draw.py"))["points"]()
    page = (ROOT / "docs/results/dmpfl-table1.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in page if line.startswith("|")]
    rows = {one[1]: (one, two) for one, two in itertools.pairwise(cells) if one[2:3] == ["paper"]}
    assert len(points) == len(rows) == 14
    for title, ours, paper in points:
        for row, point in zip(rows[title], (paper, ours), strict=True):
            # Columns: Method, whose figures, w/o shift, 20 % … 100 %, averaged.
            printed = [float(row[place].split(" ")[0]) for place in (3, 8)]
            assert printed == [round(value, 2) for value in point]
