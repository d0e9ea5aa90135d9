"""The page of a run is written into its directory, and over no link out of it."""

from pathlib import Path

import pytest

from masquerade.experiments.report_page import write_report
from masquerade.storage import saved_folder
from tests.support import raises, summary

PLACES = {".report.html": None, ".tmp-report.html": "E502", "report.html": "E405"}
"""Where a link may be planted, and the code of the refusal where it is in the way."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("masquerade.report.page", lambda *given, **named: "page")
    saved_folder.write(tmp_path / "run", saved_folder.sealed([("config.toml", b"")]))
    return tmp_path / "run"


@pytest.mark.parametrize(("name", "code"), PLACES.items())
def test_no_planted_link_leads_the_page_elsewhere(
    run: Path, tmp_path: Path, name: str, code: str | None
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (run / name).symlink_to(precious)
    if code is None:
        write_report(run, [summary()])
        assert not (run / "report.html").is_symlink()
        assert (run / "report.html").read_text() == "page"
    else:
        with raises(code):
            write_report(run, [summary()])
    assert precious.read_text() == "precious"


def test_a_page_takes_the_place_of_the_one_before(run: Path) -> None:
    (run / "report.html").write_text("old")
    write_report(run, [summary()])
    assert {each.name for each in run.iterdir()} == {"config.toml", "hashes.json", "report.html"}
    assert (run / "report.html").read_text() == "page"
