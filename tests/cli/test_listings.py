"""Listings: every method and setting is explained, every sample is counted once."""

import dataclasses
from typing import Any

import pytest
import torch
from rich.console import Console

from masquerade.cli import listings
from masquerade.data import IID, Dataset, Federation, Pathological, load, partition
from masquerade.methods import METHODS
from tests.support import raises


def drawn(what: Any) -> str:
    """Return what a wide terminal would show."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


@pytest.fixture(scope="module")
def federation() -> Federation:
    return partition(load("digits"), 10, Pathological(), seed=1)


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """What is listed of all methods; their costs are forecast once."""
    return listings.method_records()


def test_every_method_is_described_in_full(records: list[dict[str, Any]]) -> None:
    for line in records:
        words = {"name", "title", "paper", "view", "personal", "sent"}
        assert line.keys() == words | {"bytes", "flops", "foreseen"}
        assert all(line[key] for key in words)
    assert [line["name"] for line in records] == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_has_its_default_and_a_meaning(name: str) -> None:
    made = METHODS[name].method()
    listed = listings.setting_records(name)
    assert [each["name"] for each in listed] == [each.name for each in dataclasses.fields(made)]
    assert all(each["default"] == getattr(made, each["name"]) for each in listed)
    assert [each["name"] for each in listed if not each["meaning"]] == []


@pytest.mark.parametrize("name", METHODS)
def test_a_sheet_shows_the_text_and_every_setting(name: str) -> None:
    text = drawn(listings.method_page(name))
    assert METHODS[name].title in text
    for setting in listings.setting_records(name):
        assert f"{setting['name']} " in text


def test_costs_are_shares_of_fedavg(records: list[dict[str, Any]]) -> None:
    costs = {line["name"]: (line["bytes"], line["flops"]) for line in records}
    assert costs["fedavg"] == costs["fedprox"] == (1, 1)
    assert costs["local"] == (0, 1)
    bytes_, flops = costs["dmpfl"]
    assert 0 < bytes_ < 0.5
    assert 0 < flops < 0.75


def test_what_is_not_foreseen_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "relative_costs", lambda: dict.fromkeys(METHODS, (1.0, 1.0)))
    lines = drawn(listings.methods_table()).splitlines()
    marked = {line.split("│")[1].strip() for line in lines if line.count("*") == 2}
    assert marked == {name for name, line in METHODS.items() if not line.method.foreseen}
    assert {"lotteryfl", "subfedavg", "pfedgate"} <= marked


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_that_names_it(name: str) -> None:
    assert f"`{name}`" in listings.page_text(name)


def test_an_unknown_method_is_refused_with_the_nearest() -> None:
    with raises("E201", "`DMPLF`", "`dmpfl`"):
        listings.setting_records("DMPLF")


def test_every_sample_is_counted_once(federation: Federation) -> None:
    counted = listings.sample_counts(federation)
    assert (counted.data, counted.classes) == ("digits", 10)
    sizes = [(client.train, client.validation, client.test) for client in counted.clients]
    assert sum(map(sum, sizes)) == 1797
    for client in counted.clients:
        assert sum(client.classes) == client.train
        assert sum(count > 0 for count in client.classes) == 2


def test_a_picture_has_a_row_for_every_client_and_a_cell_for_every_class_it_holds(
    federation: Federation,
) -> None:
    rows = [line.split("│")[1:-1] for line in drawn(listings.label_table(federation)).splitlines()]
    cells = {row[0].strip(): row[4:] for row in rows if len(row) == 14}
    counted = listings.sample_counts(federation).clients
    assert list(cells) == [str(id) for id in range(10)]
    for id, client in enumerate(counted):
        assert [bool(cell.strip()) for cell in cells[str(id)]] == [
            count > 0 for count in client.classes
        ]


def test_targets_without_classes_are_counted_without_them() -> None:
    x = torch.arange(20.0)
    data = partition(Dataset("slope", x[:, None], x, None), 2, IID())
    assert listings.sample_counts(data).clients[0].classes == ()
    assert "classes" not in listings.count_record(data)["clients"][0]
    assert "slope" in drawn(listings.label_table(data))
