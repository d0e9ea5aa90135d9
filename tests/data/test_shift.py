"""Test-time shift: sizes stay, degrees nest, and partners are other clients."""

import math
import tracemalloc
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.data import shift
from masquerade.data.partition.federation import Federation
from masquerade.data.shift import partners, shift_sets
from tests.support import raises

DEGREES = (0, 20, 40, 60, 80, 100)


def federation_of(sizes: list[int], split: str = "test") -> Federation:
    """Return clients with so many test (or validation) samples each, and nothing else."""
    parts = torch.split(torch.arange(sum(sizes)), sizes)
    nothing = tuple(part[:0] for part in parts)
    x = torch.zeros(sum(sizes), 1)
    test, validation = (parts, nothing) if split == "test" else (nothing, parts)
    return Federation("made", x, x, None, nothing, validation, test)


def owners(sizes: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


@settings(deadline=None, max_examples=50)
@given(clients=st.integers(2, 12), seed=st.integers(0, 2**40), draws=st.integers(1, 30))
def test_partners_are_others_and_repeat_only_after_all_were_drawn(
    clients: int, seed: int, draws: int
) -> None:
    drawn = partners(clients, seed, draws)
    assert drawn.shape == (draws, clients)
    for client, column in enumerate(drawn.T):
        assert set(column) <= set(range(clients)) - {client}
        first = column[: clients - 1]
        assert len(set(first)) == len(first)
        assert (column == np.resize(first, draws)).all()


def test_partners_depend_on_the_seed_and_not_on_the_number_of_draws() -> None:
    assert (partners(20, 1, 3) == partners(20, 1, 30)[:3]).all()
    assert (partners(20, 1, 3) != partners(20, 2, 3)).any()
    assert (partners(20, 1, 3)[0] != partners(20, 1, 3)[1]).all()


def test_partner_of_a_client_is_uniform() -> None:
    drawn = Counter(int(partners(4, seed, 1)[0, 2]) for seed in range(600))
    assert set(drawn) == {0, 1, 3}
    assert min(drawn.values()) > 150


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(
        lambda sizes: sum(size > 0 for size in sizes) >= 2
    ),
    draws=st.integers(1, 7),
    seed=st.integers(0, 2**40),
    pooled=st.booleans(),
    many=st.sampled_from([0, 10, shift.MANY]),
)
def test_shifted_sets_keep_their_size_replace_the_right_share_and_nest(
    sizes: list[int], draws: int, seed: int, pooled: bool, many: int
) -> None:
    with mock.patch.object(shift, "MANY", many):
        sets = shift_sets(federation_of(sizes), DEGREES, draws, seed, pooled)
    owner = owners(sizes)
    assert tuple(sets) == DEGREES
    assert [len(sets[degree]) for degree in DEGREES] == [1] + [draws] * 5
    for draw in range(draws):
        for client, size in enumerate(sizes):
            kept_before, given_before = Counter(np.flatnonzero(owner == client)), Counter[int]()
            for degree in DEGREES:
                samples = sets[degree][draw if degree else 0][client]
                assert samples.dtype == torch.int64
                count = Counter(samples.tolist())
                kept = Counter({s: n for s, n in count.items() if owner[s] == client})
                given = count - kept
                assert given.total() == round(size * degree / 100)
                assert kept.total() == size - given.total()
                assert kept <= kept_before
                assert given_before <= given
                kept_before, given_before = kept, given


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6), seed=st.integers(0, 1000))
def test_replacement_is_the_partners_data_and_cycles_only_when_it_is_spent(
    sizes: list[int], seed: int
) -> None:
    draws = len(sizes) + 1
    sets = shift_sets(federation_of(sizes), (100,), draws, seed)
    chosen = partners(len(sizes), seed, draws)
    for draw, row in enumerate(sets[100]):
        for client, samples in enumerate(row):
            partner = int(chosen[draw, client])
            assert set(owners(sizes)[samples.numpy()]) == {partner}
            most = max(Counter(samples.tolist()).values())
            assert most == math.ceil(sizes[client] / sizes[partner])


@pytest.mark.parametrize("many", [0, shift.MANY])
def test_pooled_replacement_comes_from_all_other_clients_without_repetition(many: int) -> None:
    sizes = [20] * 6
    with mock.patch.object(shift, "MANY", many):
        drawn = shift_sets(federation_of(sizes), (100,), draws=30, pooled=True)[100]
    for client in range(6):
        owner = [owners(sizes)[draw[client].numpy()] for draw in drawn]
        assert {len(set(draw[client].tolist())) for draw in drawn} == {20}
        counts = np.bincount(np.concatenate(owner), minlength=6)
        # 600 samples of five others, 120 of each on average; 30 are more than three deviations.
        assert counts[client] == 0
        assert (abs(np.delete(counts, client) - 120) < 30).all()


def test_few_samples_are_drawn_as_published_runs_drew_them() -> None:
    sizes = [4, 3, 5]
    drawn = shift_sets(federation_of(sizes), (100,), seed=7, pooled=True)[100][0]
    for client, samples in enumerate(drawn):
        rng = np.random.default_rng([7, 3, client, 0])
        others = rng.permutation(np.flatnonzero(owners(sizes) != client))
        assert samples.tolist() == others[: sizes[client]].tolist()


@pytest.mark.parametrize("pooled", [False, True])
def test_drawing_for_many_clients_holds_nothing_that_grows_with_their_square(pooled: bool) -> None:
    clients = 3000
    federation = federation_of([1] * clients)
    tracemalloc.start()
    with mock.patch.object(shift, "MANY", 0):
        shift_sets(federation, (0, 100), pooled=pooled)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Their square in int64 is 72 MB; a client's own samples and all Python around them, 2 kB.
    assert peak < clients * 2000


def test_degree_zero_is_the_clients_own_data_in_order() -> None:
    federation = federation_of([4, 0, 3])
    own = shift_sets(federation, draws=10)[0]
    assert len(own) == 1
    assert all(torch.equal(a, b) for a, b in zip(own[0], federation.test, strict=True))


def test_halves_that_are_kept_and_given_are_drawn_anew_for_each_draw() -> None:
    half = shift_sets(federation_of([100, 100]), (50,), draws=2)[50]
    kept = [{sample for sample in row[0].tolist() if sample < 100} for row in half]
    received = [set(row[0].tolist()) - own for row, own in zip(half, kept, strict=True)]
    assert {len(samples) for samples in (*kept, *received)} == {50}
    assert kept[0] != kept[1]
    assert received[0] != received[1]


def test_a_client_is_never_paired_with_one_that_has_no_samples() -> None:
    sizes = [3, 0, 0, 0, 0, 4]
    for row in shift_sets(federation_of(sizes), (100,), draws=8)[100]:
        assert [len(samples) for samples in row] == sizes
        assert set(owners(sizes)[row[0].numpy()]) == {5}


def test_validation_samples_can_be_shifted_instead() -> None:
    federation = federation_of([5, 5], split="validation")
    shifted = shift_sets(federation, (100,), split="validation")[100][0][0]
    assert sorted(shifted.tolist()) == [5, 6, 7, 8, 9]
    assert [len(part) for part in shift_sets(federation, (100,))[100][0]] == [0, 0]


def test_shift_without_a_second_client_is_refused_but_own_data_are_not() -> None:
    with raises("E202", "2"):
        shift_sets(federation_of([5]))
    for pooled in (False, True):
        with raises("E202", "1"):
            shift_sets(federation_of([0, 5, 0]), pooled=pooled)
    assert len(shift_sets(federation_of([5]), (0,))[0][0][0]) == 5


def test_settings_that_make_no_sense_are_refused() -> None:
    federation = federation_of([5, 5])
    with raises("E201", "120"):
        shift_sets(federation, (0, 120))
    with raises("E201", "draws", 0):
        shift_sets(federation, draws=0)
