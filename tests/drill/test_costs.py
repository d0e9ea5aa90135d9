"""The page of costs says what its command says."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.drill
def test_the_page_of_costs_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path("docs/results/costs.md")
    runpy.run_path(str(ROOT / "bench" / "costs.py"))["main"](page)
    assert page.read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8")
