"""The store: what is put is taken, and nobody else's bits move."""

import math
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from masquerade.core import Part, State, tree
from masquerade.engine.store import Place, Store

CPU = torch.device("cpu")
CLIENTS = 5


def client(id: int) -> State:
    """A state of every kind of node, different for every client."""
    return {
        "params": {"w": torch.full((2, 2), float(id)), "n": torch.tensor(id)},
        "held": Part({"w": torch.tensor([id / 10])}, {"w": torch.tensor([id % 2 == 0])}),
    }


def begun(states: list[State]) -> Store:
    return Store(lambda id: states[id], len(states), CPU, CPU)


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return CPU if request.param == "memory" else tmp_path


def store(place: Place = CPU) -> Store:
    """A store of which some states were put, and the others are as clients begin."""
    made = Store(client, CLIENTS, CPU, place)
    made.put(torch.tensor([3, 1]), tree.stack([client(3), client(1)]))
    return made


def assert_same(left: object, right: object) -> None:
    one, two = tree.named(left), tree.named(right)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype is two[name].dtype
        assert torch.equal(value, two[name]), name


@pytest.mark.parametrize("ids", [[0], [1, 3], [4, 0, 2], list(range(CLIENTS))])
def test_what_was_stored_is_taken_in_the_order_asked(ids: list[int], place: Place) -> None:
    taken = store(place).take(torch.tensor(ids))
    assert_same(taken, tree.stack([client(id) for id in ids]))


@pytest.mark.parametrize("ids", [[2], [3, 1]])
def test_what_is_put_is_taken_and_others_keep_their_bits(ids: list[int], place: Place) -> None:
    made = store(place)
    chosen = torch.tensor(ids)
    made.put(chosen, tree.stack([client(id + 100) for id in ids]))
    assert_same(made.take(chosen), tree.stack([client(id + 100) for id in ids]))
    rest = [id for id in range(CLIENTS) if id not in ids]
    assert_same(made.take(torch.tensor(rest)), tree.stack([client(id) for id in rest]))


def test_the_bits_of_odd_numbers_survive() -> None:
    odd = torch.tensor([math.nan, -0.0, 1e-45, math.inf])
    made = begun([{"w": torch.zeros(4)}, {"w": odd}])
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
    made = begun(states)
    made.put(torch.tensor([0]), tree.stack([client(1)]))
    assert_same(states[0], client(0))


def test_states_that_were_never_put_are_made_when_they_are_asked_for(place: Place) -> None:
    asked: list[int] = []

    def first(id: int) -> State:
        asked.append(id)
        return client(id)

    made = Store(first, 100_000, CPU, place)
    made.put(torch.tensor([70_000]), tree.stack([client(1)]))
    assert_same(made.take(torch.tensor([70_000, 5])), tree.stack([client(1), client(5)]))
    assert len(asked) <= 2


def test_a_disk_has_no_memory_of_the_process_and_leaves_no_file(tmp_path: Path) -> None:
    clients, numbers = 4000, 10_000
    made = Store(lambda id: {"w": torch.zeros(numbers)}, clients, CPU, tmp_path)
    before = resident()
    for some in torch.arange(clients).split(100):
        made.put(some, {"w": some.float()[:, None].expand(-1, numbers)})
    assert resident() - before < 40 << 20 < clients * numbers * 4
    ids = torch.tensor([3999, 7])
    assert made.take(ids)["w"][:, -1].tolist() == [3999, 7]
    assert list(tmp_path.iterdir()) == []


def resident() -> int:
    """The bytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_names_that_come_later_are_there_for_all(place: Place) -> None:
    made = Store(lambda id: {"w": torch.tensor(id)}, CLIENTS, CPU, place)
    made.put(torch.tensor([2]), {"w": torch.tensor([20])})
    made.add({"v": torch.tensor([7, 8])})
    assert made.state["v"].tolist() == [[7, 8]] * CLIENTS
    made.put(torch.tensor([4]), {"w": torch.tensor([40]), "v": torch.tensor([[1, 2]])})
    assert made.state["w"].tolist() == [0, 1, 20, 3, 40]
    assert made.state["v"].tolist() == [[7, 8]] * 4 + [[1, 2]]


def test_the_type_of_what_is_stored_stays() -> None:
    made = begun([{"w": torch.zeros(2)}])
    made.put(torch.tensor([0]), {"w": torch.ones(1, 2, dtype=torch.float64)})
    assert made.take(torch.tensor([0]))["w"].dtype is torch.float32


def test_clients_may_hold_nothing() -> None:
    made = begun([{}, {}])
    assert made.take(torch.tensor([1])) == {}
    made.put(torch.tensor([0]), {})


def test_states_lie_at_their_place_and_work_happens_on_the_device() -> None:
    """The `meta` device has no memory, but it shows where a tensor would be."""
    states = [{"w": torch.zeros(3)} for _ in range(2)]
    meta = torch.device("meta")
    ids = torch.arange(2)
    for place in (CPU, meta):
        made = Store(lambda id: states[id], 2, device=meta, place=place)
        made.put(ids, tree.stack(states))
        assert made.take(ids)["w"].device == meta
        assert made.take(ids, lend=True)["w"].device == meta


@pytest.mark.cuda
def test_host_memory_serves_a_device() -> None:
    cuda = torch.device("cuda")
    made = Store(client, CLIENTS, cuda, CPU)
    ids = torch.tensor([1, 2])
    taken = made.take(ids)
    made.put(ids, tree.transform(lambda value: ~value if bits(value) else value + 1, taken))
    assert all(leaf.device.type == "cuda" for leaf in tree.leaves(taken))
    assert float(made.state["params"]["w"][1, 0, 0]) == 2.0


def bits(value: Tensor) -> bool:
    return value.dtype is torch.bool


def test_the_states_of_all_are_lent_on_request_and_copied_else() -> None:
    made = store()
    every = torch.arange(CLIENTS)
    made.put(every, tree.stack([client(id) for id in range(CLIENTS)]))
    assert not same_memory(made, torch.tensor([1, 0]))
    # Once in the order of their numbers.
    made = begun([client(id) for id in range(CLIENTS)])
    made.put(every, tree.stack([client(id) for id in range(CLIENTS)]))
    assert same_memory(made, every)
    assert not same_memory(made, torch.tensor([1, 0]))
    lent, taken = made.take(every, lend=True), made.take(every)
    assert lent["params"]["w"].data_ptr() != taken["params"]["w"].data_ptr()


def same_memory(made: Store, ids: Tensor) -> bool:
    """Tell whether what is lent twice is the same memory."""
    places = [made.take(ids, lend=True)["params"]["w"] for _ in range(2)]
    return places[0].data_ptr() == places[1].data_ptr()
