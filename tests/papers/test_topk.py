"""Top-k with error feedback: by hand, against plain PyTorch, and against its usual mistakes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import ClientInfo, Cohort, Message, Part, Round, State, Task, average, tree
from masquerade.methods import TopK
from masquerade.wire import nbytes
from tests.papers import replay
from tests.papers.reference import Plain
from tests.support import advance

ONE = torch.ones((), dtype=torch.float64)
ROUND = Round("train", "train", 0 * ONE, ONE, ONE)
TASK = Task(nn.Linear(4, 1, bias=False).double())
HALF = TopK(share=0.5)
"""Sends two of the four weights of the examples."""


def four(*values: float) -> dict[str, Tensor]:
    return {"weight": torch.tensor([values], dtype=torch.float64)}


def finish(method: TopK, trained: dict[str, Tensor], client: State) -> tuple[Message, State]:
    """End a round that began from (1, 1, 1, 1)."""
    message = {"params": Part(four(1, 1, 1, 1))}
    return method.finish(TASK, {"params": trained}, message, client, ROUND)


def sent(upload: Message) -> list[float]:
    assert int(upload["update"].keep["weight"].sum()) == 2
    found: list[float] = upload["update"].values["weight"][0].tolist()
    return found


def assert_the_rest_is_sent_later(method: TopK) -> None:
    # Update (3, −2, 1.5, 0): 3 and −2 are sent, (0, 0, 1.5, 0) is kept.
    client = method.client_init(TASK, ClientInfo(0, 1, 0))
    upload, client = finish(method, four(4, -1, 2.5, 1), client)
    assert sent(upload) == [3, -2, 0, 0]
    # The same again, and what was kept: (3, −2, 3, 0), so the 3s go and −2 stays.
    upload, client = finish(method, four(4, -1, 2.5, 1), client)
    assert sent(upload) == [3, 0, 3, 0]
    assert torch.equal(client["residual"]["weight"], four(0, -2, 0, 0)["weight"])


class Forgets(TopK):
    """Throws away what it does not send."""

    def finish(self, *given: Any) -> tuple[Message, State]:
        upload, _ = super().finish(*given)
        return upload, {"residual": tree.zeros(given[3]["residual"])}


def test_dropping_the_residual_is_a_mistake() -> None:
    assert_the_rest_is_sent_later(HALF)
    with pytest.raises(AssertionError):
        assert_the_rest_is_sent_later(Forgets(share=0.5))


def assert_absent_entries_are_zeros(method: TopK) -> None:
    # A has 1 sample and sends (4, 8, –, –), B has 3 and sends (4, –, −8, –); a dash is a zero:
    # (1 · 4 + 3 · 4) / 4 = 4, 1 · 8 / 4 = 2, 3 · (−8) / 4 = −6, 0; added to (1, 1, 1, 1).
    uploads = [
        {"update": Part(four(*values), {"weight": torch.tensor([keep])})}
        for values, keep in (
            ((4, 8, 0, 0), (True, True, False, False)),
            ((4, 0, -8, 0), (True, False, True, False)),
        )
    ]
    cohort = Cohort(torch.arange(2), torch.tensor([1, 3]), 2, 2)
    server = {"params": four(1, 1, 1, 1)}
    new, _ = method.aggregate(TASK, server, {}, tree.stack(uploads), cohort, ROUND)
    assert new["params"]["weight"][0].tolist() == [5, 3, -5, 1]


class AveragesHolders(TopK):
    """Takes the mean over the clients that sent an entry, which makes rare changes too large."""

    def aggregate(self, *given: Any) -> tuple[State, State]:
        _, server, rows, uploads, cohort, _ = given
        zeros = tree.zeros(server["params"])
        mean = average(uploads["update"], cohort.samples, zeros)
        return {"params": tree.each(torch.add, server["params"], mean)}, rows


def test_averaging_over_holders_only_is_a_mistake() -> None:
    assert_absent_entries_are_zeros(HALF)
    with pytest.raises(AssertionError):
        assert_absent_entries_are_zeros(AveragesHolders(share=0.5))


def test_the_largest_are_looked_for_in_each_tensor_or_in_all() -> None:
    task = Task(nn.Linear(4, 2).double())
    weight = torch.tensor([[8.0, 7, 6, 5], [4, 3, 2, 1]], dtype=torch.float64)
    bias = torch.tensor([0.5, -0.25], dtype=torch.float64)
    message = {"params": Part({"weight": 0 * weight, "bias": 0 * bias})}
    work = {"params": {"weight": weight, "bias": bias}}
    kept = {}
    for ranking in ("layer", "overall"):
        method = TopK(share=0.5, ranking=ranking)
        client = method.client_init(task, ClientInfo(0, 1, 0))
        upload, _ = method.finish(task, work, message, client, ROUND)
        keep = upload["update"].keep
        kept[ranking] = int(keep["weight"].sum()), int(keep["bias"].sum())
    # Half of eight and half of two; or the five largest of all, none of them a bias.
    assert kept == {"layer": (4, 1), "overall": (5, 0)}


def test_buffers_travel_whole_and_leave_no_residual() -> None:
    task = Task(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    client = TopK().client_init(task, ClientInfo(0, 1, 0))
    assert client["residual"].keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    moved = {name: value + 1 for name, value in task.initial.items()}
    message = {"params": Part(task.initial)}
    upload, _ = TopK().finish(task, {"params": moved}, message, client, ROUND)
    part = upload["update"]
    assert part.keep.keys() == client["residual"].keys()
    assert torch.all(part.values["1.running_mean"] == 1)
    assert part.values["1.num_batches_tracked"] == 1


def test_a_tenth_of_the_entries_costs_a_tenth_of_the_values_and_a_bit_each() -> None:
    task = Task(nn.Linear(100, 10, bias=False))
    client = TopK().client_init(task, ClientInfo(0, 1, 0))
    message = {"params": Part(task.initial)}
    upload, _ = TopK().finish(task, {"params": task.fresh(1)}, message, client, ROUND)
    # 100 of 1,000 float32 values; 1,000 bits at less than half a bit each, and two bytes that say
    # how many are ones; a header and two flags.
    masks = int(nbytes(upload)) - 100 * 4 - 2 - 24 - 2
    assert 1000 * 0.469 / 8 <= masks <= 1000 * 0.469 / 8 + 8


def test_three_rounds_equal_plain_pytorch() -> None:
    method = TopK(share=0.3, lr=0.2, local_epochs=2)
    made, world = replay.stage(method, 3)
    plain = Plain(world, 0.2, 2)
    progress, weights = made.begin(), replay.weights_of(world.network)
    memory: dict[int, dict[str, Tensor]] = {}
    for number, cohort in enumerate(world.cohorts):
        advance(made, progress)
        total = sum(world.share(client) for client in cohort)
        new = dict(weights)
        for client in cohort:
            trained = plain.train(weights, client, number)
            for name, old in weights.items():
                kept = memory.setdefault(client, {}).get(name, torch.zeros_like(old))
                update = (trained[name] - old + kept).flatten()
                count = max(1, int(0.3 * update.numel() + 1e-9))
                largest = update.abs().topk(count).indices
                sparse = torch.zeros_like(update)
                sparse[largest] = update[largest]
                memory[client][name] = (update - sparse).reshape(old.shape)
                new[name] = new[name] + world.share(client) / total * sparse.reshape(old.shape)
        weights = new
        replay.assert_same(progress.server["params"], weights)
    for client, left in memory.items():
        held = tree.take(progress.clients.state["residual"], client)
        replay.assert_same(held, left)
