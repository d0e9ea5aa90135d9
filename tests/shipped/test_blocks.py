"""Blocks of code on the pages run, in their order, as they stand there but for the rounds."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.shipped import blocks
from tests.shipped.blocks import ROOT
from tests.support import forget

SHORT = ("README.md", "docs/quickstart.md", "docs/model.md", "docs/new-method.md", "docs/python.md")
LONG = (
    "docs/commands.md",
    "docs/data.md",
    "docs/choose.md",
    "docs/rules.md",
    "docs/sweeps.md",
    "docs/metrics.md",
    "docs/trackers.md",
    "docs/scale.md",
    "docs/methods/dmpfl.md",
    "docs/methods/domino.md",
    "docs/methods/fedmask.md",
    "docs/methods/fedselect.md",
    "docs/methods/pfedgate.md",
    "CONTRIBUTING.md",
)
ELSEWHERE = {
    "docs/deploy.md": "tests/deploy run whole federations",
    "docs/design.md": "signatures and sketches",
    "docs/log.md": "what was tried at the time",
    "docs/defences.md": "a configuration; tests/config reads such ones",
    "docs/methods/local.md": "a configuration; tests/config reads such ones",
}
"""Pages whose blocks are not run here, and why; `test_references` holds their commands all the
same. So it is with `docs/results`: its commands made the pages, in minutes or hours."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Methods of pages are not there for tests that come after."""
    yield
    forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What stands beside a reader: the repository's runs and examples, and samples of one's own."""
    for name in ("runs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(120, 4)).astype(np.float32), np.arange(120) % 3
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=np.arange(120) // 30)
    np.savez(tmp_path / "line.npz", x=x, y=x.sum(1), client=np.arange(120) // 30)
    np.savez(tmp_path / "samples.npz", x=rng.uniform(size=(5, 1, 8, 8)).astype(np.float32))
    return tmp_path


# Tests of pages draw figures; here they would take half of the time.
@pytest.mark.usefixtures("plain_pages")
@pytest.mark.parametrize(
    "page", [*SHORT, *(pytest.param(page, marks=pytest.mark.drill) for page in LONG)]
)
def test_the_blocks_of_a_page_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks.blocks(ROOT / page)
    blocks.run(ROOT / page, folder, monkeypatch)


@pytest.mark.drill
@pytest.mark.usefixtures("plain_pages")
def test_the_blocks_of_export_run_after_those_of_the_readme(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks.run(ROOT / "README.md", folder, monkeypatch)
    shutil.copy(folder / "hospital.csv", folder / "patients.csv")
    # Both pages write it, and nothing is replaced.
    (folder / "answers.csv").unlink()
    blocks.run(ROOT / "docs/export.md", folder, monkeypatch)


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_every_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks.prepare(tmp_path, monkeypatch)
    blocks.run_python(path.read_text(encoding="utf-8"), {"__name__": "__main__"})


NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))


@pytest.mark.usefixtures("plain_pages")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_cells_of_a_notebook_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "<table" in blocks.run_cells(path, tmp_path, monkeypatch, short=True)


@pytest.mark.drill
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_in_full(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "<svg" in blocks.run_cells(path, tmp_path, monkeypatch, short=False)
    assert list(tmp_path.glob("*/model.onnx"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_committed_without_outputs_and_its_links_lead_on(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    texts = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)#]+)", texts)
    assert targets
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_the_commands_of_the_readme_are_those_of_a_first_day() -> None:
    shell = [block.text for block in blocks.blocks(ROOT / "README.md") if block.language == "sh"]
    named = {words[1] for text in shell for words in blocks.lines(text) if len(words) > 1}
    first = {"run", "compare", "resume", "report", "methods", "data", "export", "predict"}
    assert first | {"demo"} <= named


def test_every_page_with_blocks_is_run_or_says_where() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    with_blocks = {page.relative_to(ROOT).as_posix() for page in pages if blocks.blocks(page)}
    made = {page for page in with_blocks if page.startswith("docs/results/")}
    assert with_blocks - made <= {*SHORT, *LONG, *ELSEWHERE, "docs/export.md"}
