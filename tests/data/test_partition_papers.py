"""The special partitions of the papers: counts as promised, groups alike, outliers apart."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.data.partition.federation import Federation, partition
from masquerade.data.partition.papers import Groups, Lottery, Outliers, PerClass
from tests.data.federations import classes_of, labeled, owned
from tests.support import raises


def counts_of(federation: Federation, parts: tuple[torch.Tensor, ...]) -> np.ndarray:
    """Count some samples [clients, classes]."""
    classes = federation.classes or 0
    return np.array([federation.y[own].bincount(minlength=classes).tolist() for own in parts])


def assert_distinct(held: list[set[int]], count: int) -> None:
    assert [len(classes) for classes in held] == [count] * len(held)


def test_clients_of_fedselect_have_so_many_samples_of_each_of_their_classes() -> None:
    dataset = labeled([300] * 10)
    for clients, count in ((10, 2), (10, 4), (3, 2)):
        made = partition(dataset, clients, PerClass(count, 20, 40, 5), seed=3)
        for split, each in ((made.train, 20), (made.test, 40), (made.validation, 5)):
            for samples in split:
                sizes = made.y[samples].unique(return_counts=True)[1]
                assert sizes.tolist() == [each] * count
        everything = torch.cat(owned(made))
        assert len(everything.unique()) == len(everything)
        assert_distinct(classes_of(made), count)
    # Mistake of the release: classes drawn with repetition leave some clients with fewer.
    drawn = np.random.default_rng(0).integers(0, 10, (10, 4))
    with pytest.raises(AssertionError):
        assert_distinct([set(classes.tolist()) for classes in drawn], 4)


def test_the_samples_of_fedselect_depend_on_the_seed_alone() -> None:
    dataset = labeled([300] * 10)
    first, again, other = (partition(dataset, 10, PerClass(), seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [([174] * 10, PerClass(2)), ([240] * 9 + [9], PerClass())],
)
def test_too_few_samples_for_fedselect_are_said_so(sizes: list[int], rule: PerClass) -> None:
    with raises("E303", "10", "`clients`"):
        partition(labeled(sizes), 10, rule)


def test_the_number_of_clients_that_is_advised_is_possible() -> None:
    dataset = labeled([174] * 10)
    with raises("E303", 5):
        partition(dataset, 6, PerClass(2))
    assert partition(dataset, 5, PerClass(2)).clients == 5


def test_lottery_by_hand() -> None:
    # Eight training samples of one class and 0.25 x 8 = 2 of the other. At 75/25 a third as many
    # are for testing: 8/3 is 3 and 2/3 is 1.
    split = (0.75, 0.0, 0.25)
    made = partition(labeled([30, 30]), 2, Lottery(8, 0.25), split=split)
    for client in range(2):
        train = sorted(counts_of(made, made.train)[client])
        test = sorted(counts_of(made, made.test)[client])
        assert (train, test) == ([2, 8], [1, 3])
        # What is many in training is many in test.
        order = counts_of(made, made.train)[client].argmax()
        assert counts_of(made, made.test)[client].argmax() == order


def test_a_balance_that_floats_put_just_below_a_whole_number_is_that_number() -> None:
    # 0.29 x 100 is 28.999... in floats.
    made = partition(labeled([300, 300]), 2, Lottery(100, 0.29), split=(0.75, 0.0, 0.25))
    assert all(sorted(held) == [29, 100] for held in counts_of(made, made.train))


@settings(deadline=None, max_examples=50)
@given(
    volume=st.integers(2, 20),
    balance=st.sampled_from([1.0, 0.75, 0.5, 0.25]),
    count=st.integers(1, 4),
    seed=st.integers(0, 1000),
    split=st.sampled_from([(0.6, 0.2, 0.2), (0.75, 0.0, 0.25), (1.0, 0.0, 0.0)]),
)
def test_lottery_keeps_volume_and_balance(
    volume: int, balance: float, count: int, seed: int, split: tuple[float, float, float]
) -> None:
    made = partition(labeled([300] * 5), 10, Lottery(volume, balance, count), seed, split)
    everything = torch.cat(owned(made))
    assert len(everything.unique()) == len(everything)
    kept = tuple(map(torch.cat, zip(made.train, made.validation, strict=True)))
    fewer = max(1, math.floor(volume * balance + 1e-9))
    for held in counts_of(made, kept):
        assert sorted(held[held > 0]) == sorted([volume] + [fewer] * (count - 1))
    assert all((held > 0).sum() == count for held in counts_of(made, made.train))
    tested = counts_of(made, made.test)
    assert ((tested > 0) == (counts_of(made, kept) > 0)).all() or not split[2]
    assert made.has_validation == (split[1] > 0 and volume * split[1] / (1 - split[2]) > 0.5)


def test_cutting_validation_from_a_lottery_leaves_its_test_samples() -> None:
    dataset, rule = labeled([200] * 5), Lottery(20, 0.5)
    whole = partition(dataset, 10, rule, split=(0.75, 0.0, 0.25))
    cut = partition(dataset, 10, rule, split=(0.6, 0.15, 0.25))
    assert cut.has_validation
    assert all(torch.equal(a, b) for a, b in zip(whole.test, cut.test, strict=True))


def test_fedmasks_cifar_clients_have_25_samples_on_average() -> None:
    # FedMask, Table 4: 400 devices with 25 samples on average.
    made = partition(labeled([6000] * 10), 400, "lottery:20:0.25", split=(0.75, 0.0, 0.25))
    assert made.samples.unique().tolist() == [25]
    assert all(len(classes) == 2 for classes in classes_of(made))
    # Which of the two has more is random.
    more = counts_of(made, made.train).argmax(axis=1)
    assert len(np.unique(more)) == 10


def test_too_few_samples_for_a_lottery_are_said_so() -> None:
    with raises("E303", 9, "`clients`", "lottery:"):
        partition(labeled([40, 40]), 9, Lottery(20, 1.0))
    for rule in (Lottery(2, 1.0, 3), PerClass(3)):
        with raises("E303", "3"):
            partition(labeled([400, 400]), 2, rule)


@pytest.mark.parametrize("rule", [PerClass(2, 5, 10), Lottery(8, 0.5)])
def test_counted_samples_come_from_the_original_parts_if_these_are_kept_apart(
    rule: PerClass | Lottery,
) -> None:
    dataset = replace(labeled([100] * 4), train=torch.arange(400) % 4 > 0)
    assert dataset.train is not None
    made = partition(dataset, 4, rule, merge=False)
    assert dataset.train[torch.cat(made.train + made.validation)].all()
    assert not dataset.train[torch.cat(made.test)].any()
    merged = partition(dataset, 4, rule)
    assert [len(part) for part in made.train] == [len(part) for part in merged.train]
    assert [len(part) for part in made.test] == [len(part) for part in merged.test]


@pytest.mark.parametrize("rule", [PerClass(2, 5, 5), Lottery(8, 0.5), Groups(2), Outliers(2)])
def test_special_partitions_depend_on_the_seed_alone(
    rule: PerClass | Lottery | Groups | Outliers,
) -> None:
    prints = [partition(labeled([90] * 4), 6, rule, seed).fingerprint() for seed in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


def everything_of(made: Federation) -> np.ndarray:
    return counts_of(made, tuple(owned(made)))


def test_groups_by_hand() -> None:
    # With a huge alpha two groups halve both classes, and two clients each of them once more.
    made = partition(labeled([80, 40]), 4, Groups(2, 1e9))
    assert everything_of(made).tolist() == [[20, 10]] * 4


@settings(deadline=None, max_examples=50)
@given(
    groups=st.integers(1, 5),
    clients=st.integers(5, 12),
    sizes=st.lists(st.integers(60, 90), min_size=3, max_size=6),
    seed=st.integers(0, 1000),
)
def test_clients_of_a_group_are_alike_and_use_every_sample(
    groups: int, clients: int, sizes: list[int], seed: int
) -> None:
    made = partition(labeled(sizes), clients, Groups(groups, 1.0), seed)
    held = everything_of(made)
    assert held.sum(axis=0).tolist() == sizes
    assert held.sum(axis=1).min() >= 5
    ends = np.cumsum([clients // groups + (group < clients % groups) for group in range(groups)])
    for members in np.split(held, ends[:-1]):
        assert (np.ptp(members, axis=0) <= 1).all()
        assert np.ptp(members.sum(axis=1)) <= 1


def distances(held: np.ndarray, mix: np.ndarray) -> np.ndarray:
    """Return how far each client's mix of classes is from another: half the sum of differences."""
    return np.abs(held / held.sum(axis=1, keepdims=True) - mix).sum(axis=1) / 2


def test_dmpfls_five_groups_of_twenty_clients_differ() -> None:
    held = everything_of(partition(labeled([6000] * 10), 20, "groups:5"))
    for first in range(0, 20, 4):
        mix = held[first] / held[first].sum()
        others = np.delete(held, range(first, first + 4), axis=0)
        assert distances(held[first : first + 4], mix).max() < 0.01
        assert distances(others, mix).min() > 0.2


def test_outliers_by_hand() -> None:
    # Of four clients two are outliers, so half of each class is theirs; with a huge alpha they
    # halve it, and so do the others.
    made = partition(labeled([80, 40]), 4, Outliers(2, 1e9))
    assert everything_of(made).tolist() == [[20, 10]] * 4


@settings(deadline=None, max_examples=50)
@given(
    outliers=st.integers(1, 4),
    clients=st.integers(5, 12),
    sizes=st.lists(st.integers(60, 90), min_size=3, max_size=6),
    seed=st.integers(0, 1000),
)
def test_all_but_the_outliers_have_the_mix_of_all_data(
    outliers: int, clients: int, sizes: list[int], seed: int
) -> None:
    held = everything_of(partition(labeled(sizes), clients, Outliers(outliers, 1.0), seed))
    assert held.sum(axis=0).tolist() == sizes
    assert held.sum(axis=1).min() >= 5
    # An even share of each class, and not even one sample beside it.
    assert (np.abs(held[: clients - outliers] - np.array(sizes) / clients) <= 1).all()


def test_dmpfls_five_outliers_of_twenty_clients_are_the_last_and_far_from_the_rest() -> None:
    far = distances(
        everything_of(partition(labeled([6000] * 10), 20, "outliers:5")), np.full(10, 0.1)
    )
    assert far[:15].max() < 0.01
    assert far[15:].min() > 0.2


@pytest.mark.parametrize(
    ("rule", "clients", "named"),
    [
        (Groups(5), 4, (5, 4)),
        (Groups(2, 1e-3), 12, ("`alpha`",)),
        (Outliers(4), 4, (4, "outliers")),
        (Outliers(3, 1e-3), 6, ("`alpha`",)),
        (Outliers(1), 16, ("`clients`",)),
    ],
)
def test_what_cannot_be_drawn_ends_with_the_knobs(
    rule: Groups | Outliers, clients: int, named: tuple[object, ...]
) -> None:
    with raises("E303", *named):
        partition(labeled([60]), clients, rule)
