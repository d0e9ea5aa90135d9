"""Group norm with a fixed number of channels per group, batch norm for batches of any size."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from masquerade.config.settings import Compute
from masquerade.core.task import Task
from masquerade.core.tree import Tree, take
from masquerade.methods.fedavg import FedAvg
from masquerade.models import MLP, ChannelBatchNorm, ChannelGroupNorm
from tests.support import advance, built, federation, raises


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_whole_norm_equals_torch_group_norm() -> None:
    x = drawn(5, 12, 3, 3)
    assert torch.equal(ChannelGroupNorm(12, per_group=3)(x), nn.GroupNorm(4, 12)(x))


def test_fewer_channels_make_fewer_groups_of_the_same_size() -> None:
    task = Task(ChannelGroupNorm(12, per_group=4))
    values = {"weight": drawn(12, seed=1), "bias": drawn(12, seed=2)}
    x = drawn(5, 12, 3, 3)
    whole, _ = task(values, x)
    part, _ = task({name: value[:8] for name, value in values.items()}, x[:, :8])
    assert torch.allclose(part, whole[:, :8], atol=1e-6)


def test_clients_batched_normalize_as_one_by_one() -> None:
    task = Task(ChannelGroupNorm(8))
    values = {"weight": drawn(3, 8, seed=1), "bias": drawn(3, 8, seed=2)}
    x = drawn(3, 5, 8, 2, 2)

    def output(own: Tree, inputs: Tensor) -> Tensor:
        return task(own, inputs)[0]

    alone = [output(take(values, client), x[client]) for client in range(3)]
    torch.testing.assert_close(torch.func.vmap(output)(values, x), torch.stack(alone))


def test_the_task_sees_a_norm() -> None:
    assert [layer.kind for layer in Task(ChannelGroupNorm(8)).layers] == ["norm"]


@pytest.mark.parametrize(("channels", "per_group"), [(6, 4), (4, 0)])
def test_channels_that_make_no_whole_groups_are_refused(channels: int, per_group: int) -> None:
    with raises("E202", channels):
        ChannelGroupNorm(channels, per_group)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2), (1, 3, 2, 2)])
def test_batch_norm_is_torch_batch_norm_where_there_is_more_than_one_value(
    shape: tuple[int, ...],
) -> None:
    plain = nn.BatchNorm1d(3) if len(shape) == 2 else nn.BatchNorm2d(3)
    ours, theirs = Task(ChannelBatchNorm(3)), Task(plain)
    x = drawn(*shape)
    for train in (True, False):
        output, buffers = ours(ours.initial, x, train=train)
        expected, others = theirs(theirs.initial, x, train=train)
        assert torch.equal(output, expected)
        assert all(torch.equal(value, others[name]) for name, value in buffers.items())


def test_a_single_value_is_normalized_by_the_running_statistics_and_leaves_them() -> None:
    task = Task(ChannelBatchNorm(2))
    values = {
        **task.initial,
        "weight": torch.tensor([2.0, 1.0]),
        "bias": torch.tensor([0.5, 0.0]),
        "running_mean": torch.tensor([1.0, -1.0]),
        "running_var": torch.tensor([4.0, 0.25]),
    }
    output, buffers = task(values, torch.tensor([[5.0, 0.0]]), train=True)
    # (5 − 1) / 2 · 2 + 0.5 = 4.5 and (0 + 1) / 0.5 = 2.
    torch.testing.assert_close(output, torch.tensor([[4.5, 2.0]]), atol=1e-4, rtol=0)
    assert all(torch.equal(buffers[name], values[name]) for name in buffers)
    # A task makes torch's own do the same, which refuses such a batch by itself.
    other = Task(nn.BatchNorm1d(2))
    found, kept = other({**values, "num_batches_tracked": torch.tensor(3)}, ONE_VALUE, train=True)
    assert torch.equal(found, output)
    assert int(kept["num_batches_tracked"]) == 3
    assert torch.equal(kept["running_mean"], values["running_mean"])
    with pytest.raises(ValueError, match="more than 1 value"):
        nn.BatchNorm1d(2)(ONE_VALUE)


ONE_VALUE = torch.tensor([[5.0, 0.0]])


def test_a_batch_norm_without_running_statistics_gives_its_bias_for_a_single_value() -> None:
    task = Task(nn.BatchNorm1d(2, track_running_stats=False))
    values = {**task.initial, "bias": torch.tensor([0.5, -1.0])}
    for _ in range(2):
        assert task(values, ONE_VALUE, train=True)[0].tolist() == [[0.5, -1.0]]
    # With two values it is torch's.
    pair = torch.cat([ONE_VALUE, -ONE_VALUE])
    plain = nn.BatchNorm1d(2, track_running_stats=False)
    plain.bias = nn.Parameter(values["bias"])
    assert torch.equal(task(values, pair, train=True)[0], plain(pair))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_last_batch_of_one_sample_ends_no_run(engine: str) -> None:
    """A user's BatchNorm, three clients of five samples, batches of four; and all of one."""
    network = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    five = tuple(torch.arange(place, place + 5) for place in (0, 5, 10))
    data = replace(federation(), train=five, validation=five, test=five)
    found = []
    for size, kind in ((4, "loop"), (1, engine)):
        made = built(
            *(FedAvg(local_epochs=2), Task(network.double()), data),
            rounds=2,
            batch_size=size,
            compute=Compute(engine=kind),
        )
        assert made.engine.name == kind
        state = made.begin()
        while state.number < 2:
            assert advance(made, state).refused == {}
        found.append(state.server["params"])
    assert all(bool(value.isfinite().all()) for each in found for value in each.values())
    # Batches of one sample leave the running statistics as they were.
    assert torch.equal(found[1]["1.running_mean"], torch.zeros(4, dtype=torch.float64))
    assert not torch.equal(found[0]["1.running_mean"], torch.zeros(4, dtype=torch.float64))


def test_an_unknown_norm_is_refused_with_the_known_ones() -> None:
    with raises("E202", "`bach`", "`batch`", "none", "group"):
        MLP(3, norm="bach")
