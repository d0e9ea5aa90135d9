"""Weights as safetensors come back as they were, and take the bytes that arithmetic says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from masquerade.core import Part, Task
from masquerade.core.random import normal, uniform
from masquerade.core.round import ClientInfo
from masquerade.export import sparse
from masquerade.methods import DMPFL, FedAvg, FedMask
from masquerade.models import build
from tests import support
from tests.support import raises

ORIGIN = sparse.Origin("mlp", (1, 8, 8), 10, 7)


def read(data: bytes, folder: Path) -> list[dict]:
    path = folder / "weights.safetensors"
    path.write_bytes(data)
    return sparse.read(path)


def same(one: dict, other: dict) -> bool:
    """Compare number by number, one of which may be NaN."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and torch.allclose(one[name], other[name], rtol=0, atol=0, equal_nan=True)
        and one[name].shape == other[name].shape
        for name in one
    )


@given(st.lists(st.booleans(), max_size=70))
def test_bits_survive_packing(bits: list[bool]) -> None:
    data = sparse.pack(torch.tensor(bits, dtype=torch.bool))
    assert len(data) == -(-len(bits) // 8)
    assert sparse.unpack(data, [len(bits)]).tolist() == bits


def test_the_first_bit_is_the_lowest() -> None:
    # 1 + 4 = 5, and the ninth bit begins a byte of its own.
    bits = torch.tensor([True, False, True, False, False, False, False, False, True])
    assert sparse.pack(bits).tolist() == [5, 1]


def test_packed_weights_come_back_as_they_were(tmp_path: Path) -> None:
    sparse_one = normal(1, (40, 30)).float() * (uniform(2, (40, 30)) < 0.3)
    odd = torch.tensor([0.0, -0.0, float("nan"), 0.0, 0.0, 0.0, 0.0, 0.0] * 8)
    tree = {"a.weight": sparse_one, "odd": odd, "whole": normal(3, (9,)).float()}
    tree["count"] = torch.tensor(3)
    data = sparse.packed([tree])
    assert same(read(data, tmp_path)[0], tree)
    # 32 bits for what is kept and one for all; the header is what is left.
    kept = int(sparse_one.count_nonzero()) + 8 + 9
    assert len(data) < 4 * kept + (1200 + 64) / 8 + 8 + 700


def test_several_networks_come_back_in_their_order(tmp_path: Path) -> None:
    trees = [{"w": torch.full((2,), float(place))} for place in range(11)]
    for write in (sparse.dense, sparse.packed):
        assert all(map(same, read(write(trees), tmp_path), trees))


def test_weights_in_use_are_those_that_predict_runs() -> None:
    method = DMPFL()
    task = Task(support.network().float())
    keep = {"0.weight": uniform(1, (8, 6)) < 0.5}
    half = {name: value * 0.5 for name, value in task.initial.items()}
    personal = {"params": Part(half, keep)}
    x = normal(1, (2, 6)).float()
    (mine,) = sparse.networks(method, task, personal, x)
    assert same(mine, half)
    both = personal | {
        "rest": Part(
            task.initial, {name: torch.ones_like(v, dtype=torch.bool) for name, v in half.items()}
        ),
        "shared": Part({}),
        "base": Part({"entropy": torch.zeros(2)}),
    }
    mine, ours = sparse.networks(method, task, both, x)
    assert same(mine, half)
    assert same(ours, task.initial)


def fedmask(weights: str = "scaled") -> tuple[FedMask, Task, dict]:
    method = FedMask(weights=weights)
    task = ORIGIN.task().with_example(torch.zeros(1, 1, 8, 8))
    client = method.client_init(task, ClientInfo(0, 1, 0, 1.0))
    bits = {name: uniform(3, tuple(v.shape)) < 0.4 for name, v in client["bits"].items()}
    return method, task, method.personalize(task, {}, {**client, "bits": bits}, "personal")


@pytest.mark.parametrize("weights", ["scaled", "signed", "drawn"])
def test_a_seed_and_bits_are_the_whole_model(weights: str, tmp_path: Path) -> None:
    method, task, personal = fedmask(weights)
    data = sparse.seeded(method, task, personal, ORIGIN)
    (found,) = read(data, tmp_path)
    x = normal(1, (3, 1, 8, 8)).float()
    torch.testing.assert_close(task(found, x)[0], method.predict(task, personal, x), rtol=0, atol=0)
    assert len(data) < task.parameters / 8 + 1200
    # The other network of the same seed has other weights.
    other = "drawn" if weights == "signed" else "signed"
    wrong = sparse.seeded(replace(method, weights=other), task, personal, ORIGIN)
    assert not same(read(wrong, tmp_path)[0], found)


def test_another_seed_is_noticed(tmp_path: Path) -> None:
    method, task, personal = fedmask()
    data = sparse.seeded(method, task, personal, replace(ORIGIN, seed=8))
    with raises("E402"):
        read(data, tmp_path)


def test_only_fedmask_is_a_seed_and_bits() -> None:
    task = Task(build("mlp", (1, 8, 8), 10, 1))
    with raises("E202", "FedAvg's", "`packed`"):
        sparse.seeded(FedAvg(), task, {"params": Part(task.initial)}, ORIGIN)


def test_other_files_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save

    for data in (b"\x80\x04pickled", b"", save({"w": torch.zeros(1)})):
        with raises("E403"):
            read(data, tmp_path)


def test_density_counts_what_is_not_zero() -> None:
    task = Task(torch.nn.Linear(3, 1))
    tree = {"weight": torch.tensor([[1.0, 0.0, 0.0]]), "bias": torch.tensor([2.0])}
    assert sparse.density([tree], task) == 0.5
    assert sparse.density([tree, task.initial], task) == 0.75
