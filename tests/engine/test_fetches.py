"""The host waits for the device when clients' rounds are over, not between their stages."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from masquerade.config.settings import Compute
from masquerade.core import Message, Part, State, Task, tree
from masquerade.core.round import ClientInfo, Round, client_round
from masquerade.data import Federation
from masquerade.methods import DMPFL, FedAvg
from masquerade.simulation.build import simulating
from tests.support import advance, network, simulation, specified

WAITING = (
    *(Tensor.cpu, Tensor.item, Tensor.tolist, Tensor.numpy),
    *(Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__),
)
"""What brings numbers to the host, and waits for them."""


class Fetches(TorchFunctionMode):
    """Notes what is brought to the host inside of clients' rounds, and what is copied after."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.early, self.copied = False, list[Any](), 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITING and self._on_the_device(func, args[0]):
            if self.inside:
                self.early.append(func)
            elif func is Tensor.cpu:
                self.copied += 1
        return func(*args, **(kwargs or {}))

    def _on_the_device(self, func: Any, value: Tensor) -> bool:
        """Whether it would be there on a GPU: ids, places and lists of flags are the host's own."""
        flag = value.dtype == torch.bool and func is not Tensor.tolist
        return value.is_floating_point() or flag


def one_round(monkeypatch: pytest.MonkeyPatch, after: Callable[[Any], None]) -> Fetches:
    """Watch a round of two stages, with masks of several tensors; `after` ends clients' rounds."""
    made = simulation(DMPFL(local_epochs=2, readjust_every=1), engine="batched")
    round = made.context.round("train", made.server.method.schedule(0, made.spec.train.rounds), 0)
    assert len(made.server.method.stages(made.server.task, round)) == 2
    fetches = Fetches()

    def watched(*arguments: Any) -> Any:
        fetches.inside = True
        done = client_round(*arguments)
        after(done)
        fetches.inside = False
        return done

    monkeypatch.setattr("masquerade.engine.batched.client_round", watched)
    progress = made.begin()
    with fetches:
        advance(made, progress)
    return fetches


def test_numbers_are_fetched_once_and_after_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = one_round(monkeypatch, after=lambda done: None)
    assert found.early == []
    # The densities, and the bytes.
    assert found.copied == 2


@pytest.mark.parametrize(
    "stray",
    [lambda value: value.item(), bool, float, lambda value: bool(value > 0), Tensor.tolist],
    ids=["item", "bool", "float", "if", "tolist"],
)
def test_a_stray_fetch_inside_of_a_round_is_found(
    monkeypatch: pytest.MonkeyPatch, stray: Callable[[Tensor], object]
) -> None:
    def after(done: Any) -> None:
        upload, _ = done
        stray(tree.leaves(upload["params"].values)[0].sum())

    assert len(one_round(monkeypatch, after).early) == 1


def test_a_round_that_was_prepared_before_is_the_same() -> None:
    # Chunks of three, of which the second has padding.
    plain, ahead = (
        simulation(DMPFL(local_epochs=2, readjust_every=1), engine="batched", clients_per_chunk=3)
        for _ in range(2)
    )
    left, right = plain.begin(), ahead.begin()
    for number in range(4):
        advance(plain, left)
        ids, round = ahead.server.participation.cohort(number), ahead.server.round("train", number)
        ahead.engine.prepare(ids, round, number)
        assert ahead.engine.prepared
        advance(ahead, right)
        assert not ahead.engine.prepared
    for name, value in left.tensors().items():
        assert torch.equal(value, right.tensors()[name]), name


def test_a_round_that_nobody_takes_part_in_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation(DMPFL(local_epochs=1), engine="batched")
    monkeypatch.setattr(type(made.engine), "prepares", True)
    made.server.prepare(made.engine, 1)
    assert made.engine.prepared
    made.engine.prepared.clear()
    nobody = torch.empty(0, dtype=torch.int64)
    monkeypatch.setattr(type(made.server.participation), "cohort", lambda self, number: nobody)
    made.server.prepare(made.engine, 1)
    assert not made.engine.prepared
    made.server.prepare(made.engine, made.spec.train.rounds)


class Passing(FedAvg):
    """A client keeps what its row had; the row counts rounds."""

    def row_init(self, task: Task, info: ClientInfo) -> State:
        return {"n": torch.zeros((), dtype=torch.int64)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        return {"got": torch.zeros((), dtype=torch.int64)}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        return {**super().download(task, server, row, round), "row": Part({"n": row["n"]})}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        upload, held = super().finish(task, work, message, client, round)
        return upload, {**held, "got": message["row"].values["n"]}

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Any, round: Round
    ) -> tuple[State, State]:
        server, _ = super().aggregate(task, server, rows, uploads, cohort, round)
        return server, {"n": rows["n"] + 1}


@pytest.mark.parametrize("compute", [{"engine": "loop"}, {"engine": "batched"}, {"processes": 2}])
def test_what_a_row_sent_stays_with_its_client(compute: dict[str, Any]) -> None:
    # Clients of one size, all of them in every round: nothing need be moved, nor copied.
    x, y = torch.ones(24, 6, dtype=torch.float64), torch.arange(24) % 3
    parts = tuple(torch.arange(24).split(6))
    data = Federation("even", x, y, 3, parts, parts, parts)
    method = Passing(local_epochs=1)
    settings: dict[str, Any] = {"rounds": 3, "batch_size": 3, "compute": Compute(**compute)}
    with simulating(specified(method, Task(network()), data, **settings)) as made:
        progress = made.begin()
        for number in range(3):
            advance(made, progress)
            assert progress.clients.state["got"].tolist() == [number] * 4
