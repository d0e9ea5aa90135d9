"""The methods' pages: settings, symbols and figures on them are those of code and results."""

import dataclasses
import inspect
import pkgutil
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import masquerade
from masquerade import core
from masquerade.cli import listings
from masquerade.core import Method
from masquerade.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in sorted((ROOT / "docs" / "methods").glob("*.md"))}
CLASSES = {entry.method.__module__.split(".")[2]: entry.method for entry in METHODS.values()}
SECTIONS = ("Settings", "From the paper to the code", "Personal, sent, stored", "Differs:")


def sections(name: str) -> dict[str, str]:
    """Return the text under each heading of a page, that before the first under its title."""
    found = re.split(r"^##? (.+)\n", PAGES[name].read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def opening(name: str) -> str:
    """Return the first paragraph of a page."""
    return next(iter(sections(name).values())).strip().partition("\n\n")[0]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_with_three_sentences_and_has_all_sections(name: str) -> None:
    assert len(re.findall(r"\.(?=\s|$)", opening(name))) == 3
    headings = list(sections(name))
    assert [each for each in headings if each in SECTIONS] == list(SECTIONS)
    lines = PAGES[name].read_text(encoding="utf-8").splitlines()
    # A row of a table cannot be broken.
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_settings_of_a_page_are_those_of_its_class(name: str) -> None:
    row = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| ([^|]+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
    rows = row.findall(sections(name)["Settings"])
    written = {setting: tomllib.loads(f"value = {value}")["value"] for setting, value, _ in rows}
    cls = CLASSES[name]
    defaults: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(cls)}
    usual = {each.name: each.default for each in dataclasses.fields(Method)}
    own = {each for each, value in defaults.items() if name == "fedavg" or usual.get(each) != value}
    assert len(rows) == len(written)
    assert own <= written.keys() <= defaults.keys()
    for setting, value in written.items():
        # A share such as 2/3 is written with three digits.
        wanted = defaults[setting]
        wanted = list(wanted) if isinstance(wanted, tuple) else wanted
        assert value == (pytest.approx(wanted, rel=1e-3) if isinstance(wanted, float) else wanted)
    # What a setting does is said once, under its field, and shown by `masquerade methods NAME` too.
    entry = next(each for each, entry in METHODS.items() if entry.method is cls)
    told = {each["name"]: each["meaning"] for each in listings.setting_records(entry)}
    assert {setting: f"{does}." for setting, _, does in rows} == {k: told[k] for k in written}


def modules(name: str) -> list[ModuleType]:
    """Return the modules of a method: its file, or all files of its folder."""
    home = import_module(f"masquerade.methods.{name}")
    files = pkgutil.iter_modules(getattr(home, "__path__", []))
    return [home, *(import_module(f"{home.__name__}.{each.name}") for each in files)]


def exists(symbol: str, spaces: list[Any], code: str) -> bool:
    """Say whether a symbol is a name of a module, or a function or a word inside of the code."""
    if re.search(rf'def {symbol}\b|"{symbol}"|\b{symbol}=', code):
        return True
    for place in spaces:
        for word in symbol.split("."):
            fields = getattr(place, "__dataclass_fields__", {})
            place = getattr(place, word, fields.get(word))
        if place is not None:
            return True
    return False


@pytest.mark.parametrize("name", PAGES)
def test_every_symbol_beside_an_equation_exists(name: str) -> None:
    text = sections(name)["From the paper to the code"]
    cells = [line.rstrip(" |").rpartition("|")[2] for line in text.splitlines() if "|" in line]
    symbols = {each for cell in cells for each in re.findall(r"`([\w.]+)`", cell)}
    spaces = [*modules(name), masquerade, core]
    code = "".join(map(inspect.getsource, modules(name)))
    assert symbols
    assert [each for each in symbols if not exists(each, spaces, code)] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_file_that_a_page_names_exists(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w[\w-]*/)+[\w-]+\.\w+)`", text)
    roots = (ROOT, ROOT / "src" / "masquerade")
    assert [each for each in named if not any((root / each).exists() for root in roots)] == []


@pytest.mark.parametrize("name", PAGES)
def test_accuracies_stand_on_the_pages_of_results_that_are_linked_beside_them(name: str) -> None:
    title, *others = sections(name).values()
    assert "../results/" in opening(name)
    for section in (title, *others):
        # What a program prints stands beside the program.
        text = re.sub(r"^    .*$", "", re.sub(r"```.*?```", "", section, flags=re.S), flags=re.M)
        links = re.findall(r"\]\((\.\./results/[\w-]+\.md)\)", text)
        pages = [(PAGES[name].parent / link).read_text(encoding="utf-8") for link in links]
        measured = {float(each) for page in pages for each in re.findall(r"\d+\.\d+", page)}
        shown = {f"{each:.{digits}f}" for each in measured for digits in (1, 2)}
        assert not links or set(re.findall(r"\b\d\d\.\d+\b", text)) - shown == set()
