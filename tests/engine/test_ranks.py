"""Several processes do what one does, and a run ends where one of them is gone.

That every method trains to the same bits in two processes is law 2 (`tests/laws`).
"""

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from masquerade.config.settings import Evaluate
from masquerade.core import Part, Task, tree
from masquerade.core.method import Method
from masquerade.core.round import Round
from masquerade.core.tree import State
from masquerade.engine import ranks
from masquerade.engine.base import Job, Outcome
from masquerade.engine.divided import Divided, shares
from masquerade.engine.shared_memory import Place
from masquerade.experiments.run import complete, directory_at, running
from masquerade.methods import FedAvg
from masquerade.results.json_records import Json, to_json
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.state import RunState
from masquerade.storage.run_directory import RunDirectory
from tests import support
from tests.messages import Golden
from tests.support import METHOD_TABLE, advance, carry_on, raises, toy

ROOT = Path(__file__).parents[2]
HERE = os.getpid()


def in_another_process() -> bool:
    return os.getpid() != HERE


def assert_same(left: RunState, right: RunState) -> None:
    """Bit for bit."""
    one, two = left.tensors(), right.tensors()
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    assert left.costs == right.costs


def test_processes_share_the_samples_evenly() -> None:
    """Of 7, 12, 3, 9, 16 and 5 samples one has 7 + 3 + 16, the other 12 + 9 + 5."""
    found = shares([7, 12, 3, 9, 16, 5], 2)
    assert [each.tolist() for each in found] == [[0, 2, 4], [1, 3, 5]]
    # One has as many samples as all others together; where they are stacked, both have two.
    assert [each.tolist() for each in shares([9, 3, 3, 3], 2)] == [[0], [1, 2, 3]]
    assert [each.tolist() for each in shares([9, 3, 3, 3], 2, 2)] == [[0, 3], [1, 2]]


def whole(method: Method, **settings: Any) -> tuple[RunState, list[Json], dict[str, Any]]:
    """A run with all of its evaluations: the state, the summaries, the models."""
    with simulating(toy(method, **settings)) as made:
        state = carry_on(made, made.begin())
        summaries, models = support.final(made, state)
    found = [to_json(each) for each in summaries]
    for each in found:
        assert isinstance(each, dict)
        assert isinstance(each["costs"], dict)
        # Time and memory are of the process that measures.
        del each["costs"]["seconds"], each["costs"]["memory"]
    return state, found, tree.named(models)


@pytest.mark.parametrize("name", ["fedavg", "dmpfl", "fedmask"])
def test_what_is_evaluated_is_the_same_too(name: str) -> None:
    evaluate = Evaluate(every=1, draws=2, metrics=("macro_f1",))
    settings: dict[str, Any] = {"rounds": 3, "drop": 0.3, "evaluate": evaluate, "novel": (5,)}
    alone, figures, models = whole(METHOD_TABLE[name], **settings)
    state, theirs, others = whole(METHOD_TABLE[name], **settings, processes=2)
    assert_same(alone, state)
    assert alone.history == state.history
    # Between rounds masks are compared, where there are some.
    noted = ["mask_overlap" in record.notes for record in state.history]
    assert noted == [name != "fedavg"] * len(noted)
    assert noted
    assert figures == theirs
    assert models.keys() == others.keys()
    assert all(torch.equal(models[key], others[key]) for key in models)


@pytest.mark.parametrize("name", ["dmpfl", "fedmask"])
def test_batched_processes_agree_but_for_rounding(name: str) -> None:
    _, alone = support.simulate(METHOD_TABLE[name], rounds=3, engine="batched")
    made, state = support.simulate(METHOD_TABLE[name], rounds=3, engine="batched", processes=2)
    assert made.engine.name == "batched"
    one, two = alone.tensors(), state.tensors()
    for key in one:
        if not key.startswith("session/version/"):
            torch.testing.assert_close(one[key], two[key], rtol=1e-9, atol=1e-9, msg=key)
    assert alone.costs["train"]["up"] == state.costs["train"]["up"]


def test_more_processes_than_clients_are_no_matter() -> None:
    _, alone = support.simulate(METHOD_TABLE["ditto"], rounds=2, participation=0.2)
    _, state = support.simulate(METHOD_TABLE["ditto"], rounds=2, participation=0.2, processes=3)
    assert_same(alone, state)


@contextmanager
def nowhere() -> Iterator[Place]:
    """Memory that no other process finds, as on another machine."""
    yield Place("/nowhere", (0, 0))


def test_what_is_sent_is_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory that all see, outcomes go over the network."""
    alone, figures, _ = whole(METHOD_TABLE["fedmask"], rounds=2)
    monkeypatch.setattr("masquerade.engine.divided.shared", nowhere)
    state, theirs, _ = whole(METHOD_TABLE["fedmask"], rounds=2, processes=3)
    assert_same(alone, state)
    assert figures == theirs


def test_memory_is_used_again_unless_somebody_holds_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes: list[Outcome] = []
    work = Divided.work

    def noted(self: Divided, job: Job) -> Outcome:
        outcomes.append(work(self, job))
        return outcomes[-1]

    with simulating(toy(FedAvg(local_epochs=1, lr=0.5), participation=1.0, processes=2)) as made:
        assert isinstance(made.engine, Divided)
        state = made.begin()
        advance(made, state)
        first = made.engine.memory
        assert first is not None
        advance(made, state)
        assert made.engine.memory is first
        monkeypatch.setattr(Divided, "work", noted)
        advance(made, state)
        assert made.engine.memory is first
        kept = tree.transform(torch.clone, outcomes[0].uploads)
        advance(made, state)
        assert made.engine.memory is not first
        one, two = tree.named(outcomes[0].uploads), tree.named(kept)
        assert all(torch.equal(one[name], two[name]) for name in one)


class Deadly(FedAvg):
    """A process that is not the first is ended in its round, once."""

    flag: Path
    by = signal.SIGKILL

    def start(self, task: Task, message: Any, client: State, round: Round) -> State:
        if in_another_process() and int(round.number) == 2 and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), self.by)
        return super().start(task, message, client, round)


def trained(method: Method, out: Path, processes: int) -> None:
    """Train in a directory, or go on with what is there."""
    spec = toy(method, rounds=4, processes=processes, commit_every=0)
    described = {"compute": {"processes": processes}}
    with running(spec, lambda made: described, directory_at(out, begun=True)) as made:
        complete(made, models=False)


def committed(out: Path) -> tuple[int, dict[str, torch.Tensor], Any]:
    with RunDirectory.open(out) as directory:
        commit = directory.latest()
    assert commit is not None
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    for each in summary:
        del each["costs"]["seconds"], each["costs"]["memory"]
    return commit.number, commit.tensors, summary


def test_a_run_whose_process_is_killed_goes_on_with_another_number_of_them(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deadly, "flag", tmp_path / "flag", raising=False)
    method = Deadly(local_epochs=1, lr=0.1)
    with raises("E505", "1", "9") as refusal:
        trained(method, tmp_path / "run", 2)
    golden(refusal.value)
    with RunDirectory.open(tmp_path / "run") as directory:
        commit = directory.latest()
    assert commit is not None
    assert commit.number == 2
    trained(method, tmp_path / "run", 3)
    trained(method, tmp_path / "alone", 1)
    (last, one, figures), (also, two, others) = map(
        committed, (tmp_path / "run", tmp_path / "alone")
    )
    assert last == also == 4
    assert [name for name in two if not torch.equal(one[name], two[name])] == []
    assert figures == others


def after_forking(monkeypatch: pytest.MonkeyPatch, child: Callable[[], None]) -> None:
    """Have every fork do something before anything else."""
    fork = os.fork

    def forking() -> int:
        process = fork()
        if not process:
            child()
        return process

    monkeypatch.setattr(os, "fork", forking)


def test_a_process_that_dies_before_all_have_met_ends_the_run(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_forking(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL))
    spec = toy(FedAvg(local_epochs=1), processes=2)
    with raises("E505", "1", "9") as refusal, simulating(spec):
        pass
    golden(refusal.value)


def test_a_process_that_does_not_come_ends_the_run(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_forking(monkeypatch, lambda: time.sleep(600))
    monkeypatch.setattr(ranks, "MEETING", 1.0)
    spec = toy(FedAvg(local_epochs=1), processes=3)
    with raises("E505", "1, 2") as refusal, simulating(spec):
        pass
    golden(refusal.value)


def test_signals_are_seen_to_before_all_have_met(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(BaseException):
        pass

    def stop(*given: object) -> None:
        raise Stopped

    after_forking(monkeypatch, lambda: time.sleep(600))
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Stopped), ranks.forked(2, torch.device("cpu")):
            pass
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_process_that_gives_no_sign_of_life_ends_the_run(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deadly, "flag", tmp_path / "flag", raising=False)
    monkeypatch.setattr(Deadly, "by", signal.SIGSTOP)
    for name, seconds in (("BEAT", 0.1), ("LOOK", 0.1), ("SILENCE", 1.0)):
        monkeypatch.setattr(ranks, name, seconds)
    with raises("E505", "1") as refusal:
        trained(Deadly(local_epochs=1, lr=0.1), tmp_path / "run", 2)
    golden(refusal.value)


def test_what_a_process_fails_by_outside_of_clients_is_told(golden: Golden) -> None:
    class Failing(FedAvg):
        def aggregate(self, *given: Any) -> tuple[State, State]:
            if in_another_process():
                raise ValueError("only there")
            return super().aggregate(*given)

    failing = toy(Failing(local_epochs=1), processes=2)
    with raises("E505", "1", "ValueError: only there") as refusal, simulating(failing) as made:
        state = made.begin()
        for _ in range(2):
            advance(made, state)
    golden(refusal.value)


def test_an_error_that_is_seen_in_another_process_alone_is_told(golden: Golden) -> None:
    class Failing(FedAvg):
        def start(self, task: Task, message: Any, client: State, round: Round) -> State:
            if in_another_process():
                raise ValueError("not here")
            return super().start(task, message, client, round)

    failing = toy(Failing(local_epochs=1), processes=2)
    with raises("E505", "1", "ValueError: not here") as refusal, simulating(failing) as made:
        advance(made, made.begin())
    golden(refusal.value)


def test_processes_that_hold_different_models_are_refused(golden: Golden) -> None:
    with raises("E506") as refusal, simulating(toy(FedAvg(local_epochs=1), processes=2)) as made:
        state = made.begin()
        if made.ranks.number:
            state.server["params"]["0.bias"] = state.server["params"]["0.bias"] + 1
        advance(made, state)
    golden(refusal.value)


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

    ragged = toy(Ragged(lr=0.1, local_epochs=1), participation=1.0, processes=2)
    with pytest.raises(RuntimeError, match="different shapes"), simulating(ragged) as made:
        advance(made, made.begin())


@pytest.mark.parametrize("processes", [1, 2])
def test_clients_that_give_other_shapes_are_an_error(processes: int) -> None:
    class Ragged(Unheard):
        def finish(
            self, task: Task, work: State, message: Any, client: State, round: Round
        ) -> tuple[Any, State]:
            size = int(work["params"]["0.weight"].sum().abs() * 1e6) % 7 + 1
            return {"params": Part({"w": torch.zeros(size)})}, client

    ragged = toy(Ragged(lr=0.1, local_epochs=1), participation=1.0, processes=processes)
    with pytest.raises(RuntimeError, match="different shapes"), simulating(ragged) as made:
        advance(made, made.begin())


def test_forks_end_with_the_run_and_leave_nothing(tmp_path: Path) -> None:
    def children(made: Simulation) -> list[int]:
        return list(made.ranks.children.values())

    with simulating(toy(FedAvg(local_epochs=1), processes=3)) as made:
        forks = children(made)
        state = made.begin()
        advance(made, state)
        folder = made.ranks.folder
    assert len(forks) == 2
    assert folder is not None
    assert not folder.exists()
    for process in forks:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_forks_let_what_an_earlier_run_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed process leaves has threads in the parent: a fork must not wait for them."""

    class Collecting(FedAvg):
        def start(self, task: Task, message: Any, client: State, round: Round) -> State:
            if in_another_process():
                gc.collect()
            return super().start(task, message, client, round)

    monkeypatch.setattr(Deadly, "flag", tmp_path / "flag", raising=False)
    gc.disable()
    try:
        with raises("E505") as refusal:
            trained(Deadly(local_epochs=1, lr=0.1), tmp_path / "run", 2)
        # Nothing has it any more but itself, its traceback, and what that holds.
        refusal.value.__context__ = refusal.value
        del refusal
        with simulating(toy(Collecting(local_epochs=1), processes=2)) as made:
            advance(made, made.begin())
    finally:
        gc.enable()


def test_processes_on_a_cpu_are_refused_where_an_accelerator_is_seen(
    tmp_path: Path, golden: Golden
) -> None:
    """Torch would refuse their gradients; a made-up device stands for a card that is not used."""
    program = """
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend("fake")
from masquerade.cli.app import main
main()
"""
    words = ["run", "--method", "fedavg", "--clients", "4", "--rounds", "1", "--engine", "loop"]
    words += ["--set", "data.fraction=0.1", "--set", "compute.device=cpu", "--processes", "2"]
    words += ["--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    golden(done.stderr.strip().splitlines()[-1])


def test_forks_do_not_wait_for_what_threads_of_their_parent_hold() -> None:
    """Threads of OpenMP are not forked, and others may be in the midst of their work."""
    done, threads = Event(), torch.get_num_threads()

    def busy() -> None:
        weights = torch.randn(8, 8, 3, 3, requires_grad=True)
        while not done.is_set():
            torch.conv2d(torch.randn(8, 8, 32, 32), weights).sum().backward()
            logging.getLogger("masquerade").debug("busy")

    torch.set_num_threads(2)
    torch.randn(400, 400) @ torch.randn(400, 400)
    worker = Thread(target=busy)
    worker.start()
    try:
        support.simulate(METHOD_TABLE["fedavg"], rounds=1, processes=3)
    finally:
        done.set()
        worker.join()
        torch.set_num_threads(threads)


def test_a_process_of_a_run_begins_no_run(golden: Golden) -> None:
    spec = toy(FedAvg(local_epochs=1), processes=2)
    with raises("E505", "E202") as refusal, simulating(spec) as made:
        if made.ranks.number:
            with simulating(spec):
                pass
        advance(made, made.begin())
    golden(refusal.value)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.drill)])
def test_torchrun_does_what_one_process_does(processes: int, tmp_path: Path) -> None:
    arguments = ["run", "--method", "ditto", "--clients", "4", "--rounds", "2", "--engine", "loop"]
    arguments += ["--set", "data.fraction=0.1", "--set", "method.local_epochs=1"]
    start = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    start += ["-m", "masquerade"]
    done = subprocess.run(
        [*start, *arguments, "--out", str(tmp_path / "several"), "--json"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    # One of them prints.
    assert len(json.loads(done.stdout)) == 1
    alone = [sys.executable, "-m", "masquerade", *arguments, "--out", str(tmp_path / "one"), "-q"]
    subprocess.run(alone, check=True, capture_output=True, timeout=200)
    one, two = committed(tmp_path / "one"), committed(tmp_path / "several")
    assert [name for name in one[1] if not torch.equal(one[1][name], two[1][name])] == []
    assert one[2] == two[2]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("processes", [1, 2])
def test_processes_on_cuda_agree_but_for_rounding(processes: int) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    subprocess.run(
        [*start, str(ROOT / "bench/ranks.py"), "--device", "cuda", "--quick"], check=True
    )
