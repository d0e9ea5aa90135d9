"""Messages that no other test provokes, and that every code has a text in the golden file."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from masquerade.core import Round, Task
from masquerade.cost.flops import Meter
from masquerade.data import IID, ByClient, Dataset, from_arrays, partition
from masquerade.laws.law import Law, LawBroken, at
from masquerade.methods import FedAvg
from tests import messages
from tests.messages import Golden
from tests.support import raises, simulation, warns

ERRORS = Path(__file__).parents[1] / "docs" / "errors.md"
ON_CUDA_ALONE = {"W507"}


def test_every_code_has_a_text() -> None:
    documented = set(re.findall(r"^\| ([EW]\d{3}) \|", ERRORS.read_text("utf-8"), re.MULTILINE))
    assert len(documented) > 40
    assert documented - {text[:4] for text in messages.read().values()} == ON_CUDA_ALONE


def test_a_plan_that_asks_for_a_number_is_refused(golden: Golden) -> None:
    zero = torch.zeros(())
    with raises("E204") as refusal:
        float(Round("train", None, zero, zero, zero).static.number)
    golden(refusal.value)


def test_a_device_that_is_not_there_is_refused(golden: Golden) -> None:
    with raises("E503") as refusal:
        simulation(FedAvg(), device="cuda")
    golden(refusal.value)


def test_clients_that_are_mixed_are_told_of(golden: Golden) -> None:
    named = from_arrays(np.zeros((6, 2), np.float32), np.arange(6) % 2, client=np.arange(6) // 2)
    with warns("W302", "client") as warned:
        assert partition(named, 2, IID()).clients == 2
    golden(warned[-1].message)


class Halves:
    """A program's own rule, which keeps clients together."""

    def assign(
        self, dataset: Dataset, clients: int, rng: np.random.Generator
    ) -> list[npt.NDArray[np.int64]]:
        """Give the first three samples to one client, and the others to another."""
        return np.array_split(np.arange(len(dataset.y)), clients)


def test_clients_that_a_rule_of_ones_own_deals_are_not_told_of() -> None:
    named = from_arrays(np.zeros((6, 2), np.float32), np.arange(6) % 2, client=np.arange(6) // 2)
    for rule, clients in ((Halves(), 2), (ByClient(), 3)):
        assert partition(named, clients, rule).clients == clients


class Recurrent(nn.Module):
    """Reads a sequence by torch's own LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.out = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs from the last state."""
        return self.out(self.read(x)[0][:, -1])


def test_layers_that_torch_does_not_count_are_named(golden: Golden) -> None:
    with warns("W504", "read") as warned:
        counted = Meter(Task(Recurrent())).forward(torch.zeros(1, 4, 2))
    golden(warned[-1].message)
    # A product of 3 and 2 numbers; the LSTM is missing.
    assert sum(counted.values()) == 2 * 3 * 2


def test_a_broken_law_is_told_with_its_place_and_advice(golden: Golden) -> None:
    def broken(problem: object) -> None:
        with at(kind="train", client=1):
            raise LawBroken("it moved")

    with pytest.raises(LawBroken) as caught:
        Law(1, "Nothing moves.", "let it lie", broken)(None)
    golden(caught.value)
