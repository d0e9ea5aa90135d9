"""Sub-FedAvg (2021): worked by hand, and mistakes of public versions, each shown to fail."""

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import ClientInfo, Message, Part, Round, Stage, State, Task, slicing, tree
from masquerade.core.random import normal
from masquerade.data import Federation
from masquerade.methods import SubFedAvg
from masquerade.models import DigitsCNN
from tests.papers.small import (
    assert_test_labels_do_not_matter,
    at,
    averaged,
    bits,
    layer,
    peeking,
    play,
    rows,
    units,
)

GLOBAL = rows([9, 8, 7, 6, 5], [-1, -2, -3, -4, -0.5])
"""Class 0 wins for every unit vector."""
TASK = layer(GLOBAL)
FULL = torch.ones(2, 5, dtype=torch.bool)
EAGER: dict[str, Any] = {"local_epochs": 2, "lr": 0.0, "threshold": -1.0, "distance": -1.0}
"""Settings under which training moves nothing and every round prunes."""


def received(keep: Tensor = FULL, weight: Tensor = GLOBAL) -> Message:
    """Return the global weights inside a mask."""
    return {"params": Part(tree.only({"weight": keep}, {"weight": weight}), {"weight": keep})}


def held_out(right: int) -> Federation:
    """Return a client of whose five validation samples the global model answers some correctly."""
    return units(5, [0] * right + [1] * (5 - right), list(range(5)), list(range(5)))


def test_a_pruning_by_hand() -> None:
    # A fifth of ten: −0.5 and −1 go. What stays keeps its value: nothing is rewound.
    fifth = SubFedAvg(**EAGER, prune=0.2)
    sent = play(fifth, TASK, received(), held_out(5))["params"]
    assert torch.equal(sent.keep["weight"], bits("11111", "01110"))
    assert torch.equal(sent.values["weight"], rows([9, 8, 7, 6, 5], [0, -2, -3, -4, 0]))
    # The target, 70 %, is seven of ten: ⌈1.6⌉ = 2 of eight would leave six, so one goes, 2.
    again = play(fifth, TASK, received(sent.keep["weight"]), held_out(5))["params"]
    assert torch.equal(again.keep["weight"], bits("11111", "00110"))
    last = play(fifth, TASK, received(again.keep["weight"]), held_out(5))["params"]
    assert torch.equal(last.keep["weight"], again.keep["weight"])


@pytest.mark.parametrize(("right", "kept"), [(2, 10), (3, 9)])
def test_the_pruned_model_must_pass_the_threshold(right: int, kept: int) -> None:
    # 40 % is not above 50 %, 60 % is; a tenth of ten is one weight.
    method = SubFedAvg(**EAGER | {"threshold": 50.0})
    assert (
        int(play(method, TASK, received(), held_out(right))["params"].keep["weight"].sum()) == kept
    )


@pytest.mark.parametrize(("distance", "kept"), [(0.4, 3), (0.6, 4)])
def test_the_two_masks_must_differ_enough(distance: float, kept: int) -> None:
    # Rate 1, x = e₀ of class 0, so the first column alone moves, by ± 1/(1 + e^(a − b)).
    # (−0.8, 0.7) moves by 0.818 to (0.018, −0.118): after the first epoch −0.8, now 0.018, is the
    # smallest of the four. It goes on by 0.466 to (0.484, −0.584) and by 0.256 to (0.740, −0.840):
    # after the third epoch 0.6 is the smallest. The two masks differ in two of four entries.
    weight = rows([-0.8, 0.6], [0.7, 0.9])
    method = SubFedAvg(local_epochs=3, lr=1.0, threshold=-1.0, distance=distance, prune=0.25)
    message = received(torch.ones(2, 2).bool(), weight)
    sent = play(method, layer(weight), message, units(2, [0, 1], [0], []))["params"]
    assert int(sent.keep["weight"].sum()) == kept
    # What goes is what is smallest after the last epoch.
    assert bool(sent.keep["weight"][0, 1]) == (kept == 4)


def test_equal_masks_prune_nothing() -> None:
    method = SubFedAvg(**EAGER | {"distance": 0.0})
    assert play(method, TASK, received(), held_out(5))["params"].keep["weight"].all()


def test_weights_are_averaged_over_their_holders() -> None:
    parts = [
        Part({"weight": rows([2, 4], [0, 0])}, {"weight": bits("11", "00")}),
        Part({"weight": rows([6, 0], [8, 0])}, {"weight": bits("10", "10")}),
    ]
    task = layer(rows([1, 1], [1, 7]))
    new = averaged(SubFedAvg(), task, {"params": task.initial}, parts, [1, 3], at())
    assert torch.equal(new["params"]["weight"], rows([5, 4], [8, 7]))


def test_one_epoch_cannot_be_compared_with_itself() -> None:
    assert SubFedAvg(local_epochs=1).problems()
    assert not SubFedAvg(local_epochs=2).problems()
    assert not SubFedAvg(local_epochs=1, prune=0.0).problems()


# Structured


def test_a_dropped_unit_takes_its_bias_and_its_readers_with_it() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    task = Task(module)
    # The norms of the rows are 5, 1 and 2: the second unit is the weakest, a third of three goes.
    values = {**task.initial, "0.weight": rows([3, 4], [0, 1], [2, 0])}
    method = SubFedAvg(**EAGER, structured=True, prune=1 / 3, target=0.5)
    keep = method.row_init(task, ClientInfo(0, 2, 0))["keep"]
    sent = play(method, task, {"params": Part(values, keep)}, units(2, [0, 1], [0, 1], []))[
        "params"
    ]
    assert torch.equal(sent.keep["0.weight"], bits("11", "00", "11"))
    assert sent.keep["0.bias"].tolist() == [True, False, True]
    assert torch.equal(sent.keep["2.weight"], bits("101", "101"))
    # The outputs of the network stay.
    assert "2.bias" not in sent.keep
    # Half of three units is two: the target is reached.
    again = play(method, task, {"params": sent}, units(2, [0, 1], [0, 1], []))["params"]
    assert torch.equal(again.keep["0.weight"], sent.keep["0.weight"])


def test_channels_of_a_norm_go_in_whole_groups() -> None:
    task = Task(DigitsCNN(norm="group").double())
    method = SubFedAvg(**EAGER, structured=True, prune=0.25, target=0.25)
    full = slicing.keep(slicing.widths(task, 1.0), task.initial)
    keep = method.thinner(task, {"params": task.initial, "keep": full})
    assert keep["norm1.weight"].reshape(4, 4).all(1).sum() == 3
    assert keep["norm1.weight"].reshape(4, 4).any(1).sum() == 3
    x = normal(1, (3, 1, 8, 8), torch.float64)
    small = slicing.shrink(task.initial, slicing.cut_of(keep))
    assert small["conv2.weight"].shape == (24, 12, 3, 3)
    torch.testing.assert_close(task(small, x)[0], task(tree.only(keep, task.initial), x)[0])


# Usual mistakes


@pytest.mark.parametrize("structured", [False, True])
def test_no_decision_reads_test_data(structured: bool) -> None:
    # The accuracy alone decides here.
    method = SubFedAvg(local_epochs=2, distance=-1.0, structured=structured)
    assert_test_labels_do_not_matter(method)
    with pytest.raises(AssertionError):
        assert_test_labels_do_not_matter(method, peeking)


class Removed(SubFedAvg):
    """Takes the target for the share that is removed."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return SubFedAvg(**fields | {"target": 1 - self.target}).plan(task, round)


def assert_target_remains(cls: type[SubFedAvg]) -> None:
    keep = FULL
    for _ in range(12):
        keep = play(cls(**EAGER, target=0.3), TASK, received(keep), held_out(5))["params"].keep[
            "weight"
        ]
    assert int(keep.sum()) == 3


def test_the_target_is_what_remains() -> None:
    assert_target_remains(SubFedAvg)
    with pytest.raises(AssertionError):
        assert_target_remains(Removed)


class FifthEpoch(SubFedAvg):
    """Takes the last mask after the fifth epoch, however many there are; else there is none."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        first, rest, look = super().plan(task, round)

        def then(work: State, round: Round) -> State:
            return {**work, "last": work["keep"], "pruned": work["params"]}

        return first, rest if self.local_epochs == 5 else replace(rest, then=then), look


def assert_prunes_after_any_number_of_epochs(cls: type[SubFedAvg]) -> None:
    for epochs in (2, 3, 5):
        sent = play(cls(**EAGER | {"local_epochs": epochs}), TASK, received(), held_out(5))[
            "params"
        ]
        assert not sent.keep["weight"].all()


def test_the_last_mask_is_that_of_the_last_epoch() -> None:
    assert_prunes_after_any_number_of_epochs(SubFedAvg)
    with pytest.raises(AssertionError):
        assert_prunes_after_any_number_of_epochs(FifthEpoch)
