"""Two states compared, tensor by tensor."""

from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.laws.law import LawBroken, Where

OWN = ("rows/", "clients/", "session/")
"""How the names of a run's tensors begin that have an entry for every client."""
STACKED = (*OWN, "uploads/")


def clones(state: Any) -> dict[str, Tensor]:
    """Return a copy of all tensors of a state, by name."""
    return {name: value.clone() for name, value in tree.named(state).items()}


def equal(left: Any, right: Any, otherwise: str) -> None:
    """Require states to be equal bit for bit; `otherwise` says what a difference means."""
    close(left, right, 0.0, otherwise)


def close(left: Any, right: Any, tolerance: float, otherwise: str) -> None:
    """Require numbers to agree within a tolerance, relative or absolute; all else bit for bit."""
    left, right = tree.named(left), tree.named(right)
    if left.keys() != right.keys():
        name = min(left.keys() ^ right.keys())
        raise LawBroken(f"{otherwise}: only one of two states has it", Where(tensor=name))
    wrong = [name for name, value in left.items() if not _agree(value, right[name], tolerance)]
    if wrong:
        first, many = wrong[0], f"{len(wrong)} of {len(left)} tensors differ"
        raise LawBroken(f"{otherwise}; {many}", _where(first, left[first], right[first], tolerance))


def _agree(left: Tensor, right: Tensor, tolerance: float) -> bool:
    alike = left.shape == right.shape and left.dtype == right.dtype
    return alike and not _differing(left, right, tolerance).any()


def _differing(left: Tensor, right: Tensor, tolerance: float) -> Tensor:
    if tolerance and left.is_floating_point():
        return ~torch.isclose(left, right, rtol=tolerance, atol=tolerance)
    return left != right


def _where(name: str, left: Tensor, right: Tensor, tolerance: float) -> Where:
    if left.shape != right.shape or left.dtype != right.dtype:
        return Where(tensor=f"{name}: {_form(left)} and {_form(right)}")
    client = None
    if name.startswith(STACKED):
        rows = _differing(left, right, tolerance).reshape(len(left), -1).any(1)
        client = int(rows.nonzero()[0])
    apart = float((left.double() - right.double()).abs().max())
    return Where(tensor=name, client=client, apart=apart)


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
