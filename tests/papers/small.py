"""What the examples worked by hand share: one layer, one client, one round."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from masquerade.core import Cohort, Message, Method, Part, Round, Stage, State, Task, client_round
from masquerade.core.tree import stack
from masquerade.data import Federation
from masquerade.data.loader import BatchLoader
from tests import support
from tests.support import advance


def rows(*values: list[float]) -> Tensor:
    """Return a weight in float64."""
    return torch.tensor(values, dtype=torch.float64)


def bits(*lines: str) -> Tensor:
    """Return the mask that lines of zeros and ones show."""
    return torch.tensor([[letter == "1" for letter in line] for line in lines])


def layer(weight: Tensor) -> Task:
    """Return the task whose network is one layer without a bias, called `weight`."""
    module = nn.Linear(weight.shape[1], len(weight), bias=False).double()
    module.weight.data = weight.clone()
    return Task(module)


def at(phase: Any = "train", number: float = 0, rounds: float = 20, kind: str = "train") -> Round:
    """Return a round whose learning rates are not decayed."""
    one = torch.ones((), dtype=torch.float64)
    return Round(kind, phase, number * one, rounds * one, one)


def units(inputs: int, y: list[int], train: list[int], looked: list[int]) -> Federation:
    """Return one client whose samples are unit vectors of these classes."""
    parts = [(torch.tensor(places, dtype=torch.int64),) for places in (train, looked, [])]
    x = torch.eye(inputs, dtype=torch.float64)
    return Federation("hand", x, torch.tensor(y), max(y) + 1, *parts)


def play(
    method: Method,
    task: Task,
    message: Message,
    data: Federation,
    round: Round | None = None,
    client: State | None = None,
) -> Message:
    """Do a round of client 0 and return its upload."""
    here, loader = round or at(), BatchLoader(data, 1, 4)

    def batches(stage: Stage) -> Any:
        return loader.batches(loader.shuffle(torch.tensor([0]), stage, here, 0), 0)

    return client_round(method, task, message, client or {}, batches, here)[0]


def averaged(
    method: Method, task: Task, server: State, parts: list[Part], samples: list[int], round: Round
) -> State:
    """Return the server after the uploads of some clients."""
    uploads: Message = stack([{"params": part} for part in parts])
    cohort = Cohort(torch.arange(len(parts)), torch.tensor(samples), len(parts), 9)
    return method.aggregate(task, server, {}, uploads, cohort, round)[0]


def peeking(data: Federation) -> Federation:
    """Let decisions be made on test data, as some releases do."""
    return replace(data, validation=data.test)


def assert_test_labels_do_not_matter(
    method: Method, wire: Callable[[Federation], Federation] = lambda data: data
) -> None:
    """Assert that masks and weights are the same whatever the test labels are."""
    data = support.federation()
    flipped = data.y.clone()
    for chosen in data.test:
        flipped[chosen] = (flipped[chosen] + 1) % 3
    ended = []
    for y in (data.y, flipped):
        made = support.simulation(method, participation=1.0)
        given = wire(replace(data, y=y))
        made = replace(
            made,
            context=replace(made.context, loader=replace(made.context.loader, federation=given)),
        )
        made.engine.context = made.context
        progress = made.begin()
        for _ in range(4):
            advance(made, progress)
        ended.append(progress.tensors())
    one, two = ended
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
