"""The documentation site: it builds without a warning, all is found in it, figures are true."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import masquerade as mq
from masquerade.methods import METHODS

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> None:
    """Build the site as `make docs` does, in a process of its own: autodoc changes defaults."""
    call = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site"]
    call += ["-d", str(folder / ".doctrees"), "-b", "html", ".", str(folder)]
    done = subprocess.run(call, cwd=ROOT, env=os.environ | {"NO_COLOR": "1"}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")


class Links(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag leads to, and what it is called."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name == "id" and value:
                self.anchors.add(value)


def links_lead_somewhere(site: Path) -> None:
    """Hold that every link leads to a file, and to an anchor in it."""
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 70
    lost = []
    for page, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or target.startswith("//"):
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            known = pages.get(file)
            if not file.exists() or (url.fragment and known and url.fragment not in known.anchors):
                lost.append(f"{page.relative_to(site)}: {target}")
    assert lost == []


def codes_are_found(site: Path) -> None:
    """Hold that a search for a code leads to its line on the page of errors."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    entries = {name.lower(): places for name, places in index["indexentries"].items()}
    page = Links(site / "docs/errors.html")
    listed = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    codes = [code.lower() for code in re.findall(r"^\| ([EW]\d{3}) ", listed, re.MULTILINE)]
    assert len(codes) > 80
    for code in codes:
        assert code in page.anchors
        ((place, anchor, is_main),) = entries[code]
        assert (index["docnames"][place], anchor, is_main) == ("docs/errors", code, True)


def reference_is_complete(site: Path) -> None:
    """Hold that the reference has every name of the package."""
    listed = re.findall(r"^- `mq\.(\w+)", (ROOT / "docs/api.md").read_text("utf-8"), re.MULTILINE)
    page = Links(site / "docs/api.html")
    # Of these packages there are pages, and the classes that are asked for by name.
    assert set(listed) | {"methods"} == set(mq.__all__)
    objects = set(mq.__all__) - {"methods", "models", "trackers"}
    assert [name for name in objects if f"masquerade.{name}" not in page.anchors] == []


def contents_are_complete(site: Path) -> None:
    """Hold that every page is in the contents."""
    front = Links(site / "README.html").targets
    pages = {page.relative_to(site).as_posix() for page in site.glob("docs/*.html")}
    assert pages - {target.partition("#")[0] for target in front} == set()


def test_the_site_builds_without_a_warning_and_all_is_found_in_it(tmp_path: Path) -> None:
    # One test: processes that share the tests would build it once each.
    build(tmp_path)
    links_lead_somewhere(tmp_path)
    codes_are_found(tmp_path)
    reference_is_complete(tmp_path)
    contents_are_complete(tmp_path)


NUMBER = re.compile(r"\d+\.\d+")


def test_the_guide_lists_all_methods() -> None:
    text = (ROOT / "docs/choose.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[[^\]]+\]\(methods/\w+\.md\) \| `(\w+)`", text, re.MULTILINE)
    # Another test may have named code of its own.
    assert listed == [name for name in METHODS.ours if ":" not in name]


def test_the_guides_figures_are_those_of_the_papers_tables() -> None:
    guide = (ROOT / "docs/choose.md").read_text(encoding="utf-8")
    measured = guide.partition("## Label skew, measured")[2].partition("What follows")[0]
    pages = [ROOT / f"docs/results/dmpfl-table{each}.md" for each in (1, 2)]
    titles = {"": pages[0], ", Dir(0.1)": pages[1], ", pathological": pages[1]}
    rows = re.findall(r"^\| (?!Method|-)([^|]+) \| (.+) \|$", measured, re.MULTILINE)
    assert len(rows) == 11
    for method, cells in rows:
        given = [cell.strip() for cell in cells.split("|")]
        for place, (suffix, page) in enumerate(titles.items()):
            own, shift = given[2 * place : 2 * place + 2]
            if own == "–":
                continue
            lines = page.read_text(encoding="utf-8").splitlines()
            at = next(n for n, line in enumerate(lines) if f"| {method}{suffix} | paper" in line)
            columns = lines[at + 1].split("|")[3:-1]
            # The last column of Table 1 is an average; the one before it is full shift.
            full = columns[-2] if page is pages[0] else columns[-1]
            for ours, theirs in ((own, columns[0]), (shift, full)):
                mean, _, half = map(float, NUMBER.findall(theirs))
                assert list(map(float, NUMBER.findall(ours))) == pytest.approx(
                    [mean, half], abs=0.051
                ), (method, suffix)


def test_the_guides_costs_are_those_of_the_page_on_costs() -> None:
    guide = (ROOT / "docs/choose.md").read_text(encoding="utf-8")
    costs = (ROOT / "docs/results/costs.md").read_text(encoding="utf-8")
    part = guide.partition("## What it costs")[2].partition("## Small")[0]
    rows = re.findall(r"^\| ([^|]+) \| (\d+\.\d+) \| (\d+\.\d+) \|$", part, re.MULTILINE)
    assert len(rows) == 7
    for methods, sent, spent in rows:
        for method in methods.split(", "):
            line = next(line for line in costs.splitlines() if line.startswith(f"| {method} |"))
            columns = line.split("|")
            assert columns[3].split()[0] == sent
            assert columns[6].split()[0] == spent
