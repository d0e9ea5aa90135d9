"""Captured steps: replayed over rounds whose schedules move, they are the eager ones."""

import math
from typing import Any

import pytest
import torch

from masquerade.core import Round, tree
from masquerade.engine.replay.cuda_graphs import Graph
from masquerade.engine.replay.recorded import Recordings
from tests.support import METHOD_TABLE, advance, scheduled

ROUNDS = 6


def simulation(name: str) -> Any:
    """The toy on a GPU, batched."""
    return scheduled(METHOD_TABLE[name], ROUNDS, engine="batched", device="cuda")


def states(name: str, captured: bool) -> tuple[list[dict[str, torch.Tensor]], int]:
    """The state after every round, and how many steps were captured or recorded."""
    with simulation(name) as made:
        assert made.engine.name == "batched"
        graphs = made.engine.steps
        made.engine.steps = graphs if captured else Recordings(often=math.inf)
        progress, found = made.begin(), []
        while progress.number < ROUNDS:
            advance(made, progress)
            found.append(progress.tensors())
        assert not graphs.failed
        return found, len(graphs.captured if captured else made.engine.steps.recorded)


@pytest.mark.cuda
@pytest.mark.parametrize("name", METHOD_TABLE)
def test_replayed_steps_are_the_eager_ones(name: str) -> None:
    replayed, graphs = states(name, captured=True)
    eager, none = states(name, captured=False)
    assert graphs > 0
    assert none == 0
    for left, right in zip(replayed, eager, strict=True):
        for key, value in tree.named(left).items():
            if key.startswith("known"):
                continue
            if value.is_floating_point():
                torch.testing.assert_close(value, right[key], rtol=1e-9, atol=1e-9)
            else:
                assert torch.equal(value, right[key]), key


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", METHOD_TABLE)
def test_nothing_is_waited_for_inside_a_round(name: str) -> None:
    with simulation(name) as made:
        work = made.engine.work

        def watched(job: Any) -> Any:
            work(job)  # Captures what this round needs, which has to wait.
            torch.cuda.set_sync_debug_mode("error")
            try:
                return work(job)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        made.engine.work = watched
        progress = made.begin()
        while progress.number < ROUNDS:
            advance(made, progress)


def test_what_moves_to_another_place_is_read_before_that_is_written() -> None:
    """A step's text on the places of a graph, without one."""

    def step(work: Any, row: torch.Tensor, round: Round) -> Any:
        first, second = work["first"], work["second"]
        return {"first": second, "second": first, "both": first[:1] + 1, "same": work["same"]}

    work = {name: torch.full((2,), place) for place, name in enumerate(("first", "second"), 1)}
    work |= {"both": torch.zeros(1, dtype=torch.int64), "same": torch.full((2,), 9)}
    zero = torch.tensor(0.0)
    graph: Any = None
    made = Graph(work, torch.zeros(1), Round("train", None, zero, zero, zero), graph, step)
    made.once()
    expected = {"first": [2, 2], "second": [1, 1], "both": [2], "same": [9, 9]}
    assert {name: value.tolist() for name, value in work.items()} == expected
