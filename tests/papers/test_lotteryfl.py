"""LotteryFL (2020): worked by hand, and the mistakes of public versions, each shown to fail."""

import dataclasses
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from masquerade.core import Message, Part, Round, Stage, State, Task, tree
from masquerade.data import Federation
from masquerade.methods import LotteryFL
from tests import support
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
from tests.papers.test_lgfedavg import assert_blind_to_test_data, best_on_test_data, last
from tests.support import measure

INITIAL = rows([1, 1, 1, 1, 1], [-1, -1, -1, -1, -1])
GLOBAL = rows([9, 8, 7, 6, 5], [-1, -2, -3, -4, -0.5])
"""Class 0 wins for every unit vector."""
TASK = layer(INITIAL)
FULL = torch.ones(2, 5, dtype=torch.bool)
STILL = LotteryFL(lr=0.0, local_epochs=1)
"""The method whose training moves nothing, so that decisions are seen alone."""


def received(keep: Tensor = FULL) -> Message:
    """Return the global weights inside a mask."""
    return {"params": Part(tree.only({"weight": keep}, {"weight": GLOBAL}), {"weight": keep})}


def held_out(right: int, of: int = 5) -> Federation:
    """Return a client of whose validation samples the global model answers `right` correctly."""
    y = [0] * right + [1] * (of - right) + [0] * (5 - of)
    return units(5, y, list(range(5)), list(range(of)))


def test_a_round_by_hand() -> None:
    # Two of five held-out samples are right, 40 % > 20 %. One fifth of ten weights go: those of
    # smallest magnitude in the *received* model, 0.5 and 1. The others start from the initial
    # weights again, not from the global ones.
    sent = play(STILL, TASK, received(), held_out(2))["params"]
    assert torch.equal(sent.keep["weight"], bits("11111", "01110"))
    assert torch.equal(sent.values["weight"], rows([1, 1, 1, 1, 1], [0, -1, -1, -1, 0]))
    # Of the eight survivors ⌈1.6⌉ = 2 go next: 2 and 3.
    again = play(STILL, TASK, received(sent.keep["weight"]), held_out(2))["params"]
    assert torch.equal(again.keep["weight"], bits("11111", "00010"))


def test_at_the_threshold_training_goes_on_from_the_received_weights() -> None:
    # One of five is right: 20 % is not above 20 %.
    sent = play(STILL, TASK, received(), held_out(1))["params"]
    assert torch.equal(sent.keep["weight"], FULL)
    assert torch.equal(sent.values["weight"], GLOBAL)


def test_training_stays_inside_the_mask() -> None:
    keep = bits("10101", "00111")
    learning = LotteryFL(lr=0.5, local_epochs=3, momentum=0.9, weight_decay=0.1, prune=0.0)
    sent = play(learning, TASK, received(keep), held_out(3))["params"]
    assert not sent.values["weight"][~keep].any()
    assert (sent.values["weight"][keep] != GLOBAL[keep]).all()


def test_the_server_remembers_masks_and_sends_inside_them() -> None:
    made, progress = support.simulate(support.METHOD_TABLE["lotteryfl"], rounds=6)
    masks = progress.rows.state["keep"]["0.weight"]
    assert len({tuple(one.flatten().tolist()) for one in masks}) > 1
    models = measure(made, progress, "personal", list(made.federation.test)).models
    for keep, model in zip(masks, models, strict=True):
        value = model["params"].values["0.weight"]
        assert torch.equal(value, torch.where(keep, progress.server["params"]["0.weight"], 0))


def test_weights_are_averaged_over_their_holders() -> None:
    parts = [
        Part({"weight": rows([2, 4], [0, 0])}, {"weight": bits("11", "00")}),
        Part({"weight": rows([6, 0], [8, 0])}, {"weight": bits("10", "10")}),
    ]
    task = layer(rows([1, 1], [1, 7]))
    new = averaged(LotteryFL(), task, {"params": task.initial}, parts, [1, 3], at())
    # (1 · 2 + 3 · 6) / 4 = 5; lone holders decide; what nobody holds keeps its value.
    assert torch.equal(new["params"]["weight"], rows([5, 4], [8, 7]))


# Usual mistakes


def test_no_decision_reads_test_data() -> None:
    method = support.METHOD_TABLE["lotteryfl"]
    assert_test_labels_do_not_matter(method)
    with pytest.raises(AssertionError):
        assert_test_labels_do_not_matter(method, peeking)


class GoesOn(LotteryFL):
    """Prunes and trains on from the received weights."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        look, train = super().plan(task, round)

        def then(work: State, round: Round) -> State:
            keep = look.then(work, round)["keep"]
            return {**work, "keep": keep, "params": tree.only(keep, work["params"])}

        return replace(look, then=then), train


def assert_rewinds(cls: type[LotteryFL]) -> None:
    sent = play(cls(lr=0.0, local_epochs=1), TASK, received(), held_out(5))["params"]
    assert not sent.keep["weight"].all()
    assert torch.equal(sent.values["weight"], torch.where(sent.keep["weight"], INITIAL, 0))


def test_pruning_rewinds_to_the_initial_weights() -> None:
    assert_rewinds(LotteryFL)
    with pytest.raises(AssertionError):
        assert_rewinds(GoesOn)


class Removed(LotteryFL):
    """Takes the target for the share that is removed."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return LotteryFL(**fields | {"target": 1 - self.target}).plan(task, round)


def assert_target_remains(cls: type[LotteryFL]) -> None:
    """However often it is pruned, three of ten weights remain."""
    keep = FULL
    for _ in range(20):
        message = received(keep)
        keep = play(
            cls(lr=0.0, local_epochs=1, target=0.3, threshold=-1.0), TASK, message, held_out(0)
        )["params"].keep["weight"]
    assert int(keep.sum()) == 3


def test_the_target_is_what_remains() -> None:
    assert_target_remains(LotteryFL)
    with pytest.raises(AssertionError):
        assert_target_remains(Removed)


def test_at_the_target_nothing_is_rewound() -> None:
    sent = play(replace(STILL, target=1.0), TASK, received(), held_out(5))["params"]
    assert torch.equal(sent.values["weight"], GLOBAL)


class Guessing(LotteryFL):
    """Recognizes pruned weights by their size instead of the mask."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        look, train = super().plan(task, round)

        def large(work: State) -> dict[str, Tensor]:
            return {name: value.abs() > 1e-6 for name, value in work["params"].items()}

        return look, replace(train, step=self.sgd_step(task, within=large))


def assert_a_kept_zero_learns(cls: type[LotteryFL]) -> None:
    message = {"params": Part({"weight": torch.zeros(2, 5).double()}, {"weight": FULL})}
    sent = play(cls(lr=1.0, local_epochs=1, prune=0.0), TASK, message, held_out(5))["params"]
    assert sent.values["weight"].all()


def test_the_mask_says_what_is_frozen_not_the_size_of_a_weight() -> None:
    assert_a_kept_zero_learns(LotteryFL)
    with pytest.raises(AssertionError):
        assert_a_kept_zero_learns(Guessing)


def test_the_last_model_is_reported_not_the_best_so_far_on_test_data() -> None:
    method = LotteryFL(local_epochs=1, threshold=30.0)
    assert_blind_to_test_data(last, method)
    with pytest.raises(AssertionError):
        assert_blind_to_test_data(best_on_test_data, method)
