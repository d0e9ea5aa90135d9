"""Group norm with a fixed number of channels per group, batch norm for batches of any size."""

import pytest
import torch
from torch import Tensor, nn

from masquerade.core.task import Task
from masquerade.core.tree import Tree, take
from masquerade.models import MLP, ChannelBatchNorm, ChannelGroupNorm
from tests.support import raises


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
    # Torch's own refuses such a batch.
    other = Task(nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="more than 1 value"):
        other(other.initial, torch.tensor([[5.0, 0.0]]), train=True)


def test_an_unknown_norm_is_refused_with_the_known_ones() -> None:
    with raises("E202", "`bach`", "`batch`", "none", "group"):
        MLP(3, norm="bach")
