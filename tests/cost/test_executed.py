"""Operations by layer, and as the engines run them: padded, dense under masks, or on a slice."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from masquerade.core import Round, Stage, State, Task, sgd_step
from masquerade.cost.flops import Flops, Meter, shares
from masquerade.data.loader import StackedBatches
from masquerade.engine.base import Job
from masquerade.engine.replay.cuda_graphs import CudaGraphs
from masquerade.engine.replay.recorded import Recordings
from masquerade.methods import FedRep, HeteroFL
from masquerade.simulation.state import WAYS
from tests.support import METHOD_TABLE, SIZES, final, simulate

run: Callable[..., Any] = simulate


class Small(nn.Module):
    """Two convolutions and a linear layer for 6 × 6 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.second = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.head = nn.Linear(6 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x).relu()).relu()
        output: Tensor = self.head(hidden.flatten(1))
        return output


# Outputs × weights of each × 2: first 4 × 4 × 4 places of 9 weights, second 6 × 4 × 4 of 36, head 5
# of 96.
FIRST, SECOND, HEAD = 2 * 64 * 9, 2 * 96 * 36, 2 * 5 * 96


def now() -> Round:
    one = torch.tensor(1.0, dtype=torch.float64)
    return Round("train", "train", one, one, one)


def stage_of(keep: dict[str, Tensor] | None) -> Flops:
    """What one sample of a plain SGD stage costs."""
    task = Task(Small())
    x, y = torch.zeros(1, 1, 6, 6), torch.zeros(1, dtype=torch.int64)
    masks = None if keep is None else (lambda work: (keep, keep))
    stage = Stage("train", sgd_step(task, lr=0.1), masks=masks)
    work: State = {"params": task.initial}
    meter, one = Meter(task), torch.ones(1, dtype=torch.float64)
    per_sample = meter.step(stage, work, x, y, now())
    return meter.stage(stage, per_sample, one, shares(stage, work, lead=0), x)


def test_layers_of_a_small_cnn_by_hand() -> None:
    found = stage_of(None)
    # Forward and weight gradient of each; input gradients of all but the first.
    expected = [2 * FIRST, 3 * SECOND, 3 * HEAD, 0]
    assert found.dense.tolist() == found.masked.tolist() == found.executed.tolist() == [expected]
    assert found.paper.tolist() == [[3 * FIRST, 3 * SECOND, 3 * HEAD, 0]]


def test_masked_layers_of_a_small_cnn_by_hand() -> None:
    # Three of four weights of the second layer go, and half of the head's.
    keep = {
        "second.weight": torch.arange(6 * 36).reshape(6, 4, 3, 3) % 4 == 0,
        "head.weight": torch.arange(5 * 96).reshape(5, 96) % 2 == 0,
    }
    found = stage_of(keep)
    assert found.dense.tolist() == found.executed.tolist() == [[2 * FIRST, 3 * SECOND, 3 * HEAD, 0]]
    assert found.masked.tolist() == [[2 * FIRST, 3 * SECOND / 4, 3 * HEAD / 2, 0]]


def test_what_is_frozen_costs_its_forward_pass_alone() -> None:
    """Measured, not assumed: FedRep trains a head above a body that stands still."""
    made, progress = run(FedRep(local_epochs=1, head_epochs=1), rounds=1, participation=1.0)
    samples = sum(SIZES)
    # Forward 96, 96, 36. The head's epoch: all forward, and the head's weight gradient. The body's:
    # all forward, weight gradients of the body, input gradients down to the second layer.
    head = {"0": 96, "2": 96, "4": 36 + 36}
    body = {"0": 96 + 96, "2": 96 + 96 + 96, "4": 36 + 36}
    layers = final(made, progress)[0][0].costs.layers["train"]
    dense = {name: counts.dense * len(SIZES) / samples for name, counts in layers.items()}
    assert dense == pytest.approx({n: head[n] + body[n] for n in head} | {"beside": 0})


@pytest.mark.parametrize("name", METHOD_TABLE)
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_no_engine_runs_less_than_the_masks_ask_for(name: str, engine: str) -> None:
    _, progress = run(METHOD_TABLE[name], rounds=2, engine=engine)
    assert progress.costs["train"]["dense"] > 0
    for costs in progress.costs.values():
        assert costs["masked"] <= costs["dense"] * (1 + 1e-9)
        assert costs["masked"] <= costs["executed"] * (1 + 1e-9)
        if engine == "batched" or name not in ("heterofl", "subfedavg_hy"):
            assert costs["executed"] >= costs["dense"] * (1 - 1e-9)
    # What stands by phase and layer adds up to the whole.
    for way in WAYS:
        parts = [c[way] for layers in progress.layers.values() for c in layers.values()]
        whole = sum(costs[way] for costs in progress.costs.values())
        assert sum(parts) == pytest.approx(whole, rel=1e-9)


def test_phases_of_dmpfl_stand_apart() -> None:
    made, progress = run(METHOD_TABLE["dmpfl"], rounds=8)
    assert set(progress.layers) == {"dual", "global", "personal"}
    summary = final(made, progress)[0][0]
    for way in WAYS:
        layers = [count for each in summary.costs.layers.values() for count in each.values()]
        total = getattr(summary.costs.train.flops, way)
        assert sum(getattr(count, way) for count in layers) == pytest.approx(total)


def test_batching_without_padding_runs_what_is_dense() -> None:
    """One client of 12 samples alone in its cohort, in batches of 4."""
    made, _ = run(METHOD_TABLE["dmpfl"], rounds=1, engine="batched")
    flops = made.engine.work(_job(made, [1])).flops.summed()
    assert SIZES[1] % 4 == 0
    assert flops.executed.tolist() == pytest.approx(flops.dense.tolist())
    assert flops.masked < flops.dense


def _job(made: Any, ids: list[int], width: int | None = None) -> Job:
    """The first round of some clients."""
    if width is not None:
        made.engine.clients_per_chunk = width
    begun, chosen = made.begin(), torch.tensor(ids)
    known = begun.session.take(chosen)
    round = made.context.round("train", made.server.method.schedule(0, 1), 0)
    rows, clients = begun.rows.take(chosen), begun.clients.take(chosen)
    return Job(begun.server, rows, clients, known, chosen, round, 0)


def test_padding_is_counted_sample_by_sample() -> None:
    made, _ = run(METHOD_TABLE["fedavg"], rounds=1, engine="batched")
    # Clients of 7, 12 and 3 samples, two at a time, the larger ones first, in batches of 4: two and
    # three steps an epoch. Alone, the third has one batch of its 3, and no padding. A sample costs
    # 588 operations, three epochs of them.
    flops = made.engine.work(_job(made, [0, 1, 2], width=2)).flops.summed()
    assert flops.dense.tolist() == [588 * 3 * count for count in (7, 12, 3)]
    assert flops.executed.tolist() == [588 * 3 * count for count in (8, 12, 3)]


def test_what_graphs_run_for_nobody_is_shared() -> None:
    """Graphs have widths of 4, 2 and 1: beside three clients of 5 steps, one of 2 runs on idly."""
    made, _ = run(METHOD_TABLE["fedavg"], rounds=1, engine="batched")
    rows = torch.zeros(5, 4, 10 + 2, dtype=torch.int64)
    pack = StackedBatches(rows, rows[..., 0], [5, 5, 5, 2], 1)
    with_graphs = replace(made.engine, steps=CudaGraphs())
    assert made.engine.samples_run(pack, 4).tolist() == [50, 50, 50, 20]
    assert with_graphs.samples_run(pack, 4).tolist() == [57.5, 57.5, 57.5, 27.5]


@pytest.mark.parametrize("often", [0, math.inf], ids=["recorded", "eager"])
@pytest.mark.parametrize(("chosen", "width"), [([0, 1, 2], 2), ([0, 4, 5], 3)])
def test_what_the_batched_engine_runs_is_what_torch_counts(
    chosen: list[int], width: int, often: float
) -> None:
    """The whole engine under torch's own counter, which sees every operation that really runs."""
    made, _ = run(METHOD_TABLE["fedavg"], rounds=1, engine="batched")
    job = _job(made, chosen, width)
    made.engine.steps = Recordings(often=often)
    for _ in range(3):
        made.engine.work(job)  # What is measured, recorded or compared once is so before.
    with FlopCounterMode(display=False) as counter:
        flops = made.engine.work(job).flops
    assert float(flops.executed.sum()) == counter.get_total_flops()


@pytest.mark.parametrize("name", METHOD_TABLE)
def test_what_the_loop_runs_is_what_torch_counts(name: str) -> None:
    made, _ = run(METHOD_TABLE[name], rounds=1)
    job = _job(made, [0, 1, 2])
    made.engine.work(job)
    with FlopCounterMode(display=False) as counter:
        flops = made.engine.work(job).flops
    assert float(flops.executed.sum()) == pytest.approx(counter.get_total_flops())


def test_a_narrow_client_runs_the_narrow_network() -> None:
    # Half of 6 → 8 → 6 → 3 is 6 → 4 → 3 → 3: forward 2 · (24 + 12 + 9) = 90 operations, a step
    # 3 · 90 less the first layer's 48.
    method = HeteroFL(local_epochs=1, levels=(0.5,), mask_labels=False)
    loop = run(method, rounds=1, participation=1.0)[1].costs["train"]
    whole = run(method, rounds=1, participation=1.0, engine="batched")[1].costs["train"]
    samples = sum(SIZES)
    assert loop["executed"] == loop["masked"] == (3 * 90 - 48) * samples
    assert loop["dense"] == whole["dense"] == 588 * samples
    # In batches of 4, the last of each client padded.
    assert whole["executed"] == 588 * (8 + 12 + 4 + 12 + 16 + 8)
