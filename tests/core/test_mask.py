"""Masks: `top` against a plain sort, budgets kept, sets that behave as sets."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size, Tensor, nn

from masquerade.core import mask
from masquerade.core.task import Task
from masquerade.core.tree import Tree
from masquerade.engine.vmapped import mapped as over_clients
from masquerade.models import CifarCNN, DigitsCNN

quick = settings(deadline=None, max_examples=50)
# Few different values make many ties; the infinities are what `prune` and `regrow` put in.
scores = st.lists(
    st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0, math.inf]), min_size=1, max_size=12
)


def best(values: list[float], count: int) -> list[bool]:
    """The same claim by sorting: largest first, among equals the lower index."""
    ranked = sorted(range(len(values)), key=lambda index: (-values[index], index))
    chosen = set(ranked[: max(0, count)])
    return [index in chosen for index in range(len(values))]


@given(scores, st.integers(-2, 14))
@quick
def test_top_is_a_stable_sort(values: list[float], count: int) -> None:
    tensor = torch.tensor(values)
    expected = best(values, count)
    assert mask.top(tensor, count).tolist() == expected
    assert mask.top(tensor, torch.tensor(count)).tolist() == expected


@given(st.lists(scores, min_size=1, max_size=4), st.data())
@quick
def test_clients_of_one_map_may_have_different_counts(
    rows: list[list[float]], data: st.DataObject
) -> None:
    width = min(map(len, rows))
    rows = [row[:width] for row in rows]
    counts = [data.draw(st.integers(0, width)) for _ in rows]
    mapped = over_clients(len(rows), mask.top, torch.tensor(rows), torch.tensor(counts))
    assert mapped.tolist() == [best(row, count) for row, count in zip(rows, counts, strict=True)]


def test_top_keeps_the_shape_and_reads_rows_first() -> None:
    # Of the three 5s the first two by index are kept, beside the 9.
    found = mask.top(torch.tensor([[5, 1], [9, 5], [5, 0]]), 3)
    assert found.tolist() == [[True, False], [True, True], [False, False]]


def test_top_of_a_scalar_is_all_or_nothing() -> None:
    assert mask.top(torch.tensor(1.0), 1)
    assert not mask.top(torch.tensor(1.0), 0)


def test_top_by_layer_counts_each_tensor_for_itself() -> None:
    tree = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([9.0, 8.0, 7.0]), "c": torch.ones(2)}
    found = mask.top_by_layer(tree, {"a": 1, "b": 2})
    assert {name: value.tolist() for name, value in found.items()} == {
        "a": [False, True],
        "b": [True, True, False],
    }


@given(st.lists(scores, min_size=1, max_size=3), st.integers(0, 20))
@quick
def test_top_overall_is_the_top_of_all_in_a_row(lists: list[list[float]], count: int) -> None:
    tree = {f"layer{index}": torch.tensor(values) for index, values in enumerate(lists)}
    found = mask.top_overall(tree, count)
    joined = [bit for name in tree for bit in found[name].tolist()]
    assert joined == best([value for values in lists for value in values], count)


@given(scores, st.data())
@quick
def test_pruning_drops_the_smallest_of_what_is_kept(
    values: list[float], data: st.DataObject
) -> None:
    values = [value for value in values if math.isfinite(value)] or [0.0]
    keep = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    count = data.draw(st.integers(0, sum(keep)))
    kept = [index for index, bit in enumerate(keep) if bit]
    # The smallest go first, and among equals the higher index.
    dropped = sorted(kept, key=lambda index: (values[index], -index))[:count]
    found = mask.prune(torch.tensor(keep), torch.tensor(values), count)
    assert torch.nonzero(found).flatten().tolist() == [i for i in kept if i not in dropped]


@given(scores, st.data())
@quick
def test_regrowing_adds_the_largest_of_what_is_not_kept(
    values: list[float], data: st.DataObject
) -> None:
    values = [value for value in values if math.isfinite(value)] or [0.0]
    keep = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    free = [index for index, bit in enumerate(keep) if not bit]
    count = data.draw(st.integers(0, len(free)))
    added = sorted(free, key=lambda index: (-values[index], index))[:count]
    found = mask.regrow(torch.tensor(keep), torch.tensor(values), count)
    assert torch.nonzero(found).flatten().tolist() == sorted(
        [*added, *(index for index, bit in enumerate(keep) if bit)]
    )


@given(st.lists(st.booleans(), min_size=2, max_size=12), st.data())
@quick
def test_prune_and_regrow_keep_the_density(bits: list[bool], data: st.DataObject) -> None:
    keep = torch.tensor(bits)
    count = data.draw(st.integers(0, min(sum(bits), len(bits) - sum(bits))))
    weights, slopes = (
        torch.tensor([data.draw(st.integers(0, 3)) for _ in bits], dtype=torch.float32)
        for _ in "ab"
    )
    # A 0-d tensor is what an annealed count arrives as.
    pruned = mask.prune(keep, weights, torch.tensor(count))
    grown = mask.regrow(pruned, slopes, torch.tensor(count))
    assert int(pruned.sum()) == sum(bits) - count
    assert int(grown.sum()) == sum(bits)
    assert not (pruned & ~keep).any()
    assert not (pruned & ~grown).any()


def test_pruned_positions_may_regrow() -> None:
    keep = torch.tensor([True, True, False])
    pruned = mask.prune(keep, torch.tensor([0.1, 5.0, 9.0]), 1)
    assert pruned.tolist() == [False, True, False]
    # The gradient speaks for position 0, which was pruned just now.
    assert mask.regrow(pruned, torch.tensor([3.0, 9.0, 2.0]), 1).tolist() == [True, True, False]


def test_asking_for_more_than_there_is_gives_all_or_nothing() -> None:
    keep = torch.tensor([True, False])
    assert mask.prune(keep, torch.ones(2), 5).tolist() == [False, False]
    assert mask.regrow(keep, torch.ones(2), 5).tolist() == [True, True]


SHAPES = {"a": torch.zeros(4), "b": torch.zeros(2, 2), "c": torch.zeros(3)}


@st.composite
def keeps(draw: st.DrawFn) -> Tree:
    """A mask of some of the names."""
    found: Tree = {}
    for name, like in SHAPES.items():
        if draw(st.booleans()):
            bits = [draw(st.booleans()) for _ in range(like.numel())]
            found[name] = torch.tensor(bits).reshape(like.shape)
    return found


def spelled(keep: Tree) -> set[tuple[str, int]]:
    """A mask as the set of what it keeps; a name absent is whole."""
    return {
        (name, index)
        for name, like in SHAPES.items()
        for index in range(like.numel())
        if name not in keep or keep[name].flatten()[index]
    }


@given(keeps(), keeps())
@quick
def test_masks_are_sets(left: Tree, right: Tree) -> None:
    one, two = spelled(left), spelled(right)
    assert spelled(mask.both(left, right)) == one & two
    assert spelled(mask.either(left, right)) == one | two
    assert spelled(mask.beyond(left, right, SHAPES)) == one - two
    assert spelled(mask.full(SHAPES)) == spelled({})


@given(keeps(), keeps(), keeps())
@quick
def test_set_algebra_holds(a: Tree, b: Tree, c: Tree) -> None:
    both, either = mask.both, mask.either
    assert spelled(both(a, either(b, c))) == spelled(either(both(a, b), both(a, c)))
    assert spelled(either(a, both(b, c))) == spelled(both(either(a, b), either(a, c)))
    assert spelled(both(a, b)) == spelled(both(b, a))
    assert spelled(either(a, a)) == spelled(both(a, a)) == spelled(a)
    apart = mask.beyond(a, b, SHAPES)
    assert spelled(either(both(a, b), apart)) == spelled(a)
    assert not spelled(both(apart, b))


@given(keeps())
@quick
def test_ones_count_what_is_kept_by_name(keep: Tree) -> None:
    counted = mask.ones(keep, SHAPES)
    kept = spelled(keep)
    assert counted == {name: sum(one == name for one, _ in kept) for name in SHAPES}


def test_overlap_is_intersection_over_union() -> None:
    left = {"a": torch.tensor([True, True, False]), "x": torch.tensor([True])}
    right = {"a": torch.tensor([True, False, True]), "y": torch.tensor([True])}
    # Of `a` one position is in both and three are in either; the other names are not in both.
    assert mask.overlap(left, right) == 1 / 3
    assert mask.overlap(left, left) == 1
    nothing = {"a": torch.zeros(3, dtype=torch.bool)}
    assert mask.overlap(nothing, nothing) == 1
    assert mask.overlap(left, nothing) == 0


def weights_of(model: nn.Module) -> dict[str, Size]:
    return {name: value.shape for name, value in model.named_parameters() if value.ndim > 1}


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [(0.5, [1.0, 0.202, 0.484, 1.0, 1.0]), (0.8, [0.911, 0.077, 0.183, 0.443, 1.0])],
)
def test_erk_gives_the_densities_of_the_cifar_network(
    sparsity: float, expected: list[float]
) -> None:
    found = mask.erk_densities(weights_of(CifarCNN()), 1 - sparsity)
    assert list(found.values()) == pytest.approx(expected, abs=1e-3)


def test_erk_of_two_layers_by_hand() -> None:
    shapes = {"wide": Size([10, 10]), "thin": Size([2, 5])}
    # Raw shares 20/100 and 7/10 hold 20 + 7 = 27 entries; a budget of 0.2 × 110 = 22 scales them
    # by 22/27: densities 0.163 and 0.570.
    found = mask.erk_densities(shapes, 0.2)
    assert found == pytest.approx({"wide": 0.2 * 22 / 27, "thin": 0.7 * 22 / 27})
    # A budget of 55 would make thin 1.43 dense: it gets its 10 and wide the 45 of 100 left.
    assert mask.erk_densities(shapes, 0.5) == pytest.approx({"wide": 0.45, "thin": 1.0})


sizes = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=5)


@given(sizes, st.floats(0.01, 1))
@quick
def test_layer_densities_spend_the_budget_and_never_exceed_one(
    lists: list[list[int]], density: float
) -> None:
    shapes = {f"layer{index}": Size(shape) for index, shape in enumerate(lists)}
    total = sum(shape.numel() for shape in shapes.values())
    for densities in (mask.erk_densities(shapes, density), mask.uniform_densities(shapes, density)):
        assert all(0 <= value <= 1 for value in densities.values())
        spent = sum(shapes[name].numel() * value for name, value in densities.items())
        assert spent == pytest.approx(density * total)
        counts = mask.counts(shapes, densities)
        assert density * total - len(shapes) - 1e-6 < sum(counts.values()) <= density * total + 1e-6


def test_erk_is_denser_where_layers_are_smaller() -> None:
    found = mask.erk_densities({"large": Size([50, 50]), "small": Size([10, 10])}, 0.1)
    assert found["small"] > found["large"]


@pytest.mark.parametrize(
    ("size", "density", "kept"),
    # In floating point 0.29 × 100 is 28.999999999999996.
    [(10, 0.3, 3), (10, 0.29, 2), (100, 0.29, 29), (100, 0.07, 7), (10, 0.0, 0), (10, 1.0, 10)],
)
def test_counts_are_rounded_down_but_not_by_rounding_errors(
    size: int, density: float, kept: int
) -> None:
    assert mask.counts({"w": Size([2, size // 2])}, {"w": density}) == {"w": kept}


WEIGHTS = ["conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"]
BIASES = ["conv1.bias", "conv2.bias", "fc1.bias", "fc2.bias"]


@pytest.mark.parametrize("norm", ["none", "group", "batch"])
def test_a_sparsity_leaves_out_what_stays_dense(norm: str) -> None:
    layers = Task(DigitsCNN(norm=norm)).layers

    def names(first_dense: bool, biases_dense: bool) -> set[str]:
        return set(mask.masked_names(layers, first_dense, biases_dense))

    assert names(False, True) == set(WEIGHTS)
    assert names(True, True) == set(WEIGHTS[1:])
    assert names(False, False) == {*WEIGHTS, *BIASES}
    # "First layer dense" speaks of its weight; its bias follows the choice for biases.
    assert names(True, False) == {*WEIGHTS[1:], *BIASES}


def test_the_first_layer_is_the_first_that_is_no_norm() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2, bias=False))
    assert mask.masked_names(Task(model).layers, True, True) == ["2.weight"]


def test_full_keeps_every_entry_as_bools() -> None:
    found = mask.full({"w": torch.zeros(2, 3), "s": torch.tensor(0)})
    assert all(value.dtype is torch.bool and value.all() for value in found.values())
    assert found["w"].shape == (2, 3)


def test_prune_maps_over_clients_with_counts_of_their_own() -> None:
    keep = torch.tensor([[True, True, True, False]] * 2)
    values = torch.tensor([[3.0, 1.0, 2.0, 9.0]] * 2)
    mapped: Tensor = over_clients(2, mask.prune, keep, values, torch.tensor([1, 2]))
    assert mapped.tolist() == [[True, False, True, False], [True, False, False, False]]


@pytest.mark.parametrize(
    ("share", "target", "left"), [(0.25, 0.0, 6), (0.3, 0.0, 5), (0.5, 0.7, 7), (0.5, 0.9, 8)]
)
def test_thinning_takes_a_share_of_the_survivors_down_to_the_target(
    share: float, target: float, left: int
) -> None:
    # Eight of ten are kept. ⌈0.25 · 8⌉ = 2 go; ⌈0.3 · 8⌉ = 3; four would leave fewer than the
    # target of seven; and where the target is above what is left, nothing comes back.
    keep = {"w": torch.arange(10) < 8}
    found = mask.shrink(keep, {"w": torch.arange(10.0)}, 1 - share, least=target)
    assert torch.equal(found["w"], (torch.arange(10) >= 8 - left) & keep["w"])


def test_distance_is_the_mean_over_tensors_of_the_share_that_differs() -> None:
    one = {"a": torch.tensor([True, True]), "b": torch.tensor([True, False, True, False])}
    two = {"a": torch.tensor([True, False]), "b": torch.tensor([True, False, True, True])}
    assert float(mask.distance(one, two)) == (1 / 2 + 1 / 4) / 2
    assert float(mask.distance(one, one)) == 0


def test_annealing_falls_by_cosine_and_stays_at_zero() -> None:
    found = [float(mask.annealed(0.4, torch.tensor(at))) for at in (0.0, 0.5, 1.0, 1.5)]
    assert found == pytest.approx([0.4, 0.2, 0, 0], abs=1e-7)


def test_readjusting_clears_the_momentum_of_what_went() -> None:
    work = {
        "params": {"w": torch.tensor([3.0, 1.0, 0.0])},
        "keep": {"w": torch.tensor([True, True, False])},
        "gradient": {"params": {"w": torch.tensor([0.0, 0.0, 1.0])}},
        "momentum": {"params": {"w": torch.ones(3)}, "other": {"w": torch.ones(3)}},
    }
    new = mask.readjust(work, torch.tensor(0.5))
    assert new["keep"]["w"].tolist() == [True, False, True]
    assert new["momentum"]["params"]["w"].tolist() == [1, 0, 1]
    assert new["momentum"]["other"] is work["momentum"]["other"]


@given(scores, st.floats(0, 1), st.booleans(), st.data())
@quick
def test_shrinking_keeps_the_largest_of_what_was_kept(
    values: list[float], share: float, of_all: bool, data: st.DataObject
) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    size, kept = len(values), sum(keep)
    count = min(kept, math.floor((size if of_all else kept) * share + 1e-9))
    held = torch.tensor(keep)
    left = mask.shrink({"w": held}, {"w": torch.tensor(values)}, share, of_all=of_all)["w"]
    inside = [value for value, mine in zip(values, keep, strict=True) if mine]
    # Scores of minus infinity may be dropped with what was not kept.
    finite = sum(value > -math.inf for value in sorted(inside, reverse=True)[:count])
    assert finite <= int(left.sum()) <= count
    assert not bool((left & ~held).any())
    dropped = [
        v for v, mine, stays in zip(values, keep, left.tolist(), strict=True) if mine > stays
    ]
    stayed = [value for value, stays in zip(values, left.tolist(), strict=True) if stays]
    assert max(dropped, default=-math.inf) <= min(stayed, default=math.inf)


def test_tensors_compete_only_where_told() -> None:
    keep = mask.full({"a": torch.zeros(4), "b": torch.zeros(4)})
    values = {"a": torch.tensor([9.0, 8, 7, 6]), "b": torch.tensor([1.0, 2, 3, 4])}
    apart = mask.shrink(keep, values, 0.5)
    together = mask.shrink(keep, values, 0.5, overall=True)
    assert {name: int(one.sum()) for name, one in apart.items()} == {"a": 2, "b": 2}
    assert {name: int(one.sum()) for name, one in together.items()} == {"a": 4, "b": 0}


def test_shrinking_stops_at_the_least_share() -> None:
    keep, values = {"w": torch.ones(8, dtype=torch.bool)}, {"w": torch.arange(8.0)}
    for expected in (4, 3, 3):
        keep = mask.shrink(keep, values, 0.5, least=0.3)
        assert int(keep["w"].sum()) == expected
