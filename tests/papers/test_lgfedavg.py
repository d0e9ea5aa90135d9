"""LG-FedAvg (Liang et al., 2020): worked by hand, and told apart from what is mistaken for it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from masquerade.core import ClientInfo, Message, Method, Round, State, Task
from masquerade.core.tree import split
from masquerade.data import Federation
from masquerade.methods import LGFedAvg
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests.papers.chain import BODY, HEAD, models, play, used
from tests.papers.replay import federation, stage
from tests.support import advance, measure, restored

HAND = {"lr": 0.125, "local_epochs": 1}


def assert_two_rounds_by_hand(method: LGFedAvg) -> None:
    """Hold a round of FedAvg and one of local bodies against the arithmetic."""
    # Round 0, b = h = 1, rate 1/8, FedAvg. A: hb − y = −2, slopes −4, so b = h = 3/2.
    # B: off by 2, so b = h = 1/2. Averaged by samples, both: (3/2 + 3 · 1/2) / 4 = 3/4.
    # Round 1. A: 9/16 − 3 = −39/16, slopes −117/32, so b = h = 3/4 + 117/256 = 1.20703125.
    # B: 9/16 + 1 = 25/16, slopes 75/32, so b = h = 3/4 − 75/256 = 0.45703125.
    # Heads are averaged, (1.20703125 + 3 · 0.45703125) / 4 = 0.64453125; bodies are not.
    made, progress = play(method, 2)
    assert used(made, progress) == [(1.20703125, 0.64453125), (0.45703125, 0.64453125)]
    # Whoever begins later begins with the last body of FedAvg.
    assert float(progress.server["params"][BODY]) == 0.75


def test_lgfedavg_by_hand() -> None:
    assert_two_rounds_by_hand(LGFedAvg(**HAND, warmup=0.5))


class Reversed(LGFedAvg):
    """Keeps the last layers local and shares those below."""

    def client_init(self, task: Task, info: ClientInfo) -> State:
        _, head = task.divide(self.shared_layers)
        return {**super().client_init(task, info), "body": head}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        return Method.download(self, task, server, row, round)


def test_mistake_local_and_global_layers_are_reversed() -> None:
    with pytest.raises(AssertionError):
        assert_two_rounds_by_hand(Reversed(**HAND, warmup=0.5))


def test_mistake_no_warm_up() -> None:
    with pytest.raises(AssertionError):
        assert_two_rounds_by_hand(LGFedAvg(**HAND, warmup=0.0))


def kept(message: Message, names: set[str]) -> int:
    """Count the values of some tensors that travel."""
    part = message["params"]
    inside, _ = split(part.values, names)
    return replace(part, values=inside).kept()


def test_the_body_comes_once_and_then_the_head_alone_crosses() -> None:
    method = LGFedAvg(local_epochs=1, warmup=0.25)
    made, _ = stage(method, 8)
    body, head = map(set, made.server.task.divide(1))
    sizes = [
        sum(made.server.task.initial[name].numel() for name in names) for names in (body, head)
    ]
    progress, begun = made.begin(), set()
    for number in range(8):
        phase = method.schedule(number, 8)
        assert phase == ("everything" if number < 2 else "head")
        round = made.context.round("train", phase, number)
        for id in made.server.participation.cohort(number).tolist():
            row = {"begun": progress.rows.state["begun"][id]}
            down = method.download(made.server.task, progress.server, row, round)
            assert kept(down, head) == sizes[1]
            assert kept(down, body) == (0 if id in begun else sizes[0])
        before = dict(progress.costs["train"])
        advance(made, progress)
        if phase == "head":
            begun |= set(made.server.participation.cohort(number).tolist())
            up = progress.costs["train"]["values_up"] - before["values_up"]
            assert up == len(made.server.participation.cohort(number)) * sizes[1] * 8
        assert progress.clients.state["begun"].nonzero().flatten().tolist() == sorted(begun)
        assert progress.rows.state["begun"].nonzero().flatten().tolist() == sorted(begun)
    assert len(begun) > len(made.server.participation.cohort(7))


def test_whoever_has_not_begun_uses_the_last_model_of_the_warm_up_under_the_newest_head() -> None:
    method = LGFedAvg(local_epochs=1, warmup=0.5)
    made, _ = stage(method, 2)
    progress = made.begin()
    advance(made, progress)
    warm = dict(progress.server["params"])
    assert all(
        torch.equal(model["params"].values[name], value)
        for model in models(made, progress)
        for name, value in warm.items()
    )
    advance(made, progress)
    body, head = made.server.task.divide(1)
    began = set(made.server.participation.cohort(1).tolist())
    assert began != set(range(made.federation.clients))
    for id, model in enumerate(models(made, progress)):
        values = model["params"].values
        assert all(torch.equal(values[name], progress.server["params"][name]) for name in head)
        assert all(torch.equal(values[name], warm[name]) != (id in began) for name in body)
        assert not any(torch.equal(values[name], warm[name]) for name in head)


def test_a_use_does_not_count_as_a_beginning() -> None:
    made, _ = stage(LGFedAvg(local_epochs=1, warmup=0.5), 2)
    progress = made.begin()
    advance(made, progress)
    models(made, progress)
    assert not progress.rows.state["begun"].any()
    assert not progress.clients.state["begun"].any()


BLIND = LGFedAvg(local_epochs=1, warmup=0.4)
Choice = Callable[[Simulation, list[RunState]], list[Message]]
"""From a run's states after its rounds to the models that are reported."""


def last(made: Simulation, states: list[RunState]) -> list[Message]:
    """Report the models of the last round, as we do."""
    return models(made, states[-1])


def best_on_test_data(made: Simulation, states: list[RunState]) -> list[Message]:
    """Report each client's model of the round in which its test data liked it best."""
    evaluated = [measure(made, state, "personal", list(made.federation.test)) for state in states]
    rounds = range(len(evaluated))
    chosen = []
    for id in range(made.federation.clients):
        best = max(rounds, key=lambda number, id=id: float(evaluated[number].scores[id].mean()))
        chosen.append(evaluated[best].models[id])
    return chosen


def assert_blind_to_test_data(choose: Choice, method: Method = BLIND) -> None:
    reported = []
    for shift in (0, 1):
        data = federation()
        y = data.y.clone()
        tested = torch.cat(data.test)
        y[tested] = (y[tested] + shift) % 3
        other = Federation("toy", data.x, y, 3, data.train, data.validation, data.test)
        made, _ = stage(method, 5, other)
        progress, states = made.begin(), []
        for _ in range(5):
            advance(made, progress)
            states.append(restored(made, progress.number, progress.tensors(), progress.facts()))
        reported.append(choose(made, states))
    for one, two in zip(*reported, strict=True):
        for name, value in one["params"].values.items():
            assert torch.equal(value, two["params"].values[name])


def test_what_is_reported_does_not_depend_on_test_data() -> None:
    assert_blind_to_test_data(last)


def test_mistake_models_are_chosen_on_test_data() -> None:
    with pytest.raises(AssertionError):
        assert_blind_to_test_data(best_on_test_data)


def test_shared_layers_are_counted_from_the_end() -> None:
    made, _ = stage(LGFedAvg(shared_layers=2), 1)
    assert set(made.begin().clients.state["body"]) == {"0.weight", "0.bias"}


def test_a_garbled_body_that_was_not_sent_is_never_read() -> None:
    method = LGFedAvg(**HAND, warmup=0.5)
    made, progress = play(method, 2)
    round = made.context.round("train", "head", 1)
    client = {
        "body": {BODY: torch.full((1, 1), 5.0, dtype=torch.float64)},
        "begun": torch.tensor(True),
    }
    down = method.download(made.server.task, progress.server, {"begun": torch.tensor(True)}, round)
    part = down["params"]
    garbled = {"params": replace(part, values={**part.values, BODY: part.values[BODY] / 0})}
    work = method.start(made.server.task, garbled, client, round)
    assert float(work["params"][BODY]) == 5
    assert float(work["params"][HEAD]) == float(progress.server["params"][HEAD])
