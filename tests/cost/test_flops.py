"""Operations counted by the framework, against operations counted by hand."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import Batch, Round, Stage, State, Task, Tree, sgd_step
from masquerade.cost.flops import Flops, Meter, Step, nothing, shares
from masquerade.models import MLP, CifarCNN, DigitsCNN
from tests.support import METHOD_TABLE, SIZES, simulate

Keep = Callable[[State], tuple[Tree, Tree | None]]
HIDDEN, LAST = 2 * 6 * 8, 2 * 8 * 3
"""Forward operations of a 6 → 8 → 3 network: a multiplication and an addition per weight."""


def now(phase: str = "train") -> Round:
    one = torch.tensor(1.0, dtype=torch.float64)
    return Round("train", phase, one, one, one)


def classes(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.int64)


def measure(
    model: nn.Module, x: Tensor, keep: Keep | None = None, samples: tuple[int, ...] = (1,)
) -> Flops:
    """What a plain SGD stage costs clients with so many samples, over all layers."""
    task = Task(model)
    meter = Meter(task)
    stage = Stage("train", sgd_step(task, lr=0.1), masks=keep)
    work: State = {"params": task.initial}
    per_sample = meter.step(stage, work, x, classes(x), now())
    seen = torch.tensor(samples, dtype=torch.float64)
    return meter.stage(stage, per_sample, seen, shares(stage, work, lead=0), x).summed()


def at(forward: Mapping[str, Any], gradient: Mapping[str, Any] | None) -> Keep:
    """Masks, whatever the work."""
    return lambda work: (dict(forward), None if gradient is None else dict(gradient))


def half(rows: int, columns: int) -> Tensor:
    """A mask of every other column."""
    return (torch.arange(columns) % 2 == 0).expand(rows, columns)


def test_a_forward_pass_is_two_operations_per_weight() -> None:
    found = Meter(Task(MLP(6, (8,), 3))).forward(torch.ones(5, 6))
    assert found == {"layers.0.weight": HIDDEN, "layers.1.weight": LAST, "": 0}


def test_a_step_adds_weight_gradients_and_the_input_gradients_that_are_needed() -> None:
    # Forward 96 + 48, weight gradients 96 + 48, input gradients 48: none asks for that of the data.
    found = measure(MLP(6, (8,), 3), torch.ones(5, 6))
    expected = 2 * (HIDDEN + LAST) + LAST
    assert found.dense.tolist() == found.masked.tolist() == [expected]
    assert found.paper.tolist() == [3 * (HIDDEN + LAST)]


def test_costs_are_per_sample_and_per_client() -> None:
    found = measure(MLP(6, (8,), 3), torch.ones(5, 6), samples=(0, 1, 10))
    one = 2 * (HIDDEN + LAST) + LAST
    assert found.dense.tolist() == [0, one, 10 * one]
    assert found.paper.tolist() == [0, 3 * (HIDDEN + LAST), 30 * (HIDDEN + LAST)]


def test_half_the_weights_cost_half_the_operations() -> None:
    masks = {"layers.0.weight": half(8, 6), "layers.1.weight": half(3, 8)}
    found = measure(MLP(6, (8,), 3), torch.ones(5, 6), at(masks, masks))
    assert found.dense.tolist() == [2 * (HIDDEN + LAST) + LAST]
    assert found.masked.tolist() == [HIDDEN + LAST + LAST / 2]
    assert found.paper.tolist() == [3 * (HIDDEN + LAST) / 2]


def test_a_dense_gradient_is_counted_where_regrowth_reads_it() -> None:
    masks = {"layers.1.weight": half(3, 8)}
    found = measure(MLP(6, (8,), 3), torch.ones(5, 6), at(masks, {}))
    # First layer dense: forward and weight gradient. Last: half of the forward pass and half of the
    # input gradient, and all of the weight gradient.
    assert found.masked.tolist() == [2 * HIDDEN + LAST / 2 + LAST / 2 + LAST]
    assert found.paper.tolist() == [3 * (HIDDEN + LAST / 2)]


def test_a_mask_on_the_gradient_alone_spares_weight_gradients_alone() -> None:
    masks = {"layers.0.weight": half(8, 6), "layers.1.weight": half(3, 8)}
    found = measure(MLP(6, (8,), 3), torch.ones(5, 6), at({}, masks))
    assert found.masked.tolist() == [HIDDEN + LAST + (HIDDEN + LAST) / 2 + LAST]
    assert found.paper.tolist() == [3 * (HIDDEN + LAST)]


def test_a_stage_that_looks_costs_its_forward_pass() -> None:
    task = Task(MLP(6, (8,), 3))
    meter = Meter(task)

    def measure(work: State, batch: Batch, round: Round) -> State:
        return {**work, "loss": task.loss(work["params"], batch, train=False)[0]}

    stage = Stage("measure", measure, masks=at({"layers.1.weight": half(3, 8)}, None))
    work: State = {"params": task.initial}
    x = torch.ones(4, 6)
    per_sample = meter.step(stage, work, x, classes(x), now())
    one = torch.ones(1, dtype=torch.float64)
    found = meter.stage(stage, per_sample, one, shares(stage, work, 0), x).summed()
    assert found.dense.tolist() == [HIDDEN + LAST]
    assert found.masked.tolist() == found.paper.tolist() == [HIDDEN + LAST / 2]


def test_a_network_that_is_one_layer_is_counted_by_its_mask() -> None:
    """Logistic regression as a bare `nn.Linear` has no modules inside."""
    forward = 2 * 6 * 3
    masks = {"weight": half(3, 6)}
    found = measure(nn.Linear(6, 3), torch.ones(5, 6), at(masks, masks))
    assert found.dense.tolist() == [2 * forward]
    assert found.masked.tolist() == [forward]
    assert found.paper.tolist() == [3 * forward / 2]


def test_the_forward_pass_of_the_papers_network_is_14_69_million_multiplications() -> None:
    # Outputs × weights per output: 64·28² · 75, 64·10² · 1600, then the dense layers.
    expected = {
        "conv1.weight": 64 * 28 * 28 * 3 * 25,
        "conv2.weight": 64 * 10 * 10 * 64 * 25,
        "fc1.weight": 1600 * 384,
        "fc2.weight": 384 * 192,
        "fc3.weight": 192 * 10,
    }
    found = Meter(Task(CifarCNN())).forward(torch.zeros(1, 3, 32, 32))
    assert found == {name: 2 * count for name, count in expected.items()} | {"": 0}
    assert sum(expected.values()) == 14_693_248


def test_a_training_step_of_the_digits_network_by_hand() -> None:
    # 8 × 8 pixels, 16 channels of 9 weights; 4 × 4, 32 of 144; 128 → 64 → 10.
    layers = [64 * 16 * 9, 16 * 32 * 144, 128 * 64, 64 * 10]
    first, total = 2 * layers[0], 2 * sum(layers)
    found = measure(DigitsCNN(), torch.zeros(2, 1, 8, 8))
    assert found.dense.tolist() == [3 * total - first]
    assert found.paper.tolist() == [3 * total]


def test_samples_of_several_draws_are_counted_once_each() -> None:
    task = Task(MLP(6, (8,), 3))
    step = sgd_step(task, lr=0.1)

    def both(work: State, batches: tuple[Batch, Batch], round: Round) -> State:
        return step(step(work, batches[0], round), batches[1], round)

    x = torch.ones(3, 6)
    stage = Stage("both", both, draws=2)
    found = Meter(task).step(stage, {"params": task.initial}, x, classes(x), now())
    assert found == Step(2 * (HIDDEN + LAST) + LAST, HIDDEN + LAST, draws=(1.0, 1.0))


def test_masks_of_a_cohort_give_a_density_per_client() -> None:
    masks = {"w": torch.tensor([[[True, False]], [[True, True]], [[False, False]]])}
    stage = Stage("train", lambda work, batch, round: work, masks=at(masks, masks))
    found = shares(stage, {}, lead=1)
    assert found is not None
    forward, gradient, trains = found
    assert forward["w"].tolist() == gradient["w"].tolist() == [0.5, 1.0, 0.0]
    assert trains


def test_a_stage_without_masks_has_no_densities() -> None:
    assert shares(Stage("train", lambda work, batch, round: work), {}, lead=0) is None


def test_shares_of_batches_count_like_masks() -> None:
    """Where masks change by batch a stage gives mean shares instead of bools."""
    stage = Stage("train", lambda *_: {}, masks=at({"w": torch.tensor([0.25, 0.75])}, {}))
    found = shares(stage, {}, lead=0)
    assert found is not None
    assert float(found[0]["w"]) == 0.5


def test_every_count_is_measured_once() -> None:
    task = Task(MLP(6, (8,), 3))
    calls: list[int] = []

    def step(work: State, batch: Batch, round: Round) -> State:
        calls.append(len(batch.y))
        return work

    meter, stage = Meter(task), Stage("train", step)
    x = torch.ones(3, 6)
    for phase in ("first", "first", "second", "first"):
        meter.step(stage, {}, x, classes(x), now(phase))
    assert len(calls) == 2


def test_flops_add_up() -> None:
    one = Flops(*(torch.tensor([[float(way), 0.5]]) for way in range(4)))
    total = one + one + nothing(1)
    assert [column.tolist() for column in total.columns()] == [[[2.0 * w, 1.0]] for w in range(4)]
    assert [column.tolist() for column in total.summed().columns()] == [
        [2.0 * w + 1] for w in range(4)
    ]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_run_is_charged_for_the_samples_that_were_seen(engine: str) -> None:
    run: Callable[..., Any] = simulate
    method = METHOD_TABLE["fedavg"]
    made, progress = run(method, rounds=4, engine=engine)
    # 6 → 8 → 6 → 3: forward 2 · (48 + 48 + 18) = 228; a step 3 · 228 less the first layer's 96.
    seen = sum(
        SIZES[id] for number in range(4) for id in made.server.participation.cohort(number).tolist()
    )
    assert progress.costs["train"]["dense"] == (3 * 228 - 96) * seen * method.local_epochs
    assert progress.costs["train"]["masked"] == progress.costs["train"]["dense"]
    assert progress.costs["train"]["paper"] == 3 * 228 * seen * method.local_epochs


def test_what_runs_beside_the_network_costs_its_all_under_any_mask() -> None:
    task = Task(MLP(6, (8,), 3))
    inner = sgd_step(task, lr=0.1)

    def gated(work: State, batch: Batch, round: Round) -> State:
        # A gate of 6 → 5 beside the network: 60 operations per sample, forward only.
        scores = batch.x @ torch.ones(6, 5)
        return inner({**work, "scores": scores}, batch, round)

    masks = {"layers.0.weight": half(8, 6), "layers.1.weight": half(3, 8)}
    stage = Stage("gated", gated, masks=at(masks, masks))
    meter, work, x = Meter(task), {"params": task.initial}, torch.ones(3, 6)
    per_sample = meter.step(stage, work, x, classes(x), now())
    assert per_sample == Step(2 * (HIDDEN + LAST) + LAST + 60, HIDDEN + LAST)
    one = torch.ones(1, dtype=torch.float64)
    found = meter.stage(stage, per_sample, one, shares(stage, work, 0), x).summed()
    assert found.masked.tolist() == [HIDDEN + LAST + LAST / 2 + 60]
