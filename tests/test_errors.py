"""Codes: every one that the source raises is documented, and the other way round."""

import re
from pathlib import Path

from masquerade.errors import MasqueradeError, nearest, printable

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"(?<![0-9A-Za-z])[EW][1-9][0-9]{2}(?![0-9A-Za-z])")


def test_every_code_is_documented_and_every_documented_code_exists():
    raised = {
        code for path in (ROOT / "src").rglob("*.py") for code in CODE.findall(path.read_text())
    }
    documented = {
        line.split("|")[1].strip()
        for line in (ROOT / "docs" / "errors.md").read_text().splitlines()
        if CODE.match(line.removeprefix("| "))
    }
    assert raised == documented


def test_a_codes_family_is_the_exit_status():
    statuses = {code: MasqueradeError(code, "").exit_status for code in ("E201", "E303", "E404")}
    assert statuses == {"E201": 2, "E303": 3, "E404": 4}
    assert MasqueradeError("E501", "").exit_status == 5


def test_a_suggestion_is_made_only_where_something_is_near():
    assert nearest("fedvag", ["fedavg", "local"]) == " (did you mean `fedavg`?)"
    assert nearest("zzz", ["fedavg", "local"]) == ""


def test_control_characters_are_written_out_and_letters_stay():
    assert printable("naïve\u00a0Käse\t1\n") == "naïve\u00a0Käse\t1\n"
    strange = "a\x1b[2Jb\rc\x07\u202ed\u2028\ud800"
    assert printable(strange) == r"a\x1b[2Jb\rc\x07\u202ed\u2028\ud800"
