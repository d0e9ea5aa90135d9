"""Versions of parts are told apart by 64 bits."""

import pytest
import torch
from hypothesis import given
from torch import Tensor

from masquerade.core import tree
from masquerade.core.part import Part
from masquerade.wire import digest
from tests.wire.parts import parts, quick


@given(parts(axes=1))
@quick
def test_a_stacked_part_has_the_digests_of_its_parts(part: Part) -> None:
    flipped = tree.transform(lambda v: ~v if v.dtype is torch.bool else v, part)
    found = digest(tree.stack([part, flipped]), lead=1)
    assert found.tolist() == [int(digest(part)), int(digest(flipped))]


def test_a_digest_reads_what_is_meant_and_nothing_else() -> None:
    keep = {"w": torch.tensor([True, False])}
    one = digest(Part({"w": torch.tensor([1.0, 2.0])}, keep))
    assert one == digest(Part({"w": torch.tensor([1.0, float("nan")])}, keep))
    assert one != digest(Part({"w": torch.tensor([1.5, 2.0])}, keep))
    # The same numbers under another mask are another version.
    assert one != digest(Part({"w": torch.tensor([1.0, 0.0])}))
    assert one != digest(Part({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([True, True])}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64])
def test_swapped_or_negated_values_have_another_digest(dtype: torch.dtype) -> None:
    base = torch.tensor([1, 2, 3, 4], dtype=dtype)

    def made(*values: int) -> Tensor:
        return digest(Part({"w": torch.tensor(values, dtype=dtype)}))

    original = digest(Part({"w": base}))
    for values in ((2, 1, 3, 4), (1, 2, 4, 3), (-1, 2, 3, 4), (-1, -2, 3, 4), (-1, -2, -3, -4)):
        assert made(*values) != original, values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bool])
def test_thousands_of_versions_have_as_many_digests(dtype: torch.dtype) -> None:
    """Round numbers have few bits that differ; these too must be told apart."""
    versions = torch.stack([torch.arange(4096) >> bit & 1 for bit in range(12)], dim=1).to(dtype)
    found = digest(Part({"w": versions}), lead=1)
    assert len(set(found.tolist())) == 4096
