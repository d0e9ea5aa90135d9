"""Group norm with a fixed number of channels per group."""

import pytest
import torch
from torch import Tensor, nn

from masquerade.core.task import Task
from masquerade.core.tree import Tree, take
from masquerade.errors import MasqueradeError
from masquerade.models import ChannelGroupNorm


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
    with pytest.raises(MasqueradeError, match=f"E202 {channels} channels"):
        ChannelGroupNorm(channels, per_group)
