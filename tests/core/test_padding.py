"""Padding: what steps must not see, and how far it moves those that do."""

import pytest
import torch

from masquerade.core import Batch, MetricStep, Round, Stage, Task, sgd_step
from masquerade.core.padding import PADDING, couples, padded, padding_error
from tests.support import federation, network

TASK, DATA = Task(network()), federation()
X, Y = DATA.x[DATA.train[1]], DATA.y[DATA.train[1]]
ROUND = Round.of("train", "train", 0, 8, 1.0, torch.device("cpu"))
BATCH = Batch(X, Y, None, torch.tensor(0))


def error(step, given=BATCH, **stage):
    made = Stage("train", step, **stage)
    return padding_error(made, made.prepare({"params": TASK.initial}, ROUND), given, ROUND)


@pytest.mark.parametrize(
    "step", [sgd_step(TASK, lr=0.1, momentum=0.5), MetricStep(TASK)], ids=["sgd", "metric"]
)
def test_our_steps_do_not_see_padding(step):
    assert error(step)[1] < 1e-9


def test_a_step_that_adds_up_all_samples_is_moved_by_the_share_of_padding():
    def step(work, batch, round):
        total = batch.x.sum()
        return {"params": {name: value - total for name, value in work["params"].items()}}

    entry, apart = error(step)
    expected = PADDING * float(X[0].sum()) / float(X.sum())
    assert entry == "params"
    assert apart == pytest.approx(abs(expected), rel=1e-4)


def test_every_draw_of_a_step_is_padded():
    seen = []

    def step(work, batches, round):
        seen.append([each.y.shape[-1] for each in batches])
        return work

    assert error(step, (BATCH, BATCH), draws=2) == ("params", 0.0)
    assert seen == [[len(Y)] * 2, [len(Y) + PADDING] * 2]


def test_padding_is_marked_and_made_of_the_first_sample():
    made = padded(BATCH, 2)
    assert made.valid.tolist() == [True] * len(Y) + [False] * 2
    assert torch.equal(made.x[: len(Y)], X)
    assert torch.equal(made.x[len(Y) :], X[:1].expand(2, -1))
    assert made.key is BATCH.key


def test_a_norm_over_the_batch_couples_samples_and_a_linear_layer_does_not():
    assert not couples(TASK, DATA.x)
    assert couples(Task(torch.nn.Sequential(torch.nn.BatchNorm1d(6), network().float())), DATA.x)
