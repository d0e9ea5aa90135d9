"""The text of a client's round: what runs when, and what padding may touch."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

from masquerade.core import Batch, Message, Part, Round, Stage, State, Task, client_round
from tests.support import network

TASK = Task(network())
ROUND = Round("train", "train", torch.tensor(3.0), torch.tensor(12.0), torch.tensor(1.0))


class Diarist:
    """A client's side that writes down what is called, in order, with what it saw."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, word: str, work: State) -> State:
        self.lines.append(f"{word} {int(work['count'])}")
        return {"count": work["count"] + 1}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        return {"count": message["n"].values["n"] + client["n"]}

    def stage(self, name: str) -> Stage:
        return Stage(
            name,
            lambda work, batch, round: self.note(f"{name} step {batch}", work),
            begin=lambda work, round: self.note(f"{name} begin", work),
            then=lambda work, round: self.note(f"{name} then", work),
        )

    def stages(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return self.stage("first"), self.stage("second")

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        return {"n": Part({"n": work["count"]})}, {"n": client["n"] + 100}


def test_a_round_is_start_stages_finish() -> None:
    diary = Diarist()
    upload, client = client_round(
        diary,
        TASK,
        {"n": Part({"n": torch.tensor(10)})},
        {"n": torch.tensor(5)},
        lambda stage: ["a", "b"] if stage.name == "first" else [],
        ROUND,
        lambda stage, work: diary.lines.append(f"{stage.name} observed {int(work['count'])}"),
    )
    assert diary.lines == [
        "first begin 15",
        "first step a 16",
        "first step b 17",
        "first observed 18",
        "first then 18",
        "second begin 19",
        "second observed 20",
        "second then 20",
    ]
    assert int(upload["n"].values["n"]) == 21
    assert int(client["n"]) == 105


def test_a_step_is_made_ready_before_its_stage_begins() -> None:
    class Ready:
        """A step that needs something in its work."""

        def prepare(self, work: State, round: Round) -> State:
            return {**work, "momentum": torch.tensor(0.0)}

        def __call__(self, work: State, batch: Any, round: Round) -> State:
            return work

    seen: list[State] = []

    def begin(work: State, round: Round) -> State:
        seen.append(work)
        return work

    Stage("train", Ready(), begin=begin).prepare({"params": {}}, ROUND)
    assert seen[0].keys() == {"params", "momentum"}


def test_a_stage_leaves_work_alone_unless_told_otherwise() -> None:
    work: State = {"params": {}}
    stage = Stage("measure", lambda work, batch, round: work)
    assert stage.prepare(work, ROUND) is work
    assert stage.then(work, ROUND) is work
    assert (stage.epochs, stage.data, stage.draws) == (1, "train", 1)


def test_progress_is_the_share_of_rounds_behind() -> None:
    assert float(ROUND.progress) == 0.25


def batch(valid: list[bool] | None, size: int) -> Batch:
    mask = None if valid is None else torch.tensor(valid)
    return Batch(torch.zeros(size, 2), torch.zeros(size), mask, torch.tensor(0))


@given(st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=1, max_size=8))
@settings(deadline=None, max_examples=50)
def test_figures_of_a_batch_are_those_of_its_real_samples(pairs: list[tuple[int, bool]]) -> None:
    valid = [real for _, real in pairs]
    real = [value for value, ok in pairs if ok]
    values = torch.tensor([float(value) if ok else math.nan for value, ok in pairs])
    made = batch(valid, len(pairs))
    assert float(made.total(values)) == sum(real)
    assert int(made.count()) == len(real)
    assert float(made.mean(values)) == pytest.approx(sum(real) / max(len(real), 1), abs=1e-6)


def test_without_padding_all_samples_are_real() -> None:
    values = torch.tensor([1.0, 2.0, 6.0])
    made = batch(None, 3)
    assert (float(made.mean(values)), float(made.total(values)), int(made.count())) == (3.0, 9.0, 3)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_padding_has_no_gradient(poison: float) -> None:
    values = torch.tensor([1.0, poison, 3.0], requires_grad=True)
    mean = batch([True, False, True], 3).mean(values * 2)
    assert torch.autograd.grad(mean, values)[0].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("valid", [None, [True, False]])
def test_a_batch_survives_flattening(valid: list[bool] | None) -> None:
    made = batch(valid, 2)
    leaves, spec = pytree.tree_flatten(made)
    again = pytree.tree_unflatten(leaves, spec)
    assert len(leaves) == (3 if valid is None else 4)
    assert again.x is made.x
    assert again.y is made.y
    assert again.key is made.key
    assert again.valid is made.valid


def test_batches_map_over_clients() -> None:
    stacked = Batch(
        torch.zeros(2, 3, 1),
        torch.tensor([[1.0, 2.0, 9.0], [4.0, 5.0, 6.0]]),
        torch.tensor([[True, True, False], [True, True, True]]),
        torch.tensor([0, 1]),
    )

    def figures(one: Batch) -> tuple[Tensor, Tensor, Tensor]:
        return one.mean(one.y), one.total(one.y), one.count()

    mean, total, count = torch.func.vmap(figures)(stacked)
    assert mean.tolist() == [1.5, 5.0]
    assert total.tolist() == [3.0, 15.0]
    assert count.tolist() == [2, 3]
