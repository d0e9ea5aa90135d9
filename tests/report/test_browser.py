"""Pages in a browser: every figure is drawn, hover and sort work, nothing is cut, nothing is said.

`.ci/run` makes sure that there is one; elsewhere these tests are skipped without it.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from masquerade.experiments import live_server
from masquerade.report.page import About, page
from masquerade.results import EvaluationRecord, RoundRecord, Statistics, Summary
from masquerade.results.json_records import to_json
from masquerade.storage.saved_folder import sealed
from tests.report.browser import CHROMIUM, Browser, opened, wait_until
from tests.report.invented import clients, corrupted, result

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")

TITLE = '<b>"Second" & $x^2$'


def results() -> list[Summary]:
    """Invent results that have every figure: names, labels, masks, gates, corruption."""
    found = []
    for number, each in enumerate((corrupted("a"), corrupted("b", own=90.0), result("c"))):
        own = [60.0 + 2 * id + number for id in range(20)]
        named = replace(
            clients(own),
            names=tuple(f"Ward {id} <i>" for id in range(20)),
            labels={"cat": tuple(range(20)), "dog": tuple(range(20, 0, -1))},
        )
        sparse = replace(each.model, layers={"conv.weight": 0.5, "fc.weight": 0.25 * (number + 1)})
        title = TITLE if number == 1 else each.title
        found.append(replace(each, per_client=named, model=sparse, title=title))
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a page with every figure."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(results(), About("Three methods", "[data]\n", ["one line"])))
    return path.as_uri()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    """Return the browser; nothing may have been said in its console after a test."""
    started.console.clear()
    yield started
    assert started.console == []


CUT = """
[...document.querySelectorAll(".plot svg")].flatMap((svg) => {
  const frame = svg.getBoundingClientRect(), figure = svg.closest("figure").getBoundingClientRect();
  const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1
    && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const words = [...svg.querySelectorAll("text")].filter((each) => each.textContent
    && !inside(each.getBoundingClientRect(), frame)).map((each) => each.textContent);
  return inside(frame, figure) ? words : [svg.closest(".plot").id, ...words];
})
"""
"""Figures that are wider than their place, and words that are cut off in one."""


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_every_figure_is_drawn_and_nothing_is_cut(
    browser: Browser, report: str, width: int, scheme: str
) -> None:
    browser.open(report, width, scheme)
    names = browser.ask("Object.keys(JSON.parse(document.getElementById('charts').textContent))")
    assert len(names) == 14
    drawn = "[...document.querySelectorAll('.plot[data-drawn]')].map((each) => each.id.slice(7))"
    assert sorted(browser.ask(drawn)) == sorted(names)
    # What has no marks was not drawn.
    marks = "[...document.querySelectorAll('.plot')].map((p) => p.querySelectorAll('path').length)"
    assert min(browser.ask(marks)) > 4
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(CUT) == []
    ink = browser.ask("getComputedStyle(document.querySelector('.plot svg text')).fill")
    assert ink == {"light": "rgb(27, 28, 29)", "dark": "rgb(233, 234, 236)"}[scheme]


DOTS = "document.querySelectorAll('#figure-{} .mark-symbol path')"


def test_a_client_under_the_pointer_is_told_of_and_stands_out_everywhere(
    browser: Browser, report: str
) -> None:
    browser.open(report)
    sizes = f"[...{DOTS.format('gains')}].map((each) => each.getAttribute('d').length)"
    shapes = (
        f"[...new Set([...{DOTS.format('gains')}].map((each) => each.getAttribute('d')))].length"
    )
    before = browser.ask(shapes)
    browser.point(f"{DOTS.format('clients')}[3]")
    browser.wait("document.querySelector('#vg-tooltip-element.visible') !== null")
    told = browser.ask("document.querySelector('#vg-tooltip-element').innerText")
    assert "3: Ward 3 <i>" in told
    browser.wait(f"{shapes} > {before}")
    assert browser.ask(sizes)


def test_a_method_that_is_chosen_stands_out(browser: Browser, report: str) -> None:
    browser.open(report)
    faint = "[...document.querySelectorAll('#figure-rounds .mark-line path')]"
    faint += ".filter((each) => each.getAttribute('opacity') === '0.12').length"
    assert browser.ask(faint) == 0
    browser.ask("document.querySelectorAll('.methods button')[1].click()")
    browser.wait(f"{faint} === 2")
    browser.ask("document.querySelectorAll('.methods button')[1].click()")
    browser.wait(f"{faint} === 0")


def test_tables_are_sorted_by_a_click_and_clients_are_found(browser: Browser, report: str) -> None:
    browser.open(report)
    column = "[...document.querySelectorAll('#results tbody tr')]"
    column += ".map((row) => parseFloat(row.cells[1].innerText))"
    click = "document.querySelectorAll('#results thead button')[1].click()"
    for descending in (True, False):
        browser.ask(click)
        values = browser.ask(column)
        assert values == sorted(values, reverse=descending)
        assert len(set(values)) > 1
    browser.ask(
        "(() => { const input = document.querySelector('input[type=search]');"
        " input.closest('details').open = true; input.value = 'ward 17';"
        " input.dispatchEvent(new Event('input')); })()"
    )
    rows = "[...document.querySelectorAll('#clients-0 tbody tr')].filter((row) => !row.hidden)"
    assert browser.ask(f"{rows}.map((row) => row.cells[0].innerText)") == ["17: Ward 17 <i>"]


def test_figures_and_tables_are_saved_as_files(
    browser: Browser, report: str, tmp_path: Path
) -> None:
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.open(report)
    for place, kind in enumerate(("svg", "png")):
        row = "document.querySelector('#figure-rounds').closest('figure').querySelector('.files')"
        browser.ask(f"{row}.children[{place}].click()")
        wait_until((tmp_path / f"rounds.{kind}").is_file, kind)
    for place, kind in enumerate(("csv", "md", "tex")):
        buttons = "document.querySelectorAll('#results .wide + .files button')"
        browser.ask(f"{buttons}[{place}].click()")
        wait_until((tmp_path / f"table.{kind}").is_file, kind)
    drawn = (tmp_path / "rounds.svg").read_text()
    assert "By round" in drawn
    assert "&lt;b&gt;" in drawn
    assert (tmp_path / "rounds.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[0].startswith("Method,Own data,")
    assert len(lines) == 1 + len(results())
    assert (tmp_path / "table.md").read_text().splitlines()[1].startswith("|---|--:|--:|")
    written = (tmp_path / "table.tex").read_text()
    # Whatever LaTeX would read otherwise is escaped, as the command does it.
    assert r'<b>"Second" \& \$x\textasciicircum{}2\$ & ' in written
    assert r"$\pm$ " in written
    assert written.splitlines()[-1] == r"\end{tabular}"


def line(number: int, own: float) -> str:
    """Return what a run writes of a round."""
    measured = EvaluationRecord(number, {"global": Statistics(own, 2.0)}, 1e5 * number, 0.0, 1e6)
    return json.dumps(to_json(RoundRecord(number, (0, 1), {}, evaluation=measured))) + "\n"


def test_a_run_that_is_under_way_is_followed_to_its_report(
    browser: Browser, tmp_path: Path
) -> None:
    train = "[train]\nrounds = 3\nseeds = [1]\n"
    (tmp_path / "config.toml").write_text(f'methods = ["fedavg"]\n[data]\nname = "d"\n{train}')
    (tmp_path / "metrics.jsonl").write_text(line(1, 50.0) + line(2, 60.0))
    served = live_server.server(tmp_path)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    try:
        browser.open(f"http://127.0.0.1:{served.server_port}/", 400)
        assert browser.ask("document.querySelectorAll('.plot[data-drawn]').length") == 3
        points = "document.querySelectorAll('#figure-rounds .mark-symbol path').length"
        assert browser.ask(points) == 2
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(line(3, 70.0))
        browser.wait("document.body.innerText.includes('3 of 3')")
        browser.wait(f"{points} === 3")
        summaries = [replace(result(), title="The end", rounds=3).to_json()]
        names = ("config.toml", "metrics.jsonl")
        files = [(name, (tmp_path / name).read_bytes()) for name in names]
        for name, data in sealed([*files, ("summary.json", json.dumps(summaries).encode())]):
            (tmp_path / name).write_bytes(data)
        browser.wait("document.querySelector('#results') !== null")
        assert "The end" in browser.ask("document.body.innerText")
        assert sorted(each.name for each in tmp_path.iterdir()) == [
            *("config.toml", "hashes.json", "metrics.jsonl", "summary.json"),
        ]
    finally:
        served.shutdown()
        served.server_close()
