"""Padding: what steps must not see, and how far it moves those that do."""

import math

import pytest
import torch

from masquerade.core import MetricStep, Round, Stage, Task, sgd_step
from masquerade.core.padding import PADDING, padding_changes, with_and_without
from tests.support import federation, network

TASK, DATA = Task(network()), federation()
X, Y = DATA.x[DATA.train[1]], DATA.y[DATA.train[1]]
ROUND = Round.of("train", "train", 0, 8, 1.0, torch.device("cpu"))


def changes(stage, x=X, y=Y, task=TASK):
    work = stage.prepare({"params": task.initial}, ROUND)
    return padding_changes(stage, work, x, y, ROUND)


def over_all(work, batch, round):
    return TASK.losses(work["params"], batch)[0].mean(), {}


@pytest.mark.parametrize(
    "step", [sgd_step(TASK, lr=0.1, momentum=0.5), MetricStep(TASK)], ids=["sgd", "metric"]
)
def test_our_steps_do_not_see_padding(step):
    assert changes(Stage("train", step)) < 1e-12


def mean_gradient(count):
    """The gradient of the last bias: probabilities less targets, averaged over samples."""
    output, _ = TASK(TASK.initial, X[:count])
    return (output.softmax(-1) - torch.nn.functional.one_hot(Y[:count], 3)).mean(0)


def test_a_mean_over_all_samples_is_moved_as_far_as_it_says():
    # Ten samples are real, and two are padding.
    expected = float((0.1 * (mean_gradient(10) - mean_gradient(12))).abs().max())
    stage = Stage("train", sgd_step(TASK, over_all, lr=0.1))
    work = stage.prepare({"params": TASK.initial}, ROUND)
    one, two = with_and_without(stage, work, X, Y, ROUND)
    moved = (one["params"]["4.bias"] - two["params"]["4.bias"]).abs().max()
    assert float(moved) == pytest.approx(expected, rel=1e-9)
    assert changes(stage) >= float(moved) > 1e-3


def test_every_draw_of_a_step_is_padded():
    seen = []

    def step(work, batches, round):
        seen.append([(len(each.y), each.valid, int(each.count())) for each in batches])
        return work

    assert changes(Stage("train", step, draws=2)) == 0
    (padded, plain) = seen
    # Twelve samples, two of them padding for each of two draws: eight are real.
    assert [(length, real) for length, _, real in padded] == [(4 + PADDING, 4)] * 2
    assert [(length, valid, real) for length, valid, real in plain] == [(4, None, 4)] * 2


def test_a_client_with_one_sample_is_padded_with_it():
    def step(work, batch, round):
        return {"params": {**work["params"], "seen": torch.tensor(len(batch.y))}}

    # Counts are no numbers that could be near one another.
    assert changes(Stage("train", step), X[:1], Y[:1]) == math.inf


def test_work_that_leaves_the_finite_numbers_is_infinitely_far():
    def step(work, batch, round):
        return {"params": {"w": torch.log(torch.tensor(float(-len(batch.y))))}}

    assert changes(Stage("train", step)) == math.inf
