"""The store: what is put is taken, and nobody else's bits move."""

import math
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from masquerade.core import Part, State, tree
from masquerade.engine.store import Store

CPU = torch.device("cpu")
CLIENTS = 5


def client(id: int) -> State:
    """A state of every kind of node, different for every client."""
    return {
        "params": {"w": torch.full((2, 2), float(id)), "n": torch.tensor(id)},
        "held": Part({"w": torch.tensor([id / 10])}, {"w": torch.tensor([id % 2 == 0])}),
    }


def store() -> Store:
    return Store.of((client(id) for id in range(CLIENTS)), CLIENTS, CPU, CPU)


def assert_same(left: object, right: object) -> None:
    one, two = tree.named(left), tree.named(right)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype is two[name].dtype
        assert torch.equal(value, two[name]), name


@pytest.mark.parametrize("ids", [[0], [1, 3], [4, 0, 2], list(range(CLIENTS))])
def test_what_was_stored_is_taken_in_the_order_asked(ids: list[int]) -> None:
    taken = store().take(torch.tensor(ids))
    assert_same(taken, tree.stack([client(id) for id in ids]))


@pytest.mark.parametrize("ids", [[2], [3, 1]])
def test_what_is_put_is_taken_and_others_keep_their_bits(ids: list[int]) -> None:
    made = store()
    chosen = torch.tensor(ids)
    made.put(chosen, tree.stack([client(id + 100) for id in ids]))
    assert_same(made.take(chosen), tree.stack([client(id + 100) for id in ids]))
    rest = [id for id in range(CLIENTS) if id not in ids]
    assert_same(made.take(torch.tensor(rest)), tree.stack([client(id) for id in rest]))


def test_the_bits_of_odd_numbers_survive() -> None:
    odd = torch.tensor([math.nan, -0.0, 1e-45, math.inf])
    made = Store.of([{"w": torch.zeros(4)}, {"w": odd}], 2, CPU, CPU)
    made.put(torch.tensor([0]), {"w": odd[None]})
    for row in made.take(torch.tensor([0, 1]))["w"]:
        assert torch.equal(row.view(torch.int32), odd.view(torch.int32))


def test_taking_makes_a_copy() -> None:
    made = store()
    taken = made.take(torch.tensor([1]))
    taken["params"]["w"].zero_()
    assert_same(made.take(torch.tensor([1])), tree.stack([client(1)]))


def test_storing_makes_a_copy() -> None:
    states = [client(id) for id in range(2)]
    made = Store.of(states, 2, CPU, CPU)
    made.put(torch.tensor([0]), tree.stack([client(1)]))
    assert_same(states[0], client(0))


def test_states_that_come_one_after_another_are_not_held_beside_one_another() -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def coming() -> Iterator[State]:
        nonlocal most
        for id in range(CLIENTS):
            made = torch.full((3,), float(id))
            alive.append(weakref.ref(made))
            yield {"w": made}
            del made
            most = max(most, sum(each() is not None for each in alive))

    made = Store.of(coming(), CLIENTS, CPU, CPU)
    assert made.state["w"][:, 0].tolist() == list(range(CLIENTS))
    # The first, which the room is made by, and the one that was last written.
    assert most <= 2


def test_the_type_of_what_is_stored_stays() -> None:
    made = Store.of([{"w": torch.zeros(2)}], 1, CPU, CPU)
    made.put(torch.tensor([0]), {"w": torch.ones(1, 2, dtype=torch.float64)})
    assert made.take(torch.tensor([0]))["w"].dtype is torch.float32


def test_clients_may_hold_nothing() -> None:
    made = Store.of([{}, {}], 2, CPU, CPU)
    assert made.take(torch.tensor([1])) == {}
    made.put(torch.tensor([0]), {})


def test_states_lie_at_their_place_and_work_happens_on_the_device() -> None:
    """The `meta` device has no memory, but it shows where a tensor would be."""
    states = [{"w": torch.zeros(3)} for _ in range(2)]
    meta = torch.device("meta")
    on_host = Store.of(states, 2, device=meta, place=CPU)
    assert on_host.state["w"].device == CPU
    assert on_host.take(torch.tensor([0]))["w"].device == meta
    on_device = Store.of(states, 2, device=meta, place=meta)
    assert on_device.state["w"].device == meta


@pytest.mark.cuda
def test_host_memory_serves_a_device() -> None:
    cuda = torch.device("cuda")
    made = Store.of([client(id) for id in range(CLIENTS)], CLIENTS, cuda, CPU)
    ids = torch.tensor([1, 2])
    taken = made.take(ids)
    made.put(ids, tree.transform(lambda value: ~value if bits(value) else value + 1, taken))
    assert all(leaf.device.type == "cuda" for leaf in tree.leaves(taken))
    assert all(leaf.device.type == "cpu" for leaf in tree.leaves(made.state))
    assert float(made.state["params"]["w"][1, 0, 0]) == 2.0


def bits(value: Tensor) -> bool:
    return value.dtype is torch.bool


def test_the_states_of_all_are_lent_on_request_and_copied_else() -> None:
    made = store()
    every = torch.arange(CLIENTS)
    place = made.state["params"]["w"].data_ptr()
    assert made.take(every, lend=True)["params"]["w"].data_ptr() == place
    assert made.take(every)["params"]["w"].data_ptr() != place
    assert made.take(torch.tensor([1, 0]), lend=True)["params"]["w"].data_ptr() != place
