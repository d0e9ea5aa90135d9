"""Batches: every sample once per epoch, and the same ones for a client and for a cohort."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from masquerade.core import Batch, Round, Stage
from masquerade.data import Federation
from masquerade.data.loader import LARGE, BatchLoader
from tests.support import SIZES, federation

SIZE, SEED = 4, 5
IDS = torch.arange(len(SIZES))
EMPTY = torch.empty(0, dtype=torch.int64)


def numbered() -> Federation:
    """The toy federation, every sample being its own number."""
    data = federation()
    numbers = torch.arange(len(data.y))
    return replace(data, x=numbers.float()[:, None], y=numbers)


def feed(data: Federation | None = None, seed: int = SEED) -> BatchLoader:
    return BatchLoader(data or numbered(), seed, SIZE)


def stage(**settings: Any) -> Stage:
    return Stage("train", lambda work, batch, round: work, **settings)


def now(kind: str = "train") -> Round:
    zero = torch.tensor(0.0)
    return Round(kind, None, zero, zero, zero)


def of_client(
    id: int, made: Stage, number: int = 0, kind: str = "train", source: BatchLoader | None = None
) -> list[Any]:
    """All batches of one client."""
    source = source or feed()
    return list(source.batches(source.shuffle(torch.tensor([id]), made, now(kind), number), 0))


def of_cohort(
    source: BatchLoader, ids: Tensor, made: Stage, number: int = 0
) -> list[tuple[Any, Any]]:
    """All batches of stacked clients, and which of them have samples in each."""
    pack = source.stack(source.shuffle(ids, made, now(), number))
    return [
        (
            source.batch(pack.rows[step], pack.draws, whole),
            [step < length for length in pack.lengths],
        )
        for whole, first, last in pack.alike(len(ids), 0, len(pack.rows))
        for step in range(first, last)
    ]


def flat(batch: Any) -> list[Batch]:
    return list(batch) if isinstance(batch, tuple) else [batch]


def samples(batches: list[Any]) -> list[int]:
    return [int(sample) for batch in batches for part in flat(batch) for sample in part.y]


@pytest.mark.parametrize("id", range(len(SIZES)))
def test_an_epoch_has_every_sample_once(id: int) -> None:
    batches = of_client(id, stage(epochs=3))
    per_epoch = -(-SIZES[id] // SIZE)
    assert len(batches) == 3 * per_epoch
    own = numbered().train[id].tolist()
    for epoch in range(3):
        assert sorted(samples(batches[epoch * per_epoch : (epoch + 1) * per_epoch])) == own
    assert [len(batch.y) for batch in batches[:per_epoch]] == [
        min(SIZE, SIZES[id] - first) for first in range(0, SIZES[id], SIZE)
    ]


def test_x_and_y_of_a_sample_stay_together() -> None:
    for batch in of_client(4, stage(epochs=2)):
        assert torch.equal(batch.x[:, 0].long(), batch.y)
        assert batch.valid is None


@pytest.mark.parametrize("draws", [1, 2, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_cohort_sees_step_by_step_what_its_clients_see(draws: int, epochs: int) -> None:
    source, made = feed(), stage(epochs=epochs, draws=draws)
    cohort = of_cohort(source, IDS, made, 3)
    for id in range(len(SIZES)):
        steps = [flat(batch) for batch, busy in cohort if busy[id]]
        alone = [flat(batch) for batch in of_client(id, made, 3)]
        assert len(steps) == len(alone)
        for parts, others in zip(steps, alone, strict=True):
            assert [seen(part, id) for part in parts] == [part.y.tolist() for part in others]
            assert [int(part.key[id]) for part in parts] == [int(part.key) for part in others]


def seen(batch: Batch, row: int) -> list[int]:
    """The real samples of one client in a stacked batch."""
    valid = (
        torch.ones_like(batch.y[row], dtype=torch.bool) if batch.valid is None else batch.valid[row]
    )
    return [int(sample) for sample in batch.y[row][valid]]


def test_an_idle_client_has_no_real_sample() -> None:
    source = feed()
    idle = 0
    for batch, busy in of_cohort(source, IDS, stage()):
        assert isinstance(batch, Batch)
        for id, has in enumerate(busy):
            assert bool(seen(batch, id)) == has
            idle += not has
    assert idle


def test_full_batches_of_equal_clients_are_not_padded() -> None:
    source = feed()
    cohort = of_cohort(source, torch.tensor([1, 4]), stage())
    padded = [part.valid is not None for batch, _ in cohort for part in flat(batch)]
    # 12 and 16 samples in batches of 4: three steps are full for both, the fourth for one.
    assert padded == [False, False, False, True]


def test_nobody_waits_for_the_epochs_of_others() -> None:
    pack = feed().stack(feed().shuffle(torch.tensor([1, 4]), stage(epochs=3), now(), 0))
    # 12 and 16 samples in batches of 4: three epochs of 3 and of 4 steps.
    assert (pack.lengths, len(pack.rows)) == ([9, 12], 12)
    assert pack.meant[:, 0].tolist() == [4] * 9 + [0] * 3


def test_several_draws_of_a_step_are_disjoint_and_as_large_as_a_batch() -> None:
    for id in (1, 4):
        steps = of_client(id, stage(draws=2))
        for left, right in steps:
            assert not set(left.y.tolist()) & set(right.y.tolist())
            assert len(left.y) - len(right.y) in (0, 1)
            assert len(left.y) <= SIZE
            assert int(left.key) != int(right.key)
        assert sorted(samples(steps)) == numbered().train[id].tolist()
    # Three samples make one step of two draws, (2, 1); seven make (4, 3).
    assert [[len(part.y) for part in step] for step in of_client(2, stage(draws=2))] == [[2, 1]]
    assert [[len(part.y) for part in step] for step in of_client(0, stage(draws=2))] == [[4, 3]]


def test_a_step_that_cannot_fill_every_draw_is_left_out() -> None:
    data = numbered()
    nine = replace(data, train=(data.train[4][:9],))
    steps = of_client(0, stage(draws=2), source=feed(nine))
    # Eight samples make a step; the ninth has no partner.
    assert [[len(part.y) for part in step] for step in steps] == [[4, 4]]


def test_validation_is_read_where_there_is_some() -> None:
    data = numbered()
    batches = of_client(4, stage(data="validation"))
    assert samples(batches) == data.validation[4].tolist()
    none = replace(data, validation=(EMPTY,) * len(SIZES))
    batches = of_client(4, stage(data="validation"), source=feed(none))
    # Training data, in their own order: an evaluation needs no shuffling, and few large batches.
    assert samples(batches) == data.train[4].tolist()
    assert len(batches) == 1


def test_a_large_client_is_looked_at_in_pieces() -> None:
    count = LARGE + 10
    many = torch.arange(count)
    data = Federation("many", many.float()[:, None], many, None, (many,), (EMPTY,), (EMPTY,))
    batches = of_client(0, stage(data="validation"), source=feed(data))
    assert [len(batch.y) for batch in batches] == [LARGE, 10]
    assert samples(batches) == many.tolist()


def test_batches_depend_on_kind_round_client_stream_and_epoch() -> None:
    def made(number: int = 0, kind: str = "train", seed: int = SEED, **settings: Any) -> list[int]:
        return samples(of_client(4, stage(**settings), number, kind, feed(seed=seed)))

    base = made()
    assert base == made()
    changed = [
        made(number=1),
        made(kind="adapt"),
        made(seed=6),
        made(stream=1),
        made(epoch=1),
    ]
    assert all(sorted(other) == sorted(base) for other in changed)
    assert len({tuple(other) for other in [base, *changed]}) == 6


def test_epochs_of_one_stage_and_of_alternating_ones_are_the_same() -> None:
    together = samples(of_client(4, stage(epochs=3)))
    apart = [samples(of_client(4, stage(epoch=epoch))) for epoch in range(3)]
    assert together == [sample for part in apart for sample in part]
    assert len({tuple(part) for part in apart}) == 3


def test_batches_do_not_depend_on_who_else_is_sampled() -> None:
    source, made = feed(), stage(epochs=2)
    alone = samples(of_client(2, made))
    for ids in ([2, 4], [0, 1, 2], [5, 2]):
        orders = source.shuffle(torch.tensor(ids), made, now(), 0)
        assert samples(list(source.batches(orders, ids.index(2)))) == alone


def test_every_batch_has_a_key_of_its_own() -> None:
    source, made = feed(), stage(epochs=3)
    keys = [
        int(batch.key) for id in range(len(SIZES)) for batch in of_client(id, made, source=source)
    ]
    assert len(set(keys)) == len(keys)


def without(*splits: str) -> BatchLoader:
    """The toy federation, client 0 having nothing in some splits."""
    data = numbered()
    changes: dict[str, Any] = {name: (EMPTY, *getattr(data, name)[1:]) for name in splits}
    return feed(replace(data, **changes))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_client_without_samples_has_no_batch(split: str) -> None:
    source, made = without("train", "validation"), stage(data=split, epochs=2)
    assert of_client(0, made, source=source) == []
    cohort = of_cohort(source, IDS, made)
    assert not any(busy[0] for _, busy in cohort)
    assert all(busy[4] for _, busy in cohort)


def test_a_client_without_validation_samples_looks_at_its_training_samples() -> None:
    source, made = without("validation"), stage(data="validation")
    assert samples(of_client(0, made, source=source)) == numbered().train[0].tolist()
    assert samples(of_client(1, made, source=source)) == numbered().validation[1].tolist()


def test_orders_look_like_permutations_of_no_pattern() -> None:
    """First places of many epochs are spread over a client's samples."""
    orders = feed().shuffle(torch.tensor([4]), stage(epochs=160), now(), 0)
    firsts = orders.indices[0, :, 0] - int(numbered().train[4][0])
    counts = torch.bincount(firsts, minlength=16)
    # 160 / 16 = 10 each, with a standard deviation of about 3.
    assert counts.min() > 0
    assert counts.max() < 10 + 5 * 3.1


def test_data_stay_where_they_are() -> None:
    source = feed()
    before: tuple[Tensor, ...] = tuple(part.clone() for part in source.federation.train)
    of_client(4, stage(epochs=2), source=source)
    assert all(map(torch.equal, before, source.federation.train))
