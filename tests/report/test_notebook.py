"""Results in a notebook: a table and figures, without a script and without the network."""

import re
import sys
from dataclasses import replace

import pytest

from masquerade.report import notebook
from tests.report.invented import result

BOTH = [result("fedavg", title="<b>A & B</b>"), result("local", own=70.0)]


def test_it_has_a_table_and_figures_and_asks_nothing_of_the_network() -> None:
    text = notebook.fragment(BOTH)
    assert text.count("<svg") == len(notebook.SHOWN)
    assert "80.0" in text
    assert not re.search(r"<script|<link|<img|@import|https?://(?!www\.w3\.org/)", text)


def test_what_data_and_methods_are_called_is_escaped(plain_pages: None) -> None:
    text = notebook.fragment(BOTH)
    assert "<b>A" not in text
    assert "&lt;b&gt;A &amp; B&lt;/b&gt;" in text


def test_what_is_alarming_is_said_above_the_table(plain_pages: None) -> None:
    text = notebook.fragment([result("a"), result("b")])
    assert text.index("W311 ") < text.index("<table>")


def test_how_to_read_it_is_folded_away() -> None:
    text = notebook.fragment(BOTH)
    assert text.index("<details>") < text.index("standard deviation over clients")
    assert text.count("standard deviation over clients") == 1


def test_why_nothing_is_bold_stands_outside_of_what_is_folded() -> None:
    text = notebook.fragment([replace(each, per_client=None) for each in BOTH])
    assert text.index("Nothing is bold") < text.index("<details>")
    assert text.count("Nothing is bold") == 1


def test_two_outputs_of_one_notebook_share_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "SHOWN", ("rounds",))

    one, other = (notebook.fragment([result(own=own)]) for own in (80.0, 75.0))
    ids = set(re.findall(r'\bid="([^"]+)"', one))
    assert ids
    assert not ids & set(re.findall(r'\bid="([^"]+)"', other))
    # What is referred to is there.
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', one)) <= ids


def test_without_matplotlib_there_is_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = notebook.fragment(BOTH)
    assert "<table>" in text
    assert "<svg" not in text
