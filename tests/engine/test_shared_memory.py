"""Shared memory: what one process writes another reads, and nothing is left of it."""

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from masquerade.core import Part, Task, tree
from masquerade.core.method import Method
from masquerade.core.part import Axis
from masquerade.core.round import Round
from masquerade.core.tree import State
from masquerade.engine.base import Job, Outcome
from masquerade.engine.loop import Loop
from masquerade.engine.shared_memory import Layout, Memory, Place, shared
from masquerade.methods import FedAvg
from masquerade.simulation.server import train
from tests import support
from tests.messages import Golden
from tests.support import advance, raises, warns


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


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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


def test_workers_share_the_samples_evenly() -> None:
    """Of 7, 12, 3, 9, 16 and 5 samples one has 16 + 7 + 3, the other 12 + 9 + 5."""
    made = support.simulation(FedAvg(local_epochs=1), participation=1.0, workers=2)
    assert isinstance(made.engine, Loop)
    assert made.engine.divide(made.server.participation.eligible) == [[4, 0, 2], [1, 3, 5]]


def test_memory_is_used_again_unless_somebody_holds_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = support.simulation(FedAvg(local_epochs=1, lr=0.5), participation=1.0, workers=2)
    assert isinstance(made.engine, Loop)
    progress = made.begin()
    advance(made, progress)
    first = list(made.engine.memories)
    advance(made, progress)
    assert made.engine.memories == first
    outcomes: list[Outcome] = []
    work = Loop.work

    def noted(self: Loop, job: Job) -> Outcome:
        outcomes.append(work(self, job))
        return outcomes[-1]

    monkeypatch.setattr(Loop, "work", noted)
    advance(made, progress)
    assert made.engine.memories == first
    kept = tree.transform(torch.clone, outcomes[0].uploads)
    advance(made, progress)
    assert made.engine.memories != first
    assert_same(outcomes[0].uploads, kept)
    assert not torch.equal(*(tree.leaves(each.uploads)[0] for each in outcomes))
    made.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files are counted on Linux")
def test_workers_that_die_leave_no_memory_behind(golden: Golden) -> None:
    class Deadly(FedAvg):
        def start(self, task: Task, message: Any, client: State, round: Round) -> State:
            if round.number == 1:
                os._exit(9)
            return super().start(task, message, client, round)

    made = support.simulation(Deadly(local_epochs=1), rounds=3, workers=2)
    progress = made.begin()
    before = open_files()
    advance(made, progress)
    with warns("W505") as warned, raises("E505") as refusal:
        advance(made, progress)
    golden(warned[0].message)
    golden(refusal.value)
    made.close()
    assert open_files() <= before
    assert not [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:masq" in line
    ]


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


def test_where_one_client_fails_the_others_are_waited_for(tmp_path: Path) -> None:
    here = os.getpid()

    class Failing(Method):
        def finish(
            self, task: Task, work: State, message: Any, client: State, round: Round
        ) -> tuple[Any, State]:
            if os.getpid() == here:  # Tried before the first round.
                return super().finish(task, work, message, client, round)
            try:
                (tmp_path / "first").touch(exist_ok=False)
            except FileExistsError:
                time.sleep(0.3)
                (tmp_path / str(os.getpid())).touch()
                return super().finish(task, work, message, client, round)
            raise ValueError("the first one fails")

    made = support.simulation(Failing(lr=0.1, local_epochs=1), participation=1.0, workers=2)
    with pytest.raises(ValueError, match="the first one fails"):
        advance(made, made.begin())
    assert len(list(tmp_path.iterdir())) == 2
    made.close()


class Unheard(Method):
    """A method whose server makes nothing of what it is sent."""

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Any, cohort: Any, round: Round
    ) -> tuple[State, State]:
        return server, rows


def test_shapes_that_differ_between_processes_are_an_error() -> None:
    class Ragged(Unheard):
        def finish(
            self, task: Task, work: State, message: Any, client: State, round: Round
        ) -> tuple[Any, State]:
            return {"params": Part({"w": torch.zeros(os.getpid() % 1000 + 1)})}, client

    made = support.simulation(Ragged(lr=0.1, local_epochs=1), participation=1.0, workers=2)
    with pytest.raises(RuntimeError, match="different shapes"):
        advance(made, made.begin())
    made.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_that_give_other_shapes_are_an_error(workers: int) -> None:
    class Ragged(Unheard):
        def finish(
            self, task: Task, work: State, message: Any, client: State, round: Round
        ) -> tuple[Any, State]:
            size = int(work["params"]["0.weight"].sum().abs() * 1e6) % 7 + 1
            return {"params": Part({"w": torch.zeros(size)})}, client

    made = support.simulation(Ragged(lr=0.1, local_epochs=1), participation=1.0, workers=workers)
    with pytest.raises(RuntimeError, match="different shapes"):
        advance(made, made.begin())
    made.close()


def test_rounds_that_follow_one_another_use_the_same_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever holds on to what clients gave makes every round take new memory."""
    given_up: list[int] = []
    forget = Loop.free_memories
    monkeypatch.setattr(Loop, "free_memories", lambda self: (given_up.append(1), forget(self))[1])
    made = support.simulation(FedAvg(local_epochs=1), rounds=4, workers=2)
    state = train(made.server, made.engine, made.begin())
    assert (state.number, given_up) == (4, [])
    made.close()
