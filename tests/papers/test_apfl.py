"""APFL (Deng et al., 2020): by hand, against a replay, and against the usual mistakes."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from masquerade.core import Batch, Message, Part, Round, Stage, State, Task, Tree
from masquerade.core.sgd import Loss, Losses, SGDStep
from masquerade.methods import APFL
from tests.papers.replay import (
    SIZES,
    Weights,
    World,
    assert_same,
    average,
    gradient,
    line,
    stage,
    used,
    weights_of,
)
from tests.support import advance, measure

HAND: dict[str, Any] = {"lr": 0.25, "local_epochs": 2, "mixture": 0.5}
SAMPLES = [[(1.0, 2.0)], [(1.0, -2.0)]]


def assert_two_rounds_by_hand(method: APFL) -> None:
    """Hold a method against two rounds of the model y = w · x, worked out on paper."""
    # x = 1, rate 1/4, α = 1/2; client A wants y = 2, client B the opposite in everything, so that
    # the server comes back to w = 0 after every round. g is the slope 2(v̄ − y) at the mixture v̄.
    # Round 1, step 1:  w = v = v̄ = 0, g = −4. α stays, since v − w = 0.
    #                   v = 0 + 1/4 · 1/2 · 4 = 1/2, and the shared model goes to 1/4 · 4 = 1.
    #          step 2:  v̄ = (1/2 + 1) / 2 = 3/4, g = −5/2. v = 1/2 + 1/4 · 1/2 · 5/2 = 13/16.
    #                   α has had its step. Another one would take it to 1/2 − 5/16.
    # In use: α v + (1 − α) · 0 = 13/32, with the new w = 0 and not the 3/2 that A trained.
    made, progress = line(method, SAMPLES, 1)
    assert shares(progress) == [0.5, 0.5]
    assert models(made, progress) == [13 / 32, -13 / 32]
    # Round 2, step 1:  v̄ = 13/32, g = −51/16. α = 1/2 + 1/4 · 13/16 · 51/16 > 1, so it becomes 1.
    #                   v = 13/16 + 1/4 · 1/2 · 51/16 = 155/128, by the α from before.
    #          step 2:  v̄ = v, g = −101/64. v = 155/128 + 1/4 · 101/64 = 411/256.
    made, progress = line(method, SAMPLES, 2)
    assert shares(progress) == [1, 1]
    assert models(made, progress) == [411 / 256, -411 / 256]


def shares(progress: Any) -> list[float]:
    found: list[float] = progress.clients.state["mixture"]["share"].tolist()
    return found


def models(made: Any, progress: Any) -> list[float]:
    return [float(found["weight"]) for found in used(made, progress, "personal")]


def test_apfl_by_hand() -> None:
    assert_two_rounds_by_hand(APFL(**HAND))


def test_a_fixed_share_stays() -> None:
    # With α fixed, round 2 is: v = 155/128 after step 1, where w = 1. Step 2: v̄ = 283/256,
    # g = −229/128, v = 155/128 + 1/8 · 229/128 = 1469/1024; in use half of it.
    made, progress = line(replace(APFL(**HAND), adapt_mixture=False), SAMPLES, 2)
    assert shares(progress) == [0.5, 0.5]
    assert models(made, progress) == [1469 / 2048, -1469 / 2048]


@dataclass(frozen=True, kw_only=True)
class OwnModelAlone(APFL):
    """The mistake of training v by its own loss, and mixing afterwards."""

    def model(self, task: Task, work: State) -> Tree:
        own: Tree = work["own"]
        return own


@dataclass(frozen=True, kw_only=True)
class EveryBatch(APFL):
    """The mistake of moving α in every step."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        (train,) = super().plan(task, round)

        def step(work: State, batch: Batch, round: Round) -> State:
            return train.step({**work, "due": torch.ones_like(work["due"])}, batch, round)

        return (replace(train, step=step, begin=train.step.prepare),)


@pytest.mark.parametrize("wrong", [OwnModelAlone, EveryBatch])
def test_a_loss_of_the_own_model_alone_or_a_share_that_moves_in_every_step_is_noticed(
    wrong: type[APFL],
) -> None:
    with pytest.raises(AssertionError):
        assert_two_rounds_by_hand(wrong(**HAND))


def replayed(world: World, paper: APFL, rounds: int) -> tuple[Weights, list[Weights], list[float]]:
    """Play Algorithm 1 of the paper: (w, every client's v, every client's α)."""
    w = weights_of(world.network)
    own, alpha = [dict(w) for _ in SIZES], [paper.mixture for _ in SIZES]
    for number in range(rounds):
        lr, trained = paper.lr * world.lr_decay**number, []
        for client in world.cohorts[number]:
            local, v, a = dict(w), own[client], alpha[client]
            for step, (x, y) in enumerate(world.batches(client, number, paper.local_epochs)):
                mixed = {name: a * v[name] + (1 - a) * local[name] for name in v}
                at_mixed = gradient(world.network, mixed, x, y)
                at_local = gradient(world.network, local, x, y)
                slope = sum(float(((v[n] - local[n]) * at_mixed[n]).sum()) for n in v)
                v = {name: value - lr * a * at_mixed[name] for name, value in v.items()}
                local = {name: value - lr * at_local[name] for name, value in local.items()}
                if step == 0:
                    a = min(1.0, max(0.0, a - lr * slope))
            own[client], alpha[client] = v, a
            trained.append(local)
        w = average(world, number, trained)
    return w, own, alpha


def assert_three_rounds_equal_the_replay(method: APFL) -> None:
    """Hold server, own models, shares and what is used against the replay."""
    made, world = stage(method, 3)
    progress = made.begin()
    for _ in range(3):
        advance(made, progress)
    w, own, alpha = replayed(world, method, 3)
    assert_same(progress.server["params"], w)
    assert shares(progress) == pytest.approx(alpha, abs=1e-9)
    assert len(set(alpha)) > 3
    x = made.federation.x
    evaluated = measure(made, progress, "personal", list(made.federation.test)).models
    for model, v, a in zip(evaluated, own, alpha, strict=True):
        mixed = {name: a * v[name] + (1 - a) * w[name] for name in w}
        output = method.predict(made.server.task, model, x)
        torch.testing.assert_close(output, world.output(mixed, x), rtol=0, atol=1e-9)


SETTINGS: dict[str, Any] = {"lr": 0.2, "local_epochs": 2, "mixture": 0.4}


def test_three_rounds_equal_a_replay() -> None:
    assert_three_rounds_equal_the_replay(APFL(**SETTINGS))


@dataclass(frozen=True, kw_only=True)
class MixedOutputs(APFL):
    """The mistake of mixing what the two models say, in training and in use."""

    def sgd_step(self, task: Task, loss: Loss | None = None, **changes: Any) -> SGDStep:
        def mixed(work: State, batch: Batch, round: Round) -> Losses:
            outputs = (task(work[key], batch.x)[0] for key in ("own", "params"))
            output = self.mix(work["mixture"]["share"], *outputs)
            return cross_entropy(output, batch.y, reduction="none"), {}

        return super().sgd_step(task, mixed if changes.pop("model", None) else loss, **changes)

    def mix(self, share: Tensor, own: Tensor, shared: Tensor) -> Tensor:
        return share * own + (1 - share) * shared

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        return {**message, "own": Part(client["own"]), "mixture": Part(client["mixture"])}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        own, shared = (task(personal[key].values, x)[0] for key in ("own", "params"))
        return self.mix(personal["mixture"].values["share"], own, shared)


@dataclass(frozen=True, kw_only=True)
class MixedOutputsInUse(MixedOutputs):
    """The same mistake in use alone."""

    def sgd_step(self, task: Task, loss: Loss | None = None, **changes: Any) -> SGDStep:
        return APFL.sgd_step(self, task, loss, **changes)


@pytest.mark.parametrize("wrong", [MixedOutputs, MixedOutputsInUse])
def test_mixing_outputs_instead_of_weights_is_noticed(wrong: type[APFL]) -> None:
    with pytest.raises(AssertionError):
        assert_three_rounds_equal_the_replay(wrong(**SETTINGS))
