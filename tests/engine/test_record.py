"""Recorded steps: repeated over rounds whose schedules move, they are the eager ones."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from masquerade.core import Method, Round, Stage, Task, tree
from masquerade.engine.record import Recordings, _Operations
from masquerade.errors import MasqueradeError
from masquerade.experiment import simulate
from masquerade.settings import Compute, Evaluate, Train
from masquerade.simulation import Simulation
from tests.support import BUDGETS, METHOD_TABLE, federation, network_of

ROUNDS = 6
ROWS = torch.arange(6.0).reshape(3, 2)


def simulation(method: Method, engine: str) -> Simulation:
    return simulate(
        method=method,
        task=Task(network_of(method)),
        federation=federation(),
        train=Train("", ROUNDS, 4, 0.67, 0.9),
        evaluate=Evaluate(every=0),
        compute=Compute(engine=engine),
        seed=5,
        views=method.views,
        budgets=BUDGETS,
    )


def states(name: str, often: float) -> tuple[list[Any], list[Any]]:
    """The state after every round and what the last is judged to be, and what was recorded."""
    method = METHOD_TABLE[name]
    with simulation(method, "batched") as made:
        assert made.engine.name == "batched"
        made.engine.repeats = Recordings(often=often)
        progress, found = made.begin(), []
        while progress.number < ROUNDS:
            made.advance(progress)
            found.append(tree.named(progress.tensors()))
        for view in method.views:
            scores = made.judge(progress, view, list(made.federation.test)).scores
            found += [{view: torch.cat(scores)}]
        return found, list(made.engine.repeats._made.values())


@pytest.mark.parametrize("name", METHOD_TABLE)
def test_repeated_steps_are_the_eager_ones(name: str) -> None:
    repeated, recordings = states(name, often=0)
    eager, none = states(name, often=math.inf)
    assert recordings
    assert None not in recordings
    assert not none
    for left, right in zip(repeated, eager, strict=True):
        assert left.keys() == right.keys()
        for key, value in left.items():
            assert torch.equal(value, right[key]), key


@dataclass(frozen=True, kw_only=True)
class Planned(Method):
    """Reads a number of the round where it plans, which would be old in every round to come."""

    reads: str = ""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        if self.reads == "plan":
            return (Stage("train", self.descend(task, rate=float(round.decay))),)

        def step(work: Any, batch: Any, now: Round) -> Any:
            return {"params": {name: v * round.decay for name, v in work["params"].items()}}

        return (Stage("train", step),)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(
    ("reads", "error", "text"),
    [
        ("plan", MasqueradeError, r"^E204 `plan` asks for a number of the round"),
        ("step", RuntimeError, "meta"),
    ],
)
def test_numbers_of_a_round_cannot_be_read_in_a_plan(
    engine: str, reads: str, error: type[Exception], text: str
) -> None:
    method = Planned(reads=reads)
    with pytest.raises(error, match=text), simulation(method, engine) as made:
        made.advance(made.begin())


def now(number: float = 0.0) -> Round:
    return Round("train", "train", *torch.tensor([number, 9.0, 0.5**number]).unbind())


def taken(recordings: Recordings, step: Any, work: Any, round: Round) -> Any:
    return recordings.run("train", step, work, ROWS, round)


def operations(seen: Any) -> Counter[str]:
    return Counter(done[0]._schema.name.removeprefix("aten::") for done in seen.done)


def test_what_moves_with_the_round_moves_in_a_recording() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"] + round.decay * row.sum() + round.number}

    recordings = Recordings(often=0)
    start = {"value": torch.zeros(())}
    for number in range(3):
        found = taken(recordings, step, start, now(number))
        assert found["value"] == 15 * 0.5**number + 3 * number
    assert len(recordings._made) == 1


def test_entries_that_hold_one_tensor_at_first_are_told_apart_later() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"] - work["anchor"] + 1, "anchor": work["anchor"]}

    shared = torch.zeros(2)
    recordings = Recordings(often=0)
    found = taken(recordings, step, {"value": shared, "anchor": shared}, now())
    assert found["value"].tolist() == [3, 3]
    other = taken(recordings, step, {"value": shared, "anchor": torch.ones(2)}, now())
    assert other["value"].tolist() == [0, 0]
    assert len(recordings._made) == 1


def test_a_step_that_asks_for_a_value_is_not_recorded() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"] + (1 if row.sum() > 5 else 10)}

    recordings = Recordings(often=0)
    # The rows add up to 1, 5 and 9.
    assert taken(recordings, step, {"value": torch.zeros(())}, now())["value"] == 10 + 10 + 1
    assert list(recordings._made.values()) == [None]


def test_other_strides_and_shapes_are_other_recordings() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"].view(-1).neg().view(2, 2)}

    recordings = Recordings(often=0)
    spread = torch.ones(2, 1).expand(2, 2)
    with pytest.raises(RuntimeError, match="view"):
        taken(recordings, step, {"value": spread}, now())
    assert taken(recordings, step, {"value": spread.contiguous()}, now())["value"].sum() == -4


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
    for _ in range(2):
        found = taken(recordings, step, start, now())["value"]
        assert torch.equal(found, taken(eager, step, start, now())["value"])
    with _Operations() as repeated:
        taken(recordings, step, start, now())
    with _Operations() as whole:
        taken(eager, step, start, now())
    assert operations(whole) - operations(repeated) == {"cumsum": 3, "sum": 3}
    assert operations(repeated)["add_"] == 3


def test_a_form_is_recorded_only_when_it_comes_often() -> None:
    def step(work: Any, row: Tensor, round: Round) -> Any:
        return {"value": work["value"] + row.sum()}

    recordings = Recordings(often=3)
    taken(recordings, step, {"value": torch.zeros(())}, now())
    assert not recordings._made
    taken(recordings, step, {"value": torch.zeros(())}, now())
    assert len(recordings._made) == 1
