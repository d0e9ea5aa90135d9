"""Sliced = masked: a narrower network computes what the mask leaves of the wide one."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import slicing, tree
from masquerade.core.round import Batch
from masquerade.core.sgd import gradient
from masquerade.core.task import Task
from masquerade.core.tree import Tree
from masquerade.models import MLP, ChannelGroupNorm, CifarCNN, DigitsCNN
from tests.support import raises

Case = tuple[Task, slicing.Cut, Tree, Batch]

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: MLP(12, hidden=(9, 7), classes=4), (3, 4)),
    "logistic": (lambda: MLP(12, hidden=(), classes=4), (3, 4)),
    "digits": (DigitsCNN, DigitsCNN.shape),
    "digits_norm": (lambda: DigitsCNN(norm="group"), DigitsCNN.shape),
    "cifar": (CifarCNN, CifarCNN.shape),
}
SHARES = (0.25, 0.5, 1.0)


def drawn(shape: torch.Size | tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[(name, share) for name in NETWORKS for share in SHARES], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    name, share = request.param
    make, shape = NETWORKS[name]
    task = Task(make())
    # Norms start as the identity; noise makes every parameter matter.
    fresh = task.fresh(3)
    params = {key: value + 0.05 * drawn(value.shape, 4) for key, value in fresh.items()}
    batch = Batch(drawn((4, *shape), 5), torch.arange(4), None, torch.tensor(0))
    return task, slicing.widths(task, share), params, batch


def masked(cut: slicing.Cut, params: Tree) -> Tree:
    return tree.where(slicing.keep(cut, params), params, tree.zeros(params))


def slope(task: Task, params: Tree, batch: Batch) -> Tree:
    grads, _, _ = gradient(lambda trees: task.loss(trees["params"], batch), {"params": params})
    return grads["params"]


def assert_close(left: Tree, right: Tree) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=1e-6, rtol=1e-5)


def test_sliced_outputs_equal_masked_ones(case: Case) -> None:
    task, cut, params, batch = case
    small, _ = task(slicing.shrink(params, cut), batch.x)
    wide, _ = task(masked(cut, params), batch.x)
    torch.testing.assert_close(small, wide, atol=1e-6, rtol=0)


def test_sliced_gradients_equal_masked_ones(case: Case) -> None:
    task, cut, params, batch = case
    small = slope(task, slicing.shrink(params, cut), batch)
    wide = slope(task, masked(cut, params), batch)
    assert_close(
        slicing.grow(small, cut, tree.zeros(params)), tree.only(slicing.keep(cut, wide), wide)
    )


def test_sliced_step_grown_back_equals_masked_step(case: Case) -> None:
    task, cut, params, batch = case

    def step(values: Tree) -> Tree:
        return tree.each(lambda value, grad: value - 0.1 * grad, values, slope(task, values, batch))

    kept = slicing.keep(cut, params)
    wide = tree.where(kept, step(masked(cut, params)), params)
    grown = slicing.grow(step(slicing.shrink(params, cut)), cut, params)
    assert_close(grown, wide)
    for name, inside in kept.items():
        assert torch.equal(grown[name][~inside], params[name][~inside])


def test_growing_back_restores_every_bit_and_touches_no_input(case: Case) -> None:
    _, cut, params, _ = case
    before = {name: value.clone() for name, value in params.items()}
    zeroed = tree.zeros(params)
    grown = slicing.grow(slicing.shrink(params, cut), cut, params)
    alone = slicing.grow(slicing.shrink(params, cut), cut, zeroed)
    for name, value in before.items():
        assert torch.equal(grown[name], value)
        assert torch.equal(alone[name], masked(cut, params)[name])
        assert torch.equal(params[name], value)
        assert not zeroed[name].any()


def test_small_tensors_hold_just_what_is_kept(case: Case) -> None:
    _, cut, params, _ = case
    small, kept = slicing.shrink(params, cut), slicing.keep(cut, params)
    assert kept.keys() == cut.keys()
    for name, value in params.items():
        expected = value[kept[name]] if name in kept else value.flatten()
        assert torch.equal(small[name].flatten(), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_share_one_is_the_identity(name: str) -> None:
    task = Task(NETWORKS[name][0]())
    cut = slicing.widths(task, 1.0)
    small = slicing.shrink(task.initial, cut)
    assert all(torch.equal(small[key], value) for key, value in task.initial.items())
    assert all(mask.all() for mask in slicing.keep(cut, task.initial).values())


@pytest.mark.parametrize("name", NETWORKS)
def test_cuts_of_all_shares_name_the_same_tensors_and_axes(name: str) -> None:
    task = Task(NETWORKS[name][0]())
    forms = [
        {key: tuple(axes) for key, axes in slicing.widths(task, share).items()} for share in SHARES
    ]
    assert forms[0] == forms[1] == forms[2]


def test_hidden_layers_shrink_and_the_ends_stay_whole() -> None:
    task = Task(CifarCNN())
    small = slicing.shrink(task.initial, slicing.widths(task, 0.3))
    # ⌈0.3 × 64⌉ = 20 channels of 25 features, ⌈0.3 × 384⌉ = 116, ⌈0.3 × 192⌉ = 58.
    assert {name: tuple(value.shape) for name, value in small.items()} == {
        "conv1.weight": (20, 3, 5, 5),
        "conv1.bias": (20,),
        "conv2.weight": (20, 20, 5, 5),
        "conv2.bias": (20,),
        "fc1.weight": (116, 500),
        "fc1.bias": (116,),
        "fc2.weight": (58, 116),
        "fc2.bias": (58,),
        "fc3.weight": (10, 58),
        "fc3.bias": (10,),
    }


@pytest.mark.parametrize(("share", "channels"), [(0.01, 4), (0.25, 4), (0.3, 8), (0.9, 16)])
def test_norms_keep_whole_groups(share: float, channels: int) -> None:
    cut = slicing.widths(Task(DigitsCNN(norm="group")), share)
    for name in ("conv1.weight", "conv1.bias", "norm1.weight", "norm1.bias"):
        assert cut[name][0].tolist() == list(range(channels))


def test_share_of_a_hundred_outputs_is_a_percentage() -> None:
    task = Task(MLP(2, hidden=(100,), classes=2))
    percents = range(1, 101)
    cuts = [slicing.widths(task, percent / 100) for percent in percents]
    assert [len(cut["layers.0.bias"][0]) for cut in cuts] == list(percents)


def test_any_ascending_indices_can_be_kept() -> None:
    value = torch.arange(12.0).reshape(3, 4)
    cut = {"w": {0: torch.tensor([0, 2]), 1: torch.tensor([1, 3])}}
    small = slicing.shrink({"w": value, "b": value}, cut)
    assert small["w"].tolist() == [[1, 3], [9, 11]]
    grown = slicing.grow({"w": -small["w"], "b": small["b"]}, cut, {"w": value, "b": value})
    assert grown["w"].tolist() == [[0, -1, 2, -3], [4, 5, 6, 7], [8, -9, 10, -11]]
    assert torch.equal(grown["b"], value)


def test_a_tree_may_hold_some_of_the_tensors() -> None:
    task = Task(MLP(4, hidden=(4,), classes=2))
    cut = slicing.widths(task, 0.5)
    some = {"layers.0.bias": torch.ones(4)}
    assert slicing.keep(cut, some)["layers.0.bias"].tolist() == [True, True, False, False]
    grown = slicing.grow({"layers.0.bias": torch.zeros(2)}, cut, task.initial)
    assert grown["layers.0.bias"][:2].tolist() == [0, 0]
    assert grown["layers.0.weight"] is task.initial["layers.0.weight"]


@pytest.mark.parametrize("share", [0, -0.5, 1.01, math.nan])
def test_share_outside_its_range_is_refused(share: float) -> None:
    with raises("E201", "`share`"):
        slicing.widths(Task(MLP(2)), share)


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3)), "1"),
        (nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4, elementwise_affine=False)), "1"),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Linear(4, 2)), "1"),
        (nn.Sequential(nn.Linear(2, 4), nn.Linear(8, 2)), "1"),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(8, 2, 3)), "1"),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.Linear(10, 2)), "1"),
        (nn.Sequential(nn.Linear(2, 4), ChannelGroupNorm(8), nn.Linear(4, 2)), "1"),
        (nn.PReLU(), "the network itself"),
    ],
)
def test_network_whose_slice_would_differ_is_refused(network: nn.Module, layer: str) -> None:
    with raises("E202", f"`{layer}`"):
        slicing.widths(Task(network), 0.5)


def kept_units(task: Task, seed: int) -> Tree:
    """Draw for every unit of every hidden layer whether it is kept, some of each."""
    kept = {}
    for name, value in slicing.units(task, task.initial).items():
        kept[name] = drawn((len(value),), seed) > 0
        kept[name][:2] = torch.tensor([True, False])
    return kept


@pytest.mark.parametrize("name", ["mlp", "digits", "digits_norm", "cifar"])
def test_any_units_can_be_kept_and_sliced_equals_masked(name: str) -> None:
    make, shape = NETWORKS[name]
    task = Task(make())
    kept = slicing.expand(task, kept_units(task, 3))
    cut = slicing.cut_of(kept)
    # The mask is the cut and nothing less: rows and columns fit together.
    back = slicing.keep(cut, task.initial)
    assert kept.keys() == back.keys()
    assert all(torch.equal(kept[key], back[key]) for key in kept)
    x = drawn((4, *shape), 5)
    small, _ = task(slicing.shrink(task.initial, cut), x)
    torch.testing.assert_close(small, task(masked(cut, task.initial), x)[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_units_are_all_of_what_widths_cut(name: str) -> None:
    task = Task(NETWORKS[name][0]())
    whole = {
        key: torch.ones(len(rows)).bool() for key, rows in slicing.units(task, task.initial).items()
    }
    kept = slicing.expand(task, whole)
    assert kept.keys() == slicing.widths(task, 0.5).keys()
    assert all(mask.all() for mask in kept.values())


def test_units_are_spread_for_many_clients_at_once() -> None:
    task = Task(DigitsCNN(norm="group"))
    clients = [kept_units(task, seed) for seed in (3, 4)]
    spread = torch.func.vmap(lambda kept: slicing.expand(task, kept))(tree.stack(clients))
    for place, kept in enumerate(clients):
        alone = slicing.expand(task, kept)
        assert all(torch.equal(spread[name][place], alone[name]) for name in alone)


def test_counting_needs_no_slice(case: Case) -> None:
    _, cut, params, _ = case
    assert slicing.count(cut, params) == tree.size(slicing.shrink(params, cut))
