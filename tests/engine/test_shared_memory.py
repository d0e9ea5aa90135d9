"""Shared memory: what one process writes another reads, and nothing is left of it."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from masquerade.core import Part, tree
from masquerade.core.part import Axis
from masquerade.engine.shared_memory import Layout, Memory, Place, shared


def state() -> Any:
    """Every kind of node and type, an empty tensor and one without axes among them."""
    part = Part({"w": torch.tensor([[4.0], [5.0]])}, {"w": torch.tensor([True, False])})
    return (
        {"params": {"w": torch.arange(5, dtype=torch.float64), "none": torch.empty(0, 3)}},
        {"held": Part(part.values, part.keep, {"w": Axis(0)}), "count": torch.tensor(7)},
        torch.tensor([1.5, -2.5], dtype=torch.bfloat16),
    )


def write(path: Place, layout: Layout, queue: Any) -> None:
    tree.transform(lambda place, value: place.copy_(value), Memory(path).view(layout), state())
    queue.put("written")


def assert_same(left: Any, right: Any) -> None:
    one, two = tree.named(left), tree.named(right)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[n], two[n]) and one[n].dtype is two[n].dtype for n in one)


def test_what_another_process_writes_is_read_and_outlives_the_path() -> None:
    layout = Layout.of(state())
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with shared() as place:
        process = context.Process(target=write, args=(place, layout, queue))
        process.start()
        assert queue.get(timeout=60) == "written"
        process.join()
        found = Memory(place).view(layout)
    assert not Path(place.path).exists()
    assert_same(found, state())
    assert found[1]["held"].grain == {"w": Axis(0)}


def test_rows_of_a_table_do_not_touch_one_another() -> None:
    layout = Layout.of(state(), 3)
    with shared() as path:
        table = Memory(path).view(layout)
        for place in (2, 0, 1):
            shifted = tree.transform(lambda value, by=place: value + by, state())
            tree.transform(lambda rows, value, at=place: rows[at].copy_(value), table, shifted)
    for place in range(3):
        shifted = tree.transform(lambda value, by=place: value + by, state())
        expected = tree.transform(lambda value, like: value.to(like.dtype), shifted, state())
        assert_same(tree.take(table, place), expected)


def test_memory_that_is_gone_is_no_other_file(tmp_path: Path) -> None:
    layout = Layout.of({"w": torch.zeros(1000)})
    with shared() as place:
        Memory(place).view(layout)
    (tmp_path / "text").write_text("mine", encoding="utf-8")
    # One of them gets the number that the memory had.
    files = [(tmp_path / "text").open(encoding="utf-8") for _ in range(20)]
    with pytest.raises((RuntimeError, FileNotFoundError)):
        Memory(place).view(layout)
    assert (tmp_path / "text").read_text(encoding="utf-8") == "mine"
    for file in files:
        file.close()
