"""Two halves of one model: each step trains its own, and what is not read may be anything."""

import math

import torch
from torch import nn

from masquerade.core import Batch, Method, Part, Round, Task
from masquerade.core.tree import State
from masquerade.methods.fedselect import halves


def task() -> Task:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    module[0].weight.data = torch.arange(6.0, dtype=torch.float64).reshape(2, 3) / 6
    return Task(module)


def round() -> Round:
    one = torch.ones((), dtype=torch.float64)
    return Round("train", "train", one, one, one)


def work(task: Task) -> State:
    personal = {"0.weight": torch.tensor([[True, False, True], [False, False, True]])}
    own = torch.where(personal["0.weight"], task.initial["0.weight"], math.nan)
    shared = torch.where(personal["0.weight"], math.nan, task.initial["0.weight"])
    return {
        "own": {"0.weight": own},
        "shared": {**task.initial, "0.weight": shared},
        "personal": personal,
    }


BATCH = Batch(torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0]), None, torch.tensor(0))


def test_the_model_takes_each_entry_from_its_half() -> None:
    there = task()
    model = halves.model(work(there))
    assert all(torch.equal(model[name], value) for name, value in there.initial.items())
    given = work(there)
    own = Part(given["own"], given["personal"])
    composed = halves.compose(own, Part(given["shared"]))
    assert torch.equal(composed["0.weight"], there.initial["0.weight"])


def test_a_step_moves_one_half_where_it_is_read() -> None:
    there = task()
    before, held = work(there), work(there)["personal"]["0.weight"]
    method = Method(lr=0.5, momentum=0.5, weight_decay=0.1)
    plain = method.sgd_step(there)
    whole = plain(plain.prepare({"params": there.initial}, round()), BATCH, round())["params"]
    for half, mine in (("own", held), ("shared", ~held)):
        step = halves.step(method, there, half)
        after = step(step.prepare(before, round()), BATCH, round())
        other = "shared" if half == "own" else "own"
        assert after[other] is before[other]
        moved = after[half]["0.weight"]
        # Inside its half it is the step of plain SGD; what lies outside is never read.
        assert torch.equal(moved[mine], whole["0.weight"][mine])
        counted = halves.model(after)["1.num_batches_tracked"]
        assert int(counted) == (half == "shared")


def test_passes_take_turns_and_shared_ones_see_the_batches_of_fedavg() -> None:
    stages = halves.alternate(Method(local_epochs=2), task())
    assert [(one.name, one.stream, one.epoch) for one in stages] == [
        ("own 0", 1, 0),
        ("shared 0", 0, 0),
        ("own 1", 1, 1),
        ("shared 1", 0, 1),
    ]
