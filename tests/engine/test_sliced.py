"""The loop trains the smaller network where masks are rows and columns, and gets the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.config.settings import Compute
from masquerade.core import Method, Round, Stage, Task, mask, slicing, tree
from masquerade.core.random import normal
from masquerade.core.round import Batch, steps
from masquerade.core.sgd import sgd_step
from masquerade.cost.flops import Meter, Step
from masquerade.data import Federation
from masquerade.methods import HeteroFL, SubFedAvg
from masquerade.models import MLP, DigitsCNN
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests import support
from tests.support import advance, built

STRUCTURED = SubFedAvg(
    structured=True, local_epochs=2, lr=0.2, momentum=0.5, threshold=-1.0, distance=-1.0, target=0.3
)
"""Prunes units in every round."""
WIDTHS = HeteroFL(levels=(0.25, 0.5, 1.0), local_epochs=2, lr=0.2, momentum=0.5, weight_decay=1e-3)


def images(sizes: tuple[int, ...] = (6, 9, 5, 7)) -> Federation:
    """Make ragged clients with images of 8 × 8 of three classes."""
    x = normal(1, (3 * sum(sizes), 1, 8, 8), torch.float64)
    y = (x.flatten(1) @ normal(2, (64, 3), torch.float64)).argmax(1)
    parts = torch.split(torch.arange(len(x)), [*sizes] * 3)
    return Federation("images", x, y, 3, parts[:4], parts[4:8], parts[8:])


def ended(method: Method, task: Task, engine: str) -> RunState:
    made = built(
        method,
        task,
        images(),
        rounds=3,
        batch_size=4,
        lr_decay=0.97,
        compute=Compute(engine=engine),
        seed=5,
    )
    progress = made.begin()
    while progress.number < 3:
        advance(made, progress)
    return progress


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("method", [WIDTHS, STRUCTURED], ids=["heterofl", "subfedavg_hy"])
def test_sliced_equals_masked(method: Method, norm: bool) -> None:
    """The loop slices, the batched engine masks: equal to 1e-9, masks bit for bit."""
    with torch.random.fork_rng():
        # Some of all networks diverge at this rate; which one is drawn must not be up to others.
        torch.manual_seed(0)
        task = Task(DigitsCNN(classes=3, norm="group" if norm else "none").double())
    sliced, masked = (ended(method, task, engine) for engine in ("loop", "batched"))
    keep = sliced.rows.state["keep"]["conv2.weight"]
    assert 0 < int(keep.sum()) < keep.numel()
    one, two = sliced.tensors(), masked.tensors()
    for name in one.keys() | two.keys():
        if one[name].is_floating_point():
            torch.testing.assert_close(one[name], two[name], rtol=1e-9, atol=1e-9, msg=name)
        elif not name.startswith("session/version/"):
            assert torch.equal(one[name], two[name]), name


class Recording(nn.Linear):
    """A layer that notes the shape it is run with."""

    seen: list[tuple[int, ...]]

    def forward(self, input: Tensor) -> Tensor:
        """Note, and run."""
        self.seen.append(tuple(self.weight.shape))
        return super().forward(input)


def shapes_run(method: Method, engine: str, monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """Return the shapes with which layers run while all clients train for two rounds."""
    # Costs are measured on the whole network; what is recorded here is training alone.
    monkeypatch.setattr(Meter, "step", lambda *given: Step(1.0, 1.0))
    monkeypatch.setattr(Meter, "forward", lambda *given: {"": 1.0})
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(Recording, "seen", seen, raising=False)
    layers = [Recording(6, 8), nn.ReLU(), Recording(8, 6), nn.ReLU(), Recording(6, 3)]
    task = Task(nn.Sequential(*layers).double())
    made: Simulation = support.simulation(method, task=task, engine=engine, participation=1.0)
    progress = made.begin()
    seen.clear()
    for _ in range(2):
        advance(made, progress)
    return set(seen)


WHOLE = {(8, 6), (6, 8), (3, 6)}


def test_narrow_clients_run_a_narrow_network(monkeypatch: pytest.MonkeyPatch) -> None:
    method = HeteroFL(levels=(0.5,), local_epochs=2)
    assert shapes_run(method, "loop", monkeypatch) == {(4, 6), (3, 4), (3, 3)}
    # The batched engine masks: the same question has the other answer there.
    assert shapes_run(method, "batched", monkeypatch) == WHOLE


def test_a_pruned_client_runs_a_smaller_network(monkeypatch: pytest.MonkeyPatch) -> None:
    # A tenth of 8 and of 6 units, rounded up, is one: in the second round 7 and 5 are left. What
    # only measures runs whole.
    found = shapes_run(STRUCTURED, "loop", monkeypatch)
    assert found == WHOLE | {(7, 6), (5, 7), (3, 5)}


def test_momentum_masks_and_other_trees_survive() -> None:
    task = Task(MLP(4, hidden=(6, 4), classes=3).double())
    kept = slicing.keep(slicing.widths(task, 0.5), task.initial)
    noise = {
        name: normal(7, tuple(value.shape), torch.float64) for name, value in task.initial.items()
    }

    def pulled(work: Any, batch: Batch, round: Round) -> Any:
        pull = tree.squared_distance(work["params"], work["anchor"]) / 20
        return *task.losses(work["params"], batch), pull

    step = sgd_step(task, pulled, within=mask.kept, lr=0.3, momentum=0.9, gradient=True)
    stage = Stage("train", step, masks=mask.trained, sliceable=True)
    one = torch.ones((), dtype=torch.float64)
    round = Round("train", None, one, one, one)
    start = {"params": tree.only(kept, noise), "keep": kept, "anchor": tree.only(kept, noise)}
    work = {**stage.prepare(start, round), "seen": torch.arange(6.0), "extra": noise}
    x = normal(8, (5, 4, 4), torch.float64)
    batches = [Batch(each, torch.tensor([0, 1, 2, 0]), None, torch.tensor(0)) for each in x]
    small, whole = (how(stage, work, batches, round) for how in (slicing.steps, steps))
    assert tree.named(small).keys() == tree.named(whole).keys()
    for name, value in tree.named(whole).items():
        got = tree.named(small)[name]
        assert got.shape == value.shape
        # Outside of the slice there is no gradient, which the masked network has there too.
        inside = kept.get(name.rpartition("/")[2], torch.ones_like(value).bool())
        torch.testing.assert_close(got[inside], value[inside], msg=name)
    # What the steps did not read comes back bit for bit, inside the slice and outside of it.
    assert all(torch.equal(small["extra"][name], noise[name]) for name in noise)
    assert all(torch.equal(small["keep"][name], kept[name]) for name in kept)
    assert small["momentum"]["params"]["layers.0.weight"][:3].any()
    assert not small["momentum"]["params"]["layers.0.weight"][3:].any()
