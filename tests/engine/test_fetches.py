"""The host waits for the device when clients' rounds are over, not between their stages."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from masquerade.core.round import client_round
from masquerade.methods import DMPFL
from tests.support import simulation


class Fetches(TorchFunctionMode):
    """Notes where numbers are brought to the host: inside of clients' rounds, or after them."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.places = False, list[bool]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.cpu and args[0].is_floating_point():
            self.places.append(self.inside)
        return func(*args, **(kwargs or {}))


def test_numbers_are_fetched_once_and_after_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation(DMPFL(epochs=2, readjust_every=1), engine="batched")
    readjusts = made.setting.round("train", made.method.schedule(0, made.train.rounds), 0)
    # Two stages, each with masks of several tensors.
    assert len(made.method.stages(made.task, readjusts)) == 2
    fetches = Fetches()

    def watched(*arguments: Any) -> Any:
        fetches.inside = True
        done = client_round(*arguments)
        fetches.inside = False
        return done

    monkeypatch.setattr("masquerade.engine.batched.client_round", watched)
    progress = made.begin()
    with fetches:
        made.advance(progress)
    # The densities, and the bytes.
    assert fetches.places == [False, False]


def test_a_round_that_was_prepared_before_is_the_same() -> None:
    # Chunks of three, of which the second has padding.
    plain, ahead = (
        simulation(DMPFL(epochs=2, readjust_every=1), engine="batched", width=3) for _ in range(2)
    )
    left, right = plain.begin(), ahead.begin()
    for number in range(4):
        plain.advance(left)
        ahead._expect(number)
        assert ahead.engine._ready
        ahead.advance(right)
        assert not ahead.engine._ready
    for name, value in left.tensors().items():
        assert torch.equal(value, right.tensors()[name]), name
