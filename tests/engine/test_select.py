"""The choice of an engine: a fixed rule, and a reason whenever a run cannot be batched."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.config.settings import Compute
from masquerade.core import Batch, Method, Round, Stage, State, Task
from masquerade.cost.flops import Meter
from masquerade.data import Federation
from masquerade.data.loader import BatchLoader
from masquerade.engine.base import EngineContext
from masquerade.engine.batched import Batched
from masquerade.engine.select import FEWEST, LARGEST, choose, make, obstacle
from masquerade.engine.vmapped import VmappedMethod
from masquerade.errors import MasqueradeWarning
from masquerade.methods import FedAvg
from masquerade.models import MLP, DigitsCNN
from masquerade.simulation.build import simulating
from tests.messages import Golden
from tests.support import (
    METHOD_TABLE,
    carry_on,
    federation,
    measure,
    network,
    simulate,
    simulation,
    specified,
    warns,
)

CPU = torch.device("cpu")


def setting(
    method: Method, model: nn.Module | None = None, data: Federation | None = None, size: int = 4
) -> EngineContext:
    task = Task(model or network())
    return EngineContext(method, task, BatchLoader(data or federation(), 5, size), Meter(task), 6)


@pytest.mark.parametrize(
    ("model", "cohort", "expected"),
    [
        (MLP(784, (), 10), FEWEST, "batched"),
        (MLP(784, (), 10), FEWEST - 1, "loop"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), 10, "batched"),
        (MLP(784, (400,), 10), 50, "loop"),
        (DigitsCNN(), 50, "loop"),
        (nn.Embedding(5, 3), 50, "loop"),
    ],
    ids=["logistic", "few clients", "norm", "large", "convolution", "embedding"],
)
def test_the_rule_on_a_cpu(model: nn.Module, cohort: int, expected: str) -> None:
    assert choose(Task(model), CPU, cohort) == expected


def test_the_rule_counts_parameters() -> None:
    inputs = LARGEST // 2 - 1
    # Two outputs: twice the inputs and two biases are just as many as allowed.
    assert choose(Task(nn.Linear(inputs, 2)), CPU, FEWEST) == "batched"
    assert choose(Task(nn.Linear(inputs + 1, 2)), CPU, FEWEST) == "loop"


class Viewing(nn.Module):
    """Reshapes as tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 4, 3), nn.Linear(4 * 6 * 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(x).view(len(x), -1))


def images() -> Federation:
    data = federation()
    x = torch.randn(len(data.y), 2, 8, 8, generator=torch.Generator().manual_seed(1))
    return replace(data, x=x)


class ViewingInUse(Viewing):
    """Reshapes so only when it is not trained."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.conv(x)
        return self.out(seen.flatten(1) if self.training else seen.view(len(x), -1))


class Asserting(Viewing):
    """Asks how its numbers lie."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        return self.out(self.conv(x).flatten(1))


FLAT = nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
DENSE = nn.Sequential(nn.Flatten(), nn.Linear(128, 3))


@pytest.mark.parametrize(
    ("model", "engine", "last"),
    [
        (FLAT, "loop", True),
        (FLAT, "batched", False),
        (DENSE, "loop", False),
        (Viewing(), "loop", False),
        (ViewingInUse(), "loop", False),
        (Asserting(), "loop", False),
        (nn.Sequential(*FLAT[:2], nn.InstanceNorm2d(4), *FLAT[2:]), "loop", False),
        (copy.deepcopy(FLAT).double(), "loop", False),
    ],
    ids=["convolution", "stacked", "dense", "view", "view in use", "assert", "norm", "double"],
)
def test_channels_lie_side_by_side_for_one_clients_convolutions(
    model: nn.Module, engine: str, last: bool
) -> None:
    method, data, ends = FedAvg(local_epochs=1, lr=0.1), images(), []
    for plain in (False, True):
        spec = specified(
            method, Task(model), data, rounds=2, batch_size=4, compute=Compute(engine=engine)
        )
        with simulating(spec) as made:
            loader = made.engine.context.loader
            assert loader.layout is (torch.channels_last if last else torch.preserve_format)
            if plain:
                loader = replace(loader, layout=torch.preserve_format)
                made.engine.context = replace(made.engine.context, loader=loader)
            progress = carry_on(made, made.begin())
            evaluated = measure(made, progress, "global", list(data.test))
            ends.append((progress.server["params"], torch.cat(evaluated.scores)))
    torch.testing.assert_close(ends[0], ends[1])


def test_a_gpu_is_always_batched() -> None:
    assert choose(Task(DigitsCNN()), torch.device("cuda"), 1) == "batched"


def test_a_loop_that_was_asked_for_is_given_without_a_trial() -> None:
    assert make(setting(FedAvg(), droppy()), "loop", clients=6).name == "loop"


def droppy() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def even(samples: int) -> Federation:
    """The toy federation with as many training samples for every client, as far as they reach."""
    data = federation()
    everything = torch.arange(len(data.y))
    train = tuple(everything[id * samples : (id + 1) * samples] for id in range(6))
    return replace(data, train=train)


@dataclass(frozen=True, kw_only=True)
class Plain(Method):
    """A method as PyTorch is usually written: numbers on the host, boolean indexing."""

    local_epochs: int = 1
    fault: str = "item"

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        descent = self.sgd_step(task)

        def step(work: State, batch: Batch, round: Round) -> State:
            loss, _ = task.loss(work["params"], batch)
            if self.fault == "item":
                return descent(work, batch, round) if loss.item() > 0 else work
            chosen = batch.y > 0
            rest = Batch(batch.x[chosen], batch.y[chosen], None, batch.key)
            return descent(work, rest, round) if len(rest.y) else work

        return (Stage("plain", step, self.local_epochs),)


OBSTACLES: dict[str, tuple[Method, Callable[[], nn.Module], Federation, str]] = {
    "dropout": (FedAvg(), droppy, federation(), "random"),
    "item": (Plain(fault="item"), network, federation(), "item"),
    "indexing": (Plain(fault="indexing"), network, federation(), "shape"),
    "ragged batches": (FedAvg(), normed, federation(), "ragged"),
    "ragged last batch": (FedAvg(), normed, even(6), "ragged"),
}
each_obstacle = pytest.mark.parametrize(
    ("method", "model", "data", "word"), OBSTACLES.values(), ids=OBSTACLES
)


@each_obstacle
def test_what_cannot_be_batched_is_looped_with_one_warning(
    method: Method, model: Callable[[], nn.Module], data: Federation, word: str
) -> None:
    with pytest.warns(MasqueradeWarning) as caught:
        engine = make(setting(method, model(), data), "batched", clients=6)
    assert engine.name == "loop"
    (warning,) = caught
    assert str(warning.message).startswith("W501 ")
    # One line that a person can read, with the reason in it.
    assert "\n" not in str(warning.message)
    assert word in str(warning.message)


def test_batchnorm_with_full_batches_of_equal_clients_is_batched() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(setting(FedAvg(), normed(), even(8)), "batched", clients=6).name == "batched"


def test_a_method_that_fails_in_a_later_phase_is_found() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Late(Method):
        """Fine at first."""

        def schedule(self, number: int, rounds: int) -> str:
            return "late" if number == rounds - 1 else "train"

        def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
            if round.phase == "late":
                return Plain().plan(task, round)
            return super().plan(task, round)

    why = obstacle(setting(Late(local_epochs=1)))
    assert why is not None
    assert "item" in why


def test_a_view_that_cannot_be_batched_is_found() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Peeking(Method):
        """Trains like any other and predicts by looking at numbers."""

        def predict(self, task: Task, personal: Any, x: torch.Tensor) -> torch.Tensor:
            output = super().predict(task, personal, x)
            return output / float(output.abs().max())

    assert obstacle(setting(Peeking(local_epochs=1))) is not None


def test_a_trial_leaves_no_trace() -> None:
    made = setting(FedAvg())
    before = {name: value.clone() for name, value in made.task.initial.items()}
    state = torch.random.get_rng_state()
    obstacle(made)
    assert all(torch.equal(made.task.initial[name], value) for name, value in before.items())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_too_little_memory_for_an_evaluation_halves_its_samples_and_then_the_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = simulation(METHOD_TABLE["fedavg"], rounds=1, engine="batched", clients_per_chunk=64)
    progress = made.begin()
    samples = [torch.arange(20) for _ in made.server.clients]
    wanted = measure(made, progress, "global", samples).scores
    mapped, widths = VmappedMethod.map, list[tuple[int, int]]()

    def small(self: VmappedMethod, function: Any, *given: Any) -> Any:
        if isinstance(given[-1], Tensor):
            widths.append(tuple(given[-1].shape[:2]))
            if self.clients > 2 or given[-1].shape[1] > 3:
                raise torch.OutOfMemoryError("invented")
        return mapped(self, function, *given)

    monkeypatch.setattr(VmappedMethod, "map", small)
    with warns("W503"):
        found = measure(made, progress, "global", samples).scores
    assert [each for each in widths if each[0] <= 2][-1][1] in (1, 2, 3)
    for left, right in zip(wanted, found, strict=True):
        assert torch.equal(left, right)


def test_too_little_memory_halves_the_width_and_changes_no_number(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    method = METHOD_TABLE["dmpfl"]
    _, whole = simulate(method, rounds=3, engine="batched", clients_per_chunk=64)
    chunk = Batched.work_chunk

    def small(self: Batched, vmapped: VmappedMethod, *rest: Any) -> Any:
        if vmapped.clients > 2:
            raise torch.OutOfMemoryError("invented")
        return chunk(self, vmapped, *rest)

    made = simulation(method, rounds=3, engine="batched", clients_per_chunk=64)
    progress = made.begin()
    monkeypatch.setattr(Batched, "work_chunk", small)
    with warns("W503", 4, 2) as seen:
        carry_on(made, progress)
    golden(seen[-1].message)
    assert len(seen) == 1
    for name, value in whole.tensors().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, progress.tensors()[name], rtol=1e-9, atol=1e-9)
