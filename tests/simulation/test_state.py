"""A run's state: what a snapshot holds of clients, where states lie, and what memory they take."""

import pytest
import torch

from masquerade.simulation.state import IDS, RunState, Snapshot
from tests.support import METHOD_TABLE, final, raises, scheduled, simulate

Pieces = list[dict[str, torch.Tensor]]


def pieces_of(snapshot: Snapshot) -> Pieces:
    return snapshot.fetch()[1:]


def clients_in(pieces: Pieces) -> list[int]:
    return [id for piece in pieces for id in piece[IDS].tolist()]


def same(left: RunState, right: RunState) -> None:
    one, two = left.tensors(), right.tensors()
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def test_a_snapshot_has_the_clients_that_changed_since_the_last_one() -> None:
    # FedMask has a setup, in which everybody changes; DM-PFL has none.
    for name, at_setup in (("fedmask", True), ("dmpfl", False)):
        with scheduled(METHOD_TABLE[name], rounds=6) as made:
            state = made.begin()
            assert clients_in(pieces_of(state.snapshot())) == []
            for number in range(3):
                made.advance(state)
                asked = made.server.participation.cohort(number).tolist()
                everybody = made.server.participation.eligible.tolist()
                wanted = everybody if at_setup and number == 0 else asked
                snapshot = state.snapshot()
                if snapshot.whole:
                    wanted = state.touched.nonzero().flatten().tolist()
                assert clients_in(pieces_of(snapshot)) == sorted(wanted)
            assert clients_in(pieces_of(state.snapshot())) == []


@pytest.mark.parametrize("name", ["dmpfl", "fedmask", "fedselect", "ditto"])
def test_pieces_one_after_another_are_the_state(name: str) -> None:
    """Whatever went into commits, they hold at most twice as many states as there are clients."""
    with scheduled(METHOD_TABLE[name], rounds=12) as made:
        state, held = made.begin(), Pieces()
        wholes = 0
        for _ in range(12):
            made.advance(state)
            snapshot = state.snapshot()
            wholes += snapshot.whole
            held = pieces_of(snapshot) if snapshot.whole else held + pieces_of(snapshot)
            touched = len(set(clients_in(held)))
            assert len(clients_in(held)) <= 2 * touched
            loaded = made.begin()
            server = snapshot.fetch()[0]
            loaded.restore(state.number, server, state.facts(), held)
            same(loaded, state)
            assert loaded.handed == state.handed
            assert torch.equal(loaded.touched, state.touched)
        assert 0 < wholes < 12


@pytest.mark.parametrize("name", ["dmpfl", "pfedgate", "fedavg"])
def test_states_in_files_are_the_states_in_memory(name: str) -> None:
    method = METHOD_TABLE[name]
    _, memory = simulate(method, rounds=4)
    _, disk = simulate(method, rounds=4, store="disk")
    same(memory, disk)


def test_the_most_memory_is_told_by_part() -> None:
    with scheduled(METHOD_TABLE["ditto"], rounds=2) as made:
        state = made.begin()
        made.advance(state)
        made.advance(state)
        summaries, _ = final(made, state)
    found = summaries[0].costs.memory
    data = made.federation
    assert found["data"] == data.x.nbytes + data.y.nbytes
    # A second model of float64 numbers for everybody who was sampled, and some numbers more.
    models = int((state.sampled > 0).sum()) * made.server.task.parameters * 8
    assert models <= found["states"] <= 1.2 * models
    parts = {found["process, training"], found["process, evaluation"]}
    assert max(parts) <= found["process"]


def test_a_bound_on_a_gpus_memory_is_refused_where_there_is_none() -> None:
    with (
        raises("E503", "compute.memory"),
        scheduled(METHOD_TABLE["fedavg"], rounds=1, memory=2.0),
    ):
        pass
