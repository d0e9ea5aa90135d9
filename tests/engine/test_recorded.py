"""Recorded steps: repeated over rounds whose schedules move, they are the eager ones."""

import math
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from masquerade.core import Method, Part, Round, Stage, Task, tree
from masquerade.engine.replay.recorded import MOST, Recordings, form
from tests.support import advance, raises, scheduled

ROWS = torch.arange(6.0).reshape(3, 2)


@dataclass(frozen=True, kw_only=True)
class Planned(Method):
    """Reads a number of the round where it plans, which would be old in every round to come."""

    reads: str = "plan"

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        if self.reads == "plan":
            return (Stage("train", self.sgd_step(task, lr=float(round.decay))),)

        def step(work: Any, batch: Any, now: Round) -> Any:
            moved = tree.transform(torch.clone, work)
            for value in moved["params"].values():
                if self.reads == "in place":
                    value.mul_(round.decay)
                else:
                    value.copy_(value * round.decay)
            return moved

        return (Stage("train", step),)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("reads", ["plan", "step", "in place"])
def test_numbers_of_a_round_cannot_be_read_in_a_plan(engine: str, reads: str) -> None:
    with (
        raises("E204", "`plan`"),
        scheduled(Planned(reads=reads), 6, engine=engine) as made,
    ):
        advance(made, made.begin())


@pytest.mark.parametrize(
    "ask",
    [
        float,
        int,
        bool,
        np.asarray,
        torch.as_tensor,
        lambda number: number + 1,
        lambda number: 2 * number,
        lambda number: torch.ones(2) * number,
        lambda number: torch.ones(2).mul_(number),
        lambda number: number > 3,
        lambda number: number.item(),
        lambda number: f"{number:.2f}",
    ],
)
def test_nothing_can_be_asked_of_a_number_that_is_not_known(ask: Any) -> None:
    with raises("E204"):
        ask(now().static.number)


def now(number: float = 0.0) -> Round:
    return Round("train", "train", *torch.tensor([number, 9.0, 0.5**number]).unbind())


def taken(recordings: Recordings, step: Any, work: Any, round: Round) -> Any:
    return recordings.run(("train",), step, work, ROWS, round)


class Seen(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        self.names[operation._schema.name.removeprefix("aten::")] += 1
        return operation(*args, **(kwargs or {}))


def test_what_moves_with_the_round_moves_in_a_recording() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"] + round.decay * row.sum() + round.number}

    recordings = Recordings(often=0)
    start = {"value": torch.zeros(())}
    for number in range(4):
        found = taken(recordings, step, start, now(number))
        assert found["value"] == 15 * 0.5**number + 3 * number
    (made,) = recordings.recorded.values()
    assert made is not None
    assert made.trusted


@pytest.mark.parametrize(
    "value",
    [
        lambda row, round: torch.from_numpy(row.numpy().copy()).sum(),
        lambda row, round: torch.tensor(round.decay.tolist()),
        lambda row, round: torch.tensor([round.decay, round.number]).sum(),
        lambda row, round: torch.tensor(next(NUMBERS)),
    ],
    ids=["numpy", "list", "tensors", "counter"],
)
def test_what_went_past_torch_is_noticed(value: Any) -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"] + value(row, round)}

    recordings = Recordings(often=0)
    calls = 0

    def watched(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return step(*given)

    for number in range(4):
        taken(recordings, watched, {"value": torch.zeros(())}, now(number))
    assert list(recordings.recorded.values()) == [None]
    # In the first round a recording of a number of the round agrees: it is of this round.
    assert calls >= 3 * 4 - 1


NUMBERS = iter(range(1000))


def test_a_number_as_a_tensor_is_made_anew_in_every_repeat() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        scale = torch.tensor(1.0)
        scale *= 2
        return {"value": work["value"] + scale}

    recordings = Recordings(often=0)
    for number in range(4):
        assert taken(recordings, step, {"value": torch.zeros(())}, now(number))["value"] == 6
    assert None not in recordings.recorded.values()


def test_repeats_have_no_gradient_and_their_own_types() -> None:
    teacher = torch.ones(2, 2, requires_grad=True)

    def step(work: Any, row: Tensor, round: Round) -> Any:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return {"value": work["value"] @ teacher}

    recordings = Recordings(often=0)
    start = {"value": torch.full((2, 2), 1 + 2**-12)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for number in range(4):
            found = taken(recordings, step, start, now(number))["value"]
            assert found.dtype == torch.float32
            assert not found.requires_grad
            assert torch.equal(found, torch.full((2, 2), 8 * (1 + 2**-12)))
    assert None not in recordings.recorded.values()


def test_entries_that_hold_one_tensor_at_first_are_told_apart_later() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"] - work["anchor"] + 1, "anchor": work["anchor"]}

    shared = torch.zeros(2)
    recordings = Recordings(often=0)
    for number in range(3):
        found = taken(recordings, step, {"value": shared, "anchor": shared}, now(number))
        assert found["value"].tolist() == [3, 3]
    other = taken(recordings, step, {"value": shared, "anchor": torch.ones(2)}, now())
    assert other["value"].tolist() == [0, 0]
    assert len(recordings.recorded) == 1


@pytest.mark.parametrize("careful", [False, True])
def test_a_step_that_asks_for_a_value_is_not_recorded(careful: bool) -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        try:
            return {"value": work["value"] + (1 if row.sum() > 5 else 10)}
        except Exception:
            if not careful:
                raise
            return {"value": work["value"] + 1000}

    recordings = Recordings(often=0)
    # The rows add up to 1, 5 and 9.
    assert taken(recordings, step, {"value": torch.zeros(())}, now())["value"] == 10 + 10 + 1
    assert list(recordings.recorded.values()) == [None]
    assert (recordings.made, len(recordings.unfit)) == (1, 1)


def test_what_differs_in_form_is_another_recording() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return tree.transform(lambda value: value + 1, work)

    one, row = torch.ones(2, 2), torch.ones(4)
    works = [
        {"value": one},
        {"other": one},
        {"value": one.t()[:1]},
        {"value": one[:1].expand(2, 2)},
        {"value": row[1:]},
        {"value": row[:3]},
        {"value": one.double()},
        {"value": one.long()},
        {"value": Part({"a": one, "b": one})},
        {"value": Part({"b": one, "a": one})},
        {"value": Part({"a": one, "b": one}, {"a": one > 0})},
        {"value": [{"a": one}]},
        {"value": [{"b": one}]},
        {"value": one, "other": one},
    ]
    for work in works:
        recordings = Recordings(often=0)
        for number in range(3):
            taken(recordings, step, works[0], now(number))
        found = taken(recordings, step, work, now())
        expected = work
        for _ in ROWS:
            expected = step(expected, ROWS[0], now())
        assert tree.named(found).keys() == tree.named(expected).keys()
        for left, right in zip(tree.leaves(found), tree.leaves(expected), strict=True):
            assert torch.equal(left, right)
            assert left.dtype == right.dtype
    assert len({form(work) for work in works}) == len(works)


def test_what_is_written_in_place_is_written_again_and_what_nobody_reads_is_left_out() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        value = work["value"].clone()
        value[0].add_(row[0])
        row.cumsum(0).sum()
        left, right = value.split(1)
        return {"value": torch.cat([right, left])}

    recordings = Recordings(often=0)
    eager = Recordings(often=math.inf)
    start = {"value": torch.tensor([1.0, 2.0])}
    for number in range(3):
        found = taken(recordings, step, start, now(number))["value"]
        assert torch.equal(found, taken(eager, step, start, now())["value"])
    with Seen() as repeated:
        taken(recordings, step, start, now(9))
    with Seen() as whole:
        taken(eager, step, start, now())
    assert whole.names - repeated.names == {"cumsum": 3, "sum": 3}
    assert repeated.names["add_"] == 3


def test_a_form_is_recorded_only_when_it_comes_often() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"] + row.sum()}

    recordings = Recordings(often=3)
    taken(recordings, step, {"value": torch.zeros(())}, now())
    assert not recordings.recorded
    taken(recordings, step, {"value": torch.zeros(())}, now())
    assert len(recordings.recorded) == 1


def test_forms_are_not_kept_without_end() -> None:
    recordings = Recordings(often=0)
    for size in range(1, 3 * MOST):
        taken(recordings, lambda work, row, round: work, {"value": torch.zeros(size)}, now())
    assert len(recordings.recorded) <= MOST + 1
    assert len(recordings.seen) <= MOST + 1


def test_memory_of_a_step_is_freed_while_it_is_recorded() -> None:
    alive: list[int] = []
    made: list[Any] = []

    def step(work: Any, row: Tensor, round: Round) -> Any:
        value = work["value"]
        for _ in range(5):
            value = value + 1
            made.append(weakref.ref(value))
            alive.append(sum(each() is not None for each in made))
        return {"value": value}

    recordings = Recordings(often=0)
    recordings.run(("train",), step, {"value": torch.zeros(3)}, ROWS[:1], now())
    assert max(alive) <= 2
