"""Pages on privacy say what their commands find."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))


def test_the_table_of_methods_is_what_the_command_finds(tmp_path):
    from privacy_methods import PAGE, write

    write(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text("utf-8") == PAGE.read_text("utf-8")


def test_the_page_of_masks_is_made_of_its_files(tmp_path):
    from mask_privacy import PAGE, write

    write(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text("utf-8") == PAGE.read_text("utf-8")
