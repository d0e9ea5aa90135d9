"""SCAFFOLD (Karimireddy et al., 2020): by hand, against a replay, and against a usual mistake."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from masquerade.core import Cohort, Message, Round, State, Task
from masquerade.methods import FedAvg, Scaffold
from tests.papers.replay import (
    SIZES,
    Weights,
    World,
    assert_same,
    gradient,
    line,
    stage,
    weights_of,
)
from tests.support import advance

WANTED = (2.0, -4.0, 8.0, 16.0)


def assert_a_round_by_hand(method: Scaffold) -> None:
    """Hold a method against a round of the model y = w · x, worked out on paper."""
    # Four clients, x = 1, each with one sample; two are sampled. Rate 1/4, two steps from x = 0,
    # all controls 0: the slope 2(w − y) is −2y, then −y, so w goes to y/2, then to 3y/4.
    # Option II: c_i = (0 − 3y/4) / (2 · 1/4) = −3y/2, the mean of the two slopes.
    # The model is the mean of the two clients; the control is their sum over all four.
    made, progress = line(method, [[(1.0, y)] for y in WANTED], participation=0.5)
    sampled = made.server.participation.cohort(0).tolist()
    assert len(sampled) == 2
    total = sum(WANTED[client] for client in sampled)
    assert total != 0
    assert float(progress.server["params"]["weight"]) == 3 / 4 * total / 2
    assert float(progress.server["control"]["weight"]) == -3 / 2 * total / 4
    for client, y in enumerate(WANTED):
        own = float(progress.clients.state["control"]["weight"][client])
        assert own == (-3 / 2 * y if client in sampled else 0)


HAND = Scaffold(lr=0.25, local_epochs=2)


def test_scaffold_by_hand() -> None:
    assert_a_round_by_hand(HAND)


def test_option_one_keeps_the_gradient_at_the_received_model() -> None:
    # The slope at w = 0 is −2y, of all samples together −2 · mean(y); the model moves as before.
    _, progress = line(replace(HAND, controls="gradient"), [[(1.0, 2.0)] * 5, [(1.0, 6.0)]])
    assert progress.clients.state["control"]["weight"].flatten().tolist() == [-4, -12]
    assert float(progress.server["control"]["weight"]) == -8
    # Client 1 takes two steps of one sample, to 3/4 · 6; client 0 four, to 15/16 · 2. Both count
    # the same.
    assert float(progress.server["params"]["weight"]) == (3 / 4 * 6 + 15 / 16 * 2) / 2


@dataclass(frozen=True, kw_only=True)
class DividedByTheCohort(Scaffold):
    """The mistake of averaging the changes of the control over the sampled clients."""

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        fewer = replace(cohort, clients=len(cohort.ids))
        return super().aggregate(task, server, rows, uploads, fewer, round)


def test_a_control_divided_by_the_cohort_is_noticed() -> None:
    with pytest.raises(AssertionError):
        assert_a_round_by_hand(DividedByTheCohort(lr=0.25, local_epochs=2))


def replayed(world: World, paper: Scaffold, rounds: int) -> tuple[Weights, Weights]:
    """Play Algorithm 1 of the paper: (x, c)."""
    x = weights_of(world.network)
    c = {name: torch.zeros_like(value) for name, value in x.items()}
    own = [dict(c) for _ in SIZES]
    for number in range(rounds):
        lr, cohort = paper.lr * world.lr_decay**number, world.cohorts[number]
        moved, changed = [], []
        for client in cohort:
            y, batches = dict(x), world.batches(client, number, paper.local_epochs)
            for batch in batches:
                g = gradient(world.network, y, *batch)
                y = {n: y[n] - lr * (g[n] + c[n] - own[client][n]) for n in y}
            if paper.controls == "path":
                new = {n: own[client][n] - c[n] + (x[n] - y[n]) / (len(batches) * lr) for n in y}
            else:
                chosen = world.federation.train[client]
                data = world.federation.x[chosen], world.federation.y[chosen]
                new = gradient(world.network, x, *data)
            moved.append({n: y[n] - x[n] for n in y})
            changed.append({n: new[n] - own[client][n] for n in y})
            own[client] = new
        for name in x:
            step = torch.stack([each[name] for each in moved]).mean(0)
            x = {**x, name: x[name] + paper.server_step * step}
            c = {**c, name: c[name] + sum(each[name] for each in changed) / len(SIZES)}
    return x, c


@pytest.mark.parametrize("controls", ["path", "gradient"])
def test_three_rounds_equal_a_replay(controls: str) -> None:
    method = Scaffold(lr=0.2, local_epochs=2, server_step=0.8, controls=controls)
    made, world = stage(method, 3)
    progress = made.begin()
    for _ in range(3):
        advance(made, progress)
    x, c = replayed(world, method, 3)
    assert_same(progress.server["params"], x)
    assert_same(progress.server["control"], c)


def test_controls_double_what_is_sent() -> None:
    sent = []
    for method in (FedAvg(local_epochs=1), Scaffold(local_epochs=1)):
        made, _ = stage(method, 2)
        progress = made.begin()
        for _ in range(2):
            advance(made, progress)
        sent.append(progress.costs["train"])
    plain, controlled = sent
    assert controlled["values_up"] == 2 * plain["values_up"]
    # The first control is zero, but nobody knows that: it costs a download, as the model does not.
    assert controlled["values_down"] > 2 * plain["values_down"]


def test_momentum_is_refused_where_the_way_is_read_as_gradients() -> None:
    assert Scaffold(momentum=0.5).problems()
    assert not Scaffold(momentum=0.5, controls="gradient").problems()
    assert not Scaffold().problems()


def test_buffers_have_no_control() -> None:
    task = Task(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    assert list(Scaffold().server_init(task)["control"]) == task.parameter_names
