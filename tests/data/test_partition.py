"""Partitions: every sample once, sizes as promised, and a clear end where that cannot be."""

import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.data.dataset import Dataset, from_arrays
from masquerade.data.partition.federation import partition, share
from masquerade.data.partition.names import describe
from masquerade.data.partition.papers import Groups, Outliers
from masquerade.data.partition.rules import IID, ByClient, Dirichlet, Pathological, Rule, Shards
from masquerade.errors import MasqueradeWarning
from tests.data.federations import classes_of, labeled, owned, sizes_of
from tests.messages import Golden
from tests.support import raises, warns

# Rules are tried on data that name clients, too.
pytestmark = pytest.mark.filterwarnings("ignore:W302")

RULES: list[Rule] = [
    IID(),
    Dirichlet(0.5, least=1),
    Dirichlet(0.5, cap=True, least=1),
    Pathological(),
    Pathological(balanced=False),
    Shards(),
    Groups(3, 1.0),
    Outliers(2, 1.0),
    ByClient(),
]
"""Rules that share out all samples."""


@settings(deadline=None, max_examples=50)
@given(
    rule=st.sampled_from(RULES),
    sizes=st.lists(st.integers(30, 60), min_size=2, max_size=5),
    clients=st.integers(3, 10),
    seed=st.integers(0, 2**40),
    split=st.sampled_from([(0.6, 0.2, 0.2), (0.75, 0.0, 0.25), (0.1, 0.1, 0.8)]),
)
def test_every_sample_is_used_once_and_nobody_is_left_empty(
    rule: Rule, sizes: list[int], clients: int, seed: int, split: tuple[float, float, float]
) -> None:
    federation = partition(labeled(sizes, clients), clients, rule, seed, split)
    used = torch.cat(owned(federation))
    assert used.sort().values.tolist() == list(range(sum(sizes)))
    assert federation.clients == clients
    assert federation.samples.min() >= 1
    assert min(len(part) for part in federation.test) >= (
        1 if sizes_of(federation).min() > 1 else 0
    )
    assert federation.has_validation == (split[1] > 0)


@pytest.mark.parametrize("rule", RULES, ids=describe)
def test_partition_depends_on_the_seed_alone(rule: Rule) -> None:
    dataset = labeled([40, 40, 40], clients=6)
    prints = [partition(dataset, 6, rule, seed).fingerprint() for seed in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = sizes_of(partition(labeled([50, 53]), 10, IID()))
    assert sizes.max() - sizes.min() == 1


def test_dirichlet_concentration_decides_how_mixed_clients_are() -> None:
    dataset = labeled([300] * 10)
    few, many = (partition(dataset, 10, Dirichlet(alpha)) for alpha in (0.05, 100.0))
    assert np.mean([len(classes) for classes in classes_of(few)]) < 6
    assert all(len(classes) == 10 for classes in classes_of(many))


def test_which_samples_of_a_class_a_client_gets_is_random() -> None:
    # With one class and equal shares, clients would hold runs of neighbors if nothing was shuffled.
    federation = partition(labeled([100]), 2, Dirichlet(1e9))
    assert all(mine.max() - mine.min() > 60 for mine in owned(federation))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), least=st.integers(0, 20), cap=st.booleans())
def test_dirichlet_keeps_its_least_size(seed: int, least: int, cap: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MasqueradeWarning)
        federation = partition(labeled([100] * 5), 8, Dirichlet(0.5, cap, least), seed)
    assert sizes_of(federation).min() >= least


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), alpha=st.sampled_from([1e-300, 1e-3, 0.3, 1e9]))
def test_capped_client_gets_no_class_after_its_share(seed: int, alpha: float) -> None:
    sizes, clients = [80, 20, 60, 40], 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MasqueradeWarning)
        federation = partition(labeled(sizes), clients, Dirichlet(alpha, cap=True, least=0), seed)
    for samples in owned(federation):
        held = torch.bincount(federation.y[samples], minlength=len(sizes))
        before = held.cumsum(0) - held
        assert (before[held > 0] < sum(sizes) / clients).all()


def test_impossible_dirichlet_ends_with_an_error_that_names_the_knobs() -> None:
    dataset = labeled([50, 50])
    for rule in (Dirichlet(0.01, least=9), Dirichlet(1.0, least=11)):
        with raises("E303", "`alpha`", "`clients`", "`least`"):
            partition(dataset, 10, rule)


def test_an_impossible_capped_dirichlet_names_only_the_knobs_it_has() -> None:
    with raises("E303", "dirichlet:ALPHA:capped") as caught:
        partition(labeled([50, 50]), 10, "dirichlet:0.3:capped")
    assert "LEAST" not in str(caught.value)
    assert "`least`" not in str(caught.value)


@settings(deadline=None, max_examples=50)
@given(
    classes=st.integers(2, 6),
    each=st.integers(1, 6),
    clients=st.integers(6, 15),
    seed=st.integers(0, 1000),
)
def test_balanced_pathological_client_has_exactly_its_number_of_classes(
    classes: int, each: int, clients: int, seed: int
) -> None:
    each = min(each, classes)
    federation = partition(labeled([60] * classes), clients, Pathological(each), seed)
    held = classes_of(federation)
    assert {len(mine) for mine in held} == {each}
    holders = [sum(label in mine for mine in held) for label in range(classes)]
    assert max(holders) - min(holders) <= 1


def test_balanced_pathological_clients_are_equal_in_size_and_mixed_in_classes() -> None:
    federation = partition(labeled([120] * 10), 30, Pathological())
    assert set(sizes_of(federation)) == {40}
    assert len({frozenset(classes) for classes in classes_of(federation)}) > 5


def test_unbalanced_pathological_has_blocks_whose_last_client_is_a_giant() -> None:
    # Each block of 20 clients shares two classes of 6000: 19 draw from [30, 300) of each class,
    # about 165 in the mean, so the last is left with about 6000 - 19 * 165 = 2865 of each.
    federation = partition(labeled([6000] * 10), 100, Pathological(balanced=False))
    for client, classes in enumerate(classes_of(federation)):
        block = client // 20
        assert classes == {2 * block, 2 * block + 1}
    sizes = sizes_of(federation)
    giants = [19, 39, 59, 79, 99]
    assert sorted(np.argsort(sizes)[-5:].tolist()) == giants
    others = np.delete(sizes, giants)
    assert others.min() >= 60
    assert others.max() < 600
    assert sizes[giants].sum() / 60_000 == pytest.approx(0.47, abs=0.02)


def test_shards_by_hand() -> None:
    # Sorted by class the six samples are 000111, and six shards of one sample each are three
    # clients with two samples; with one shard each, two clients have one class each.
    dataset = labeled([3, 3])
    assert sizes_of(partition(dataset, 3, Shards(2))).tolist() == [2, 2, 2]
    assert sorted(classes_of(partition(dataset, 2, Shards(1))), key=str) == [{0}, {1}]


@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(1, 4),
    clients=st.integers(2, 10),
    sizes=st.lists(st.integers(20, 60), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
)
def test_shards_are_equal_and_hold_neighboring_classes(
    count: int, clients: int, sizes: list[int], seed: int
) -> None:
    dataset = labeled(sizes)
    shards = clients * count
    federation = partition(dataset, clients, Shards(count), seed)
    held = sizes_of(federation)
    assert held.max() - held.min() <= count
    # A shard of n samples meets at most one class border if no class is smaller.
    if sum(sizes) / shards <= min(sizes):
        assert max(len(classes) for classes in classes_of(federation)) <= 2 * count


def test_two_shards_of_mnist_make_mostly_two_classes() -> None:
    # McMahan et al.: 200 shards of 300 for 100 clients; with 6000 of each class none is mixed.
    federation = partition(labeled([6000] * 10), 100, "shards:2")
    assert set(sizes_of(federation)) == {600}
    assert {len(classes) for classes in classes_of(federation)} == {1, 2}


def test_more_shards_than_samples_are_refused() -> None:
    with raises("E303", 5, 3, "`clients`", "shards"):
        partition(labeled([7, 7]), 5, Shards(3))


@pytest.mark.parametrize(
    ("rule", "clients"),
    [(Pathological(4), 5), (Pathological(1), 2), (Pathological(0), 5), (Pathological(3), 8)],
)
def test_pathological_that_does_not_fit_is_refused(rule: Pathological, clients: int) -> None:
    with raises("E303", "`classes_per_client`"):
        partition(labeled([20, 20, 7]), clients, rule)


def test_natural_clients_are_kept_and_need_not_be_counted() -> None:
    dataset = from_arrays(np.zeros((6, 1)), [0] * 6, ["b", "a", "b", "c", "a", "b"])
    federation = partition(dataset, None, ByClient())
    assert [sorted(mine.tolist()) for mine in owned(federation)] == [[1, 4], [0, 2, 5], [3]]


@pytest.mark.parametrize("rule", [Dirichlet(1.0), Pathological()], ids=describe)
def test_partition_by_class_is_refused_without_classes(rule: Rule) -> None:
    with raises("E202", "iid"):
        partition(from_arrays(np.zeros((20, 1)), np.linspace(0, 1, 20)), 2, rule)


def test_fewer_natural_clients_are_drawn_by_the_seed_and_taken_whole() -> None:
    named = labeled([50, 50], clients=20)
    owner = named.client
    assert owner is not None
    first, again, other = (owned(partition(named, 6, ByClient(), seed)) for seed in (1, 1, 2))
    for federation in (first, other):
        taken = [owner[samples].unique().tolist() for samples in federation]
        assert sorted(taken) == taken
        assert [len(samples) for samples in federation] == [5] * 6
    drawn = [torch.cat(each).sort().values.tolist() for each in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(("clients", "fraction"), [(None, 1.0), (3, 1.0), (2, 0.6)])
def test_names_stay_with_their_samples(clients: int | None, fraction: float) -> None:
    owner = [f"owner {7 * place % 5}" for place in range(25)]
    dataset = share(from_arrays(np.arange(25.0)[:, None], [0] * 25, owner), fraction, seed=2)
    federation = partition(dataset, clients, ByClient(), seed=4)
    assert len(federation.names) == federation.clients
    for name, samples in zip(federation.names, owned(federation), strict=True):
        assert {owner[int(value)] for value in dataset.x[samples, 0]} == {name}


def test_clients_that_are_mixed_have_no_names() -> None:
    dataset = from_arrays(np.zeros((20, 1)), [0] * 20, ["ada", "bea"] * 10)
    assert partition(dataset, 2, IID()).names == ()


def test_natural_clients_with_few_samples_can_be_left_out() -> None:
    dataset = from_arrays(np.zeros((7, 1)), [0] * 7, ["b", "a", "b", "c", "a", "b", "c"])
    assert [len(own) for own in owned(partition(dataset, None, ByClient(3)))] == [3]
    with raises("E202", "`clients`", 2, 1, 3):
        partition(dataset, 2, ByClient(3))


def test_natural_clients_are_refused_where_they_do_not_fit() -> None:
    named = labeled([10, 10], clients=4)
    with raises("E202", "`clients`", "5", "4"):
        partition(named, 5, ByClient())
    for clients in (None, 3):
        with raises("E202", "client"):
            partition(replace(named, client=None), clients, ByClient())


@pytest.mark.parametrize(
    ("count", "split", "expected"),
    [
        (1, (0.6, 0.2, 0.2), (1, 0, 0)),
        (1, (0.1, 0.1, 0.8), (1, 0, 0)),
        (2, (0.6, 0.2, 0.2), (1, 0, 1)),
        (3, (0.6, 0.2, 0.2), (1, 1, 1)),
        (3, (0.1, 0.1, 0.8), (1, 1, 1)),
        (3, (0.75, 0.0, 0.25), (2, 0, 1)),
        (3, (1.0, 0.0, 0.0), (3, 0, 0)),
        (5, (0.6, 0.2, 0.2), (3, 1, 1)),
        (90, (0.6, 0.2, 0.2), (54, 18, 18)),
        (100, (0.75, 0.0, 0.25), (75, 0, 25)),
    ],
)
def test_split_serves_training_then_test_then_validation(
    count: int, split: tuple[float, float, float], expected: tuple[int, int, int]
) -> None:
    federation = partition(labeled([count]), 1, IID(), split=split)
    parts = (federation.train[0], federation.validation[0], federation.test[0])
    assert tuple(map(len, parts)) == expected


def test_cutting_validation_from_the_training_share_leaves_the_test_samples() -> None:
    dataset = labeled([100, 100])
    whole = partition(dataset, 5, Dirichlet(1.0), split=(0.75, 0.0, 0.25))
    cut = partition(dataset, 5, Dirichlet(1.0), split=(0.6, 0.15, 0.25))
    assert all(torch.equal(a, b) for a, b in zip(whole.test, cut.test, strict=True))


@pytest.mark.parametrize("split", [(0.6, 0.2, 0.1), (1.2, -0.2, 0.0), (0.0, 0.5, 0.5)])
def test_split_that_is_no_split_is_refused(split: tuple[float, float, float]) -> None:
    with raises("E201", "`split`"):
        partition(labeled([10]), 2, IID(), split=split)


def test_numbers_that_make_no_sense_are_refused() -> None:
    dataset = labeled([10])
    with raises("E303", "11", "10"):
        partition(dataset, 11, IID())
    with raises("E201", "`clients`", "0"):
        partition(dataset, 0, IID())
    with raises("E201", "`seed`", "-1"):
        partition(dataset, 2, IID(), seed=-1)


def test_clients_without_training_data_are_named_in_a_warning() -> None:
    with warns("W301", 10) as caught:
        federation = partition(labeled([50, 50]), 10, Dirichlet(0.01, least=0))
    empty = [client for client in range(10) if federation.samples[client] == 0]
    assert str(empty)[1:-1] in str(caught[0].message)


def test_warning_about_many_empty_clients_stays_short(golden: Golden) -> None:
    with warns("W301", "...") as warned:
        partition(labeled([50, 50]), 50, Dirichlet(0.01, least=0))
    golden(warned[-1].message)


def test_fingerprint_changes_with_samples_and_with_splits() -> None:
    federation = partition(labeled([20, 20]), 2, IID())
    x = federation.x.clone()
    x[3] = 1
    swapped = (federation.validation, federation.test)
    changed = [
        replace(federation, names=("ada", "bea")),
        replace(federation, names=("bea", "ada")),
        replace(federation, x=x),
        replace(federation, y=1 - federation.y),
        replace(federation, validation=swapped[1], test=swapped[0]),
        replace(federation, train=federation.train[::-1]),
    ]
    prints = {one.fingerprint() for one in (federation, federation.to("cpu"), *changed)}
    assert len(prints) == 1 + len(changed)


def test_to_moves_every_tensor() -> None:
    moved = partition(labeled([20, 20]), 2, IID()).to("meta")
    tensors = (moved.x, moved.y, *moved.train, *moved.validation, *moved.test)
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("rule", [IID(), Dirichlet(1.0)], ids=describe)
def test_original_parts_that_are_kept_apart_stay_apart(rule: Rule) -> None:
    dataset = replace(labeled([100, 100]), train=torch.arange(200) % 4 > 0)
    assert dataset.train is not None
    federation = partition(dataset, 5, rule, split=(0.6, 0.2, 0.2), merge=False)
    assert not dataset.train[torch.cat(federation.test)].any()
    assert dataset.train[torch.cat(federation.train + federation.validation)].all()
    assert sorted(torch.cat(owned(federation)).tolist()) == list(range(200))
    for train, validation in zip(federation.train, federation.validation, strict=True):
        assert len(validation) == pytest.approx((len(train) + len(validation)) / 4, abs=1)
    merged = partition(dataset, 5, rule, split=(0.6, 0.2, 0.2))
    assert dataset.train[torch.cat(merged.test)].any()


def test_parts_that_are_not_known_cannot_be_kept_apart() -> None:
    with raises("E202", "`merge`"):
        partition(labeled([20]), 2, IID(), merge=False)


def test_a_share_of_the_samples_is_drawn_by_the_seed() -> None:
    dataset = replace(labeled([60, 40]), client=None, x=torch.arange(100.0)[:, None])
    first, again, other = (share(dataset, 0.1, seed) for seed in (1, 1, 2))
    assert (len(first.y), first.classes) == (10, 2)
    assert torch.equal(first.y, dataset.y[first.x[:, 0].long()])
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    assert share(dataset, 1.0) is dataset


def test_a_share_is_of_clients_where_the_data_name_them() -> None:
    dataset = replace(labeled([50, 50], clients=20), x=torch.arange(100.0)[:, None])
    taken = share(dataset, 0.15, seed=3)
    assert taken.client is not None
    assert dataset.client is not None
    assert taken.client.unique().tolist() == [0, 1, 2]
    before = dataset.client[taken.x[:, 0].long()]
    # Whoever is taken is taken whole, and clients keep their order.
    assert taken.client.bincount().tolist() == [5, 5, 5]
    assert torch.equal(before.argsort(stable=True), taken.client.argsort(stable=True))


def test_a_share_is_rounded_down() -> None:
    # pFedGate's tenth of EMNIST's 814,255 samples are 81,425; 0.29 x 100 is 28.999... in floats.
    for count, fraction, taken in ((814_255, 0.1, 81_425), (99, 0.5, 49), (100, 0.29, 29)):
        dataset = Dataset("some", torch.zeros(count), torch.zeros(count).long(), 1)
        assert len(share(dataset, fraction).y) == taken


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(fraction: float) -> None:
    with raises("E201", "`fraction`"):
        share(labeled([10]), fraction)


def test_a_thousand_clients_are_drawn_in_seconds() -> None:
    dataset = labeled([6000] * 10)
    # Of this process: others on the machine do not count.
    start = time.process_time()
    with warns("W301"):
        partition(dataset, 1000, Dirichlet(0.1, least=0))
    with raises("E303"):
        partition(dataset, 1000, Dirichlet(0.1, least=1))
    assert time.process_time() - start < 3


class Shared:
    """Gives all samples to everybody."""

    def assign(self, dataset, clients, rng):
        return [np.arange(len(dataset.y))] * clients


class OneOnly:
    """Forgets all clients but the first."""

    def assign(self, dataset, clients, rng):
        return [np.arange(len(dataset.y))]


@pytest.mark.parametrize("rule", [Shared(), OneOnly()])
def test_a_rule_of_ones_own_that_shares_samples_or_forgets_clients_is_refused(rule) -> None:
    dataset = from_arrays(np.zeros((20, 2), np.float32), np.arange(20) % 2)
    with raises("E303"):
        partition(dataset, 2, rule)


@pytest.mark.parametrize("by", [Dirichlet, 0.3, None])
def test_what_is_no_rule_is_refused(by) -> None:
    dataset = from_arrays(np.zeros((20, 2), np.float32), np.arange(20) % 2)
    with raises("E201"):
        partition(dataset, 2, by)
