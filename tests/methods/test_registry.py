"""The table of methods: ours are found in their files, others' by their entry points."""

import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

import masquerade as mq
from masquerade import methods
from masquerade.cli import listings
from masquerade.config import toml
from masquerade.core import Method
from masquerade.methods import METHODS, FedAvg, MethodEntry
from masquerade.methods.registry import GROUP, MethodRegistry, find
from tests.messages import Golden
from tests.support import raises, warns

OTHERS = '''
from dataclasses import dataclass
from typing import ClassVar
from masquerade.core import Method
from masquerade.methods import MethodEntry

@dataclass(frozen=True, kw_only=True)
class Mine(Method):
    """What somebody else thought of."""
    views: ClassVar[tuple[str, ...]] = ("best", "global")

entry = MethodEntry(method=Mine, view="global", title="Mine, shared", paper="Somebody, 2030",
                    personal="nothing", sent="all weights", neutral={})
number = 3
'''


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a table in which other packages have entry points."""
    (tmp_path / "others.py").write_text(OTHERS, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import what_is_not_there", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("others", "broken"):
        # Setting it first makes monkeypatch take it away again.
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, module)

    def made(*points: tuple[str, str]) -> MethodRegistry:
        given = metadata.EntryPoints(metadata.EntryPoint(*point, GROUP) for point in points)
        monkeypatch.setattr(metadata, "entry_points", lambda **asked: given.select(**asked))
        return MethodRegistry(dict(METHODS.items()))

    return made


def plain(**changes: Any) -> MethodEntry:
    words = dict.fromkeys(("view", "title", "paper", "personal", "sent"), "")
    return MethodEntry(**{"method": FedAvg, **words, **changes})


def test_entries_stand_in_order_of_year_module_and_place() -> None:
    def place(name: str) -> tuple[int, str, int]:
        home = METHODS[name].method.__module__.split(".")[2]
        entries = import_module(f"masquerade.methods.{home}").ENTRIES
        return METHODS[name].year, home, list(entries).index(name)

    assert list(METHODS) == sorted(METHODS, key=place)
    assert next(iter(METHODS)) == "local"
    assert (METHODS["local"].year, METHODS["dmpfl"].year) == (0, 2023)


def test_every_module_with_a_method_has_its_entries() -> None:
    def below(cls: type[Method]) -> set[type[Method]]:
        return {cls, *(each for child in cls.__subclasses__() for each in below(child))}

    classes = {cls for cls in below(Method) if cls.__module__.startswith(f"{methods.__name__}.")}
    # What others of ours derive from need not be a method itself.
    bases = {base for cls in classes for base in cls.__bases__}
    assert classes - bases <= {entry.method for entry in METHODS.values()} <= classes


def test_every_method_has_its_page_and_its_example_worked_by_hand() -> None:
    # `masquerade.methods.dmpfl`, or a folder, as `masquerade.methods.pfedgate.method`.
    homes = (entry.method.__module__ for entry in METHODS.values())
    names = {home.split(".")[2] for home in homes if home.startswith("masquerade.methods.")}
    root = Path(__file__).parents[2]
    assert {path.stem for path in (root / "docs/methods").glob("*.md")} == names
    tests = {path.stem for path in (root / "tests/papers").glob("test_*.py")}
    assert tests == {f"test_{name}" for name in names}


def test_classes_are_names_of_the_package() -> None:
    assert mq.methods.DMPFL is METHODS["dmpfl"].method
    assert {"DMPFL", "METHODS", "MethodEntry", "PFedGate"} <= set(dir(methods))
    with pytest.raises(AttributeError, match=r"no name `Fedavg` .did you mean `FedAvg`"):
        _ = mq.methods.Fedavg


@pytest.mark.parametrize("changes", [{}, {"neutral": {}, "never_neutral": "both"}])
def test_an_entry_says_when_it_is_fedavg_or_why_never(changes: dict[str, Any]) -> None:
    with raises("E202", "Odd", "`neutral`"):
        plain(title="Odd", **changes)
    assert plain(neutral={}) == plain(neutral={})
    assert len({plain(neutral={}), plain(never_neutral="no")}) == 2


def test_two_modules_with_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "twins"
    package.mkdir()
    text = "from masquerade.methods.fedavg import ENTRIES\n"
    for name in ("__init__", "one", "two"):
        (package / f"{name}.py").write_text(text * (name != "__init__"), encoding="utf-8")
        monkeypatch.setitem(sys.modules, f"twins.{name}", None)
        monkeypatch.delitem(sys.modules, f"twins.{name}")
    monkeypatch.setitem(sys.modules, "twins", None)
    monkeypatch.delitem(sys.modules, "twins")
    monkeypatch.syspath_prepend(tmp_path)
    with raises("E202", "`twins.two`"):
        find("twins", [str(package)])


def test_others_are_loaded_when_they_are_asked_for(others: Any) -> None:
    table = others(("mine", "others:Mine"), ("mine_shared", "others:entry"))
    assert list(table) == [*METHODS, "mine", "mine_shared"]
    assert len(table) == len(METHODS) + 2
    assert "mine" in table
    assert "yours" not in table
    assert table["fedavg"] is METHODS["fedavg"]
    assert "others" not in sys.modules
    mine = table["mine"]
    assert (mine.view, mine.title, mine.never_neutral) == ("best", "Mine", "not stated")
    assert table["mine_shared"].title == "Mine, shared"
    assert table["mine_shared"].method is mine.method
    assert table["mine"] is mine
    assert dict(table.items())["mine"] is mine
    with pytest.raises(KeyError):
        table["yours"]


def test_what_others_have_is_a_method_like_ours(
    others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = others(("mine", "others:Mine"))
    monkeypatch.setattr(toml, "METHODS", table)
    monkeypatch.setattr(listings, "METHODS", table)
    config = toml.parse({"methods": ["mine"], "method": {"mine": {"lr": 0.5}}})
    assert toml.method_of("mine", config) == table["mine"].method(lr=0.5)
    assert listings.page_text("mine") == "What somebody else thought of."


def test_running_ours_loads_nobody_elses(others: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toml, "METHODS", others(("mine", "broken:Mine")))
    toml.dump(toml.parse({"methods": ["fedavg"], "method": {"lr": 0.5, "fedavg": {"clip": 1.0}}}))
    assert "broken" not in sys.modules


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("broken:Mine", "what_is_not_there"),
        ("others:Nobody", "AttributeError"),
        ("others:number", "MethodEntry"),
    ],
)
def test_one_that_cannot_be_loaded_leaves_the_others_alone(
    others: Any, value: str, told: str
) -> None:
    table = others(("bad", value), ("mine", "others:Mine"))
    assert "bad" in list(table)
    assert table["mine"].title == "Mine"
    for _ in range(2):
        with raises("E202", "`bad`", value, told):
            table["bad"]
    with warns("W202", "`bad`", told):
        assert [*dict(table.items())] == [*METHODS, "mine"]
    # It is told once.
    assert len(table.values()) == len(METHODS) + 1


def test_a_name_that_is_taken_is_refused_and_ours_stays_listed(others: Any, golden: Golden) -> None:
    table = others(("fedavg", "others:Mine"), ("mine", "others:Mine"), ("mine", "broken:Mine"))
    with raises("E202", "`mine`", "`others:Mine`"):
        table["mine"]
    # No other package takes a name of ours.
    assert table["fedavg"] is METHODS["fedavg"]
    with warns("W202", "`mine`") as warned:
        assert dict(table.items()) == dict(METHODS.items())
    golden(warned[-1].message)
    assert list(table) == [*METHODS, "mine"]
