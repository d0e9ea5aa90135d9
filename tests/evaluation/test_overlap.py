"""Overlap of clients' masks: by hand, and against the pairwise definition."""

from itertools import combinations

import pytest
import torch

from masquerade.core import Part, mask
from masquerade.evaluation.overlap import MOST, overlap


def test_overlap_by_hand() -> None:
    # "a": 1100 and 0110 share one of three entries; "b": both empty, which is full agreement.
    # Together: 1/3. "c" is whole in both and has no mask.
    a = [torch.tensor([[1, 1, 0, 0]]) > 0, torch.tensor([[0, 1, 1, 0]]) > 0]
    values = {"a": torch.zeros(1, 4), "b": torch.zeros(2), "c": torch.zeros(3)}
    models = [{"own": Part(values, {"a": one, "b": torch.zeros(2) > 0})} for one in a]
    found = overlap(models)
    assert found is not None
    assert found.layers == {"a": pytest.approx(1 / 3), "b": 1.0}
    assert found.whole == pytest.approx(1 / 3)
    assert found.pairs["a"] == ((1, pytest.approx(1 / 3)), (pytest.approx(1 / 3), 1))


def test_overlap_is_the_mean_of_all_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = [
        {name: torch.rand(5, 7, generator=generator) > 0.4 for name in ("a", "b")}
        for _ in range(MOST + 3)
    ]
    models = [{"params": Part(dict.fromkeys(one, torch.zeros(5, 7)), one)} for one in masks]
    pairs = [mask.overlap(*pair) for pair in combinations(masks[:MOST], 2)]
    found = overlap(models)
    assert found is not None
    assert found.whole == pytest.approx(sum(pairs) / len(pairs))


def test_entries_shared_with_the_global_mask_are_counted_by_client() -> None:
    own = [torch.tensor([1, 1, 0, 0]) > 0, torch.tensor([0, 1, 1, 1]) > 0]
    ours = torch.tensor([0, 1, 1, 0]) > 0
    models = [{"params": Part({"w": torch.zeros(4)}, {"w": one})} for one in own]
    shared = [{"params": Part({"w": torch.zeros(4)}, {"w": ours})}] * 2
    found = overlap(models, shared)
    assert found is not None
    assert found.with_global == {"w": (1, 2)}
    dense = overlap(models, [{"params": Part({"w": torch.zeros(4)})}] * 2)
    assert dense is not None
    assert dense.with_global == {}


def test_without_masks_or_without_others_there_is_no_overlap() -> None:
    dense = {"params": Part({"w": torch.ones(2)})}
    masked = {"params": Part({"w": torch.ones(2)}, {"w": torch.ones(2) > 0})}
    assert overlap([dense, dense]) is None
    assert overlap([masked]) is None
