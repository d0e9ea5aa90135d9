"""The test pool is drawn before the partition: seeds deal its samples, and none trains on them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from masquerade.config.resolve import LoadedConfig, trainings
from masquerade.config.toml import parse
from masquerade.data.dataset import from_arrays
from masquerade.data.partition.federation import Federation, partition
from masquerade.data.partition.papers import AnyRule, Groups, Lottery, Outliers, PerClass
from masquerade.data.partition.rules import IID, ByClient, Dirichlet, Pathological, Shards
from masquerade.data.source import load
from masquerade.errors import MasqueradeError
from tests.data.federations import labeled, owned

# Rules are tried on data that name clients, too.
pytestmark = pytest.mark.filterwarnings("ignore:W302")

WHOLE, CUT = (0.75, 0.0, 0.25), (0.6, 0.15, 0.25)
"""Two splits that differ in what is done with the rest."""


def pooled(parts: tuple[torch.Tensor, ...]) -> set[int]:
    return set(torch.cat(parts).tolist())


def seeds_of(rule: AnyRule, seeds: tuple[int, ...] = (1, 2, 3)) -> list[Federation]:
    dataset = labeled([120] * 6, clients=12)
    return [
        partition(dataset, 12, rule, seed, split, pool_seed=7)
        for seed in seeds
        for split in (WHOLE, CUT)
    ]


ALL = [
    IID(),
    Dirichlet(0.5, least=10),
    Dirichlet(0.5, cap=True, least=10),
    Pathological(),
    Shards(),
    Groups(3, 1.0),
    Outliers(2, 1.0),
    ByClient(),
]
"""Rules that share out all samples; clients have some of every use."""
COUNTED = [PerClass(2, 10, 5, 3), Lottery(12, 0.5, 2)]


@pytest.mark.parametrize("rule", [*ALL, *COUNTED], ids=repr)
def test_no_partition_learns_from_what_another_is_tested_on(rule: AnyRule) -> None:
    made = seeds_of(rule)
    tested = set().union(*(pooled(each.test) for each in made))
    assert tested
    for each in made:
        assert not tested & pooled(each.train)
        assert not tested & pooled(each.validation)
        assert each.samples.min() >= 1
    assert len({each.fingerprint() for each in made}) >= 3
    # Drawn after the partition, test samples of one are trained on by another.
    after = [partition(labeled([120] * 6, 12), 12, rule, seed, CUT) for seed in (1, 2)]
    assert pooled(after[0].test) & pooled(after[1].train + after[1].validation)


@pytest.mark.parametrize("rule", ALL, ids=repr)
def test_every_partition_deals_the_whole_pool_which_has_its_share_of_every_class(
    rule: AnyRule,
) -> None:
    made = seeds_of(rule)
    for each in made:
        assert pooled(each.test) == pooled(made[0].test)
        assert sorted(torch.cat(owned(each)).tolist()) == list(range(720))
        assert each.y[torch.cat(each.test)].bincount().tolist() == [30] * 6


def test_the_rest_is_cut_in_the_proportion_of_its_shares() -> None:
    _, cut = seeds_of(IID(), (1,))
    for train, validation in zip(cut.train, cut.validation, strict=True):
        assert len(validation) == pytest.approx((len(train) + len(validation)) / 5, abs=0.51)


def test_the_pool_depends_on_its_seed_and_share_alone_also_without_classes() -> None:
    targets = from_arrays(np.zeros((100, 1)), np.linspace(0, 1, 100))
    first, again, other = (
        pooled(partition(targets, 4, IID(), seed, pool_seed=pool).test)
        for seed, pool in ((1, 1), (2, 1), (1, 2))
    )
    assert first == again != other
    assert len(first) == 20


def test_rare_classes_are_tested_on_together() -> None:
    # A fifth of one sample is none, and of fifty classes with one sample it is ten.
    made = partition(labeled([1] * 50), 5, IID(), pool_seed=1)
    assert len(pooled(made.test)) == 10


def test_the_original_test_part_is_the_pool_where_parts_are_kept_apart() -> None:
    dataset = replace(labeled([100, 100]), train=torch.arange(200) % 4 > 0)
    for seed in (1, 2):
        made = partition(dataset, 5, IID(), seed, merge=False, pool_seed=9)
        assert pooled(made.test) == set(range(0, 200, 4))


def test_a_client_keeps_a_training_sample_or_the_partition_is_refused() -> None:
    # Clients with two samples: both are in a pool of half in one case of four, so some deals fail.
    deals = [partition(labeled([8]), 4, IID(), seed, (0.5, 0, 0.5), pool_seed=1) for seed in (1, 2)]
    assert [each.samples.min() for each in deals] == [1, 1]
    owner = from_arrays(np.zeros((4, 1)), [0] * 4, [0, 1, 2, 3])
    with pytest.raises(MasqueradeError) as refused:
        partition(owner, None, ByClient(), 1, (0.5, 0, 0.5), pool_seed=1)
    assert refused.value.code == "E303"


def test_too_small_a_pool_for_counted_samples_is_refused() -> None:
    with pytest.raises(MasqueradeError) as refused:
        partition(labeled([60] * 4), 10, PerClass(2, 5, 5), split=(0.9, 0, 0.1), pool_seed=1)
    assert refused.value.code == "E303"


def test_training_seeds_are_partitions_that_share_samples_in_memory() -> None:
    tables = {
        "data": {"clients": 8, "novel": 0.25, "budgets": "random:0.3:1.0"},
        "train": {"model": "mlp", "seeds": [1, 2]},
        "methods": ["fedavg", "local"],
    }
    per_seed = {**tables["data"], "partition_per_seed": True}
    loaded = LoadedConfig.of(parse({**tables, "data": per_seed}))
    specs = {each: loaded.resolve(each) for each in trainings(loaded.config)}
    made = {seed: [s for each, s in specs.items() if each.seed == seed] for seed in (1, 2)}
    for (one, same), (other, _) in ((made[1], made[2]), (made[2], made[1])):
        # Methods are paired: they see the same federation, also the same novel clients.
        assert one.federation is same.federation
        assert one.federation.fingerprint() != other.federation.fingerprint()
        assert one.federation.x.data_ptr() == other.federation.x.data_ptr()
        assert (one.novel, one.budgets) == (same.novel, same.budgets)
        assert one.novel != other.novel
        assert one.budgets != other.budgets
    off = LoadedConfig.of(parse(tables))
    assert off.federations[1] is off.federations[2]
    # Off, samples lie where `partition` puts them, as before there was a pool.
    found = off.federations[2]
    again = partition(load("digits"), 8, "dirichlet:0.3", 1)
    assert found.fingerprint() == again.fingerprint()
