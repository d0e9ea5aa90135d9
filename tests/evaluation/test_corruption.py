"""Evaluation under corruption: against a recomputation by hand, and where images come from."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import masquerade as mq
from masquerade.config.toml import parse
from masquerade.core.random import fold, uniform
from masquerade.data import Federation, cache, from_arrays
from masquerade.data import corrupted_sets as corrupted
from masquerade.data.corrupted_sets import CorruptedSets, kinds_of
from masquerade.data.corruption import KINDS, corrupt
from masquerade.data.readers.reading import Reading
from masquerade.experiments.run import compare
from tests.support import raises

KIND, SIZE = ("fog", "impulse_noise"), 8
CLIENTS, OWN = 5, (4, 7, 0, 3, 6)
"""Test samples by client: ragged, and one has none."""


def images(count: int, bytes: bool) -> Tensor:
    x = uniform(1, (count, 1, SIZE, SIZE), torch.float32)
    return (x * 255).byte() if bytes else x


def federation(bytes: bool = True) -> Federation:
    """Five clients with six training samples each, and with bright and dark images as classes."""
    count = 6 * CLIENTS + sum(OWN)
    x = images(count, bytes)
    y = (x.float().mean((1, 2, 3)) > x.float().mean()).long()
    train = torch.arange(6 * CLIENTS).split(6)
    test = torch.arange(6 * CLIENTS, count).split(OWN)
    return Federation("toy", x, y, 2, train, tuple(part[:0] for part in train), test)


def network() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 2))
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(uniform(fold(3, name), tuple(value.shape), torch.float32) - 0.5)
    return model


def evaluated(engine: str, data: Federation, **more: Any) -> mq.Result:
    evaluate = mq.Evaluate(every=0, degrees=(0, 100), corruptions=KIND, severities=(1, 5))
    compute = mq.Compute(engine=engine, clients_per_chunk=2)
    return mq.run(
        mq.methods.FedAvg(lr=0.5, local_epochs=2),
        network(),
        data,
        2,
        batch_size=3,
        evaluate=evaluate,
        compute=compute,
        **more,
    )


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("bytes", [True, False])
def test_figures_are_those_of_every_model_on_its_clients_corrupted_images(
    engine: str, bytes: bool
) -> None:
    data = federation(bytes)
    result = evaluated(engine, data)
    for summary in result.summaries:
        table: dict[tuple[str, str], list[float]] = {}
        for id, own in enumerate(data.test):
            model = result.client(id, summary.view)
            for kind in KIND if len(own) else ():
                for severity in (1, 5):
                    # The number of an image decides what is random in it.
                    x = corrupt(data.x[own], kind, severity, ids=own)
                    hits = model.predict(x).argmax(1) == data.y[own]
                    share = 100 * float(hits.double().mean())
                    table.setdefault((kind, str(severity)), []).append(share)
        found = summary.accuracy.corruption
        assert set(found) == {*KIND, "averaged"}
        cells = {key: np.array(values) for key, values in table.items()}
        for kind in KIND:
            cells[kind, "averaged"] = (cells[kind, "1"] + cells[kind, "5"]) / 2
        for step in ("1", "5", "averaged"):
            cells["averaged", step] = (cells[KIND[0], step] + cells[KIND[1], step]) / 2
        for (kind, step), values in cells.items():
            assert found[kind][step].mean == pytest.approx(values.mean())
            assert found[kind][step].std == pytest.approx(values.std())
        assert summary.corrupted_images == "generated"
    # Fog and noise change answers here, so that the above compares something.
    shares = [s.accuracy.corruption["fog"]["5"].mean for s in result.summaries]
    assert shares != [s.accuracy.own.mean for s in result.summaries]


def test_novel_clients_and_the_global_view_are_evaluated_under_corruption_too() -> None:
    summary = evaluated("loop", federation(), novel=(1, 3)).summaries[-1]
    assert summary.novel is not None
    for accuracy in (summary.novel.accuracy, summary.global_view):
        assert accuracy is not None
        assert set(accuracy.corruption) == {*KIND, "averaged"}
    assert summary.novel.clients.ids == (1, 3)


def test_without_kinds_nothing_is_said_of_corruption() -> None:
    data = federation()
    result = mq.run(
        mq.methods.FedAvg(local_epochs=1), network(), data, 1, evaluate=mq.Evaluate(every=0)
    )
    assert result.summaries[0].accuracy.corruption == {}
    assert result.summaries[0].corrupted_images == ""


def test_only_one_corrupted_copy_is_there_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []
    fresh = CorruptedSets.x

    def watched(self: CorruptedSets, kind: str, severity: int) -> Tensor:
        gc.collect()
        assert [copy for copy in made if copy() is not None] == []
        found = fresh(self, kind, severity)
        assert len(found) == sum(OWN)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(CorruptedSets, "x", watched)
    evaluated("loop", federation())
    assert len(made) == 4


def test_all_means_all_kinds_and_none_comes_twice() -> None:
    assert kinds_of(("fog", "all")) == tuple(KINDS)
    assert kinds_of(("snow", "fog", "snow")) == ("snow", "fog")
    assert kinds_of(()) == ()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Put a CIFAR-10-C of four test images into the cache; CIFAR-10 has six images before them."""
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path))
    monkeypatch.setattr(corrupted, "FIRST", 6)
    monkeypatch.setattr(corrupted, "ROWS", 4)
    blocks = tuple(f"{kind}:{severity}" for kind in KINDS for severity in range(1, 6))
    x = images(4 * len(blocks), True)
    labels = np.tile([0, 1, 2, 3], len(blocks))
    cache.write("cifar10c", Reading(from_arrays(x, labels, classes=10), blocks=blocks))
    return x


def cifar10(*test: list[int], name: str = "cifar10") -> Federation:
    """CIFAR-10 in small: six training images and four for testing, of classes 0 to 3."""
    y = torch.tensor([5, 5, 5, 5, 5, 5, 0, 1, 2, 3])
    nothing = tuple(torch.arange(0) for _ in test)
    return Federation(
        name, images(10, True), y, 10, nothing, nothing, tuple(map(torch.tensor, test))
    )


def test_published_images_are_used_row_by_row(published: Tensor) -> None:
    made = CorruptedSets.of(cifar10([9, 6], [8]))
    assert made.source == "published"
    assert made.y.tolist() == [0, 2, 3]
    assert [part.tolist() for part in made.own] == [[2, 0], [1]]
    # Fog is the tenth kind: its severity 2 is block 9 · 5 + 1, of four images each.
    start = (9 * 5 + 1) * 4
    assert torch.equal(made.x("fog", 2), published[start + torch.tensor([0, 2, 3])])


@pytest.mark.parametrize(
    "data",
    [
        cifar10([9, 6], [5]),
        cifar10([9, 6], name="mine"),
        cifar10([9, 6]).__class__(**vars(cifar10([9, 6])) | {"y": torch.zeros(10).long()}),
    ],
    ids=["a training image is among them", "another dataset", "other labels"],
)
def test_what_is_not_published_is_generated(data: Federation, published: Tensor) -> None:
    made = CorruptedSets.of(data)
    assert made.source == "generated"
    assert torch.equal(made.x("fog", 2), corrupt(data.x[made.places], "fog", 2, ids=made.places))


def test_without_cifar10c_in_the_cache_images_are_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path))
    monkeypatch.setattr(corrupted, "FIRST", 6)
    monkeypatch.setattr(corrupted, "ROWS", 4)
    assert CorruptedSets.of(cifar10([9, 6])).source == "generated"


def test_data_that_are_no_images_are_refused_before_any_work(tmp_path: Path) -> None:
    x, y = torch.rand(40, SIZE * SIZE), torch.arange(40) % 2
    data = mq.partition(from_arrays(x, y), 2, mq.IID(), seed=1)
    with raises("E202", "[40, 64]", "float32"):
        evaluated("loop", data)
    # A comparison leaves no directory behind.
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    tables = {"data": {"name": str(tmp_path / "plain.npz"), "clients": 2}}
    config = parse(tables | {"evaluate": {"corruptions": ["fog"]}})
    with raises("E202"):
        compare(tmp_path / "out", config)
    assert not (tmp_path / "out").exists()


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    evaluate = mq.Evaluate(corruptions=("fogg",))
    with raises("E201", "`evaluate.corruptions`", "`fog`"):
        mq.run(mq.methods.FedAvg(), network(), federation(), 1, evaluate=evaluate)
