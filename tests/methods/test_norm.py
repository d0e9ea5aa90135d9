"""Norms that see valid samples only, held against torch's on the valid samples alone."""

import math

import pytest
import torch
from torch import Tensor, nn

from masquerade.core.random import normal
from masquerade.core.tree import Tree
from masquerade.methods.pfedgate import norm

REAL = torch.tensor([True, False, True, True, False])


def made(init: tuple[Tree, Tree]) -> Tree:
    """Return a norm's tree whose weight and bias are not trivial."""
    values, running = init
    moved = {
        name: value + normal(3, tuple(value.shape), value.dtype) / 4
        for name, value in values.items()
    }
    return {**moved, **running}


def batch_tree(features: int) -> Tree:
    return made(norm.batch_init("n", features, torch.float64))


def torch_norm(cls: type[nn.modules.batchnorm._BatchNorm], tree: Tree) -> nn.Module:
    module = cls(len(tree["n.weight"])).double()
    module.weight.data, module.bias.data = tree["n.weight"].clone(), tree["n.bias"].clone()
    return module


def padded(x: Tensor, waste: float) -> Tensor:
    """Put samples where they are real and waste where they are padding."""
    whole = torch.full((len(REAL), *x.shape[1:]), waste, dtype=x.dtype)
    whole[REAL] = x
    return whole


@pytest.mark.parametrize(
    ("shape", "cls"), [((3, 4), nn.BatchNorm1d), ((3, 4, 2, 5), nn.BatchNorm2d)]
)
def test_batch_norm_is_torchs_in_training_and_in_use(
    shape: tuple[int, ...], cls: type[nn.modules.batchnorm._BatchNorm]
) -> None:
    tree, x = batch_tree(4), normal(1, shape, torch.float64)
    module = torch_norm(cls, tree)
    for step in range(3):
        found, running = norm.batch_norm(tree, "n", x + step, None, train=True)
        torch.testing.assert_close(found, module(x + step))
        tree |= running
    torch.testing.assert_close(tree["n.mean"], module.running_mean)
    torch.testing.assert_close(tree["n.var"], module.running_var)
    torch.testing.assert_close(norm.batch_norm(tree, "n", x, None, False)[0], module.eval()(x))


@pytest.mark.parametrize("waste", [7.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["batch_norm", "switch_norm"])
def test_padding_changes_nothing(name: str, waste: float) -> None:
    function, x = getattr(norm, name), normal(1, (3, 4, 6), torch.float64)
    tree = made(norm.switch_init("n", x.shape[1:], torch.float64))
    alone, running = function(tree, "n", x, None, True)
    found, also = function(tree, "n", padded(x, waste), REAL, True)
    torch.testing.assert_close(found[REAL], alone)
    torch.testing.assert_close(also, running)


def test_the_plain_mean_would_have_read_the_padding() -> None:
    values = padded(torch.ones(3, 2, dtype=torch.float64), 7.0)
    assert norm.mean(values, REAL).tolist() == [1, 1]
    assert norm.mean(values, None).tolist() != [1, 1]
    assert norm.mean(values, torch.zeros(5, dtype=torch.bool)).tolist() == [0, 0]


@pytest.mark.parametrize("real", [None, torch.tensor([True]), torch.tensor([False])])
def test_a_single_value_is_normalized_by_running_statistics_and_leaves_them(
    real: Tensor | None,
) -> None:
    tree, x = batch_tree(4), normal(1, (1, 4), torch.float64)
    tree |= {"n.mean": tree["n.mean"] + 2, "n.var": tree["n.var"] * 9}
    found, running = norm.batch_norm(tree, "n", x, real, True)
    torch.testing.assert_close(found, norm.batch_norm(tree, "n", x, None, False)[0])
    assert all(torch.equal(tree[name], value) for name, value in running.items())


@pytest.mark.parametrize("branch", [0, 1, 2])
def test_a_switchable_norm_switched_to_one_branch_is_that_norm(branch: int) -> None:
    x = normal(1, (5, 4, 6), torch.float64)
    tree = made(norm.switch_init("n", x.shape[1:], torch.float64))
    switched = torch.full((3,), -math.inf, dtype=torch.float64)
    switched[branch] = 0
    tree |= {"n.mean_mix": switched, "n.var_mix": switched}
    batch = torch_norm(nn.BatchNorm1d, tree)
    layer, instance = nn.GroupNorm(1, 4).double(), nn.InstanceNorm1d(4, affine=True).double()
    for module in (layer, instance):
        module.weight.data, module.bias.data = tree["n.weight"], tree["n.bias"]
    found, _ = norm.switch_norm(tree, "n", x, None, True)
    torch.testing.assert_close(found, (batch, layer, instance)[branch](x))


def test_a_switchable_norm_mixes_means_and_variances_by_softmax() -> None:
    # One sample of two features, [0, 2], in use: running mean 0 and variance 1; layer mean 1 and
    # variance 1. With even shares the mean is 1/2, the variance 1: (0 − 1/2, 2 − 1/2).
    values, running = norm.switch_init("n", torch.Size([2]), torch.float64)
    assert len(values["n.mean_mix"]) == 2
    x = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    found, _ = norm.switch_norm({**values, **running}, "n", x, None, False)
    torch.testing.assert_close(found, torch.tensor([[-0.5, 1.5]]).double(), atol=1e-4, rtol=0)
