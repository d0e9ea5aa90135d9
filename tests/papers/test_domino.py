"""Domino: worked by hand, against a second text of `adapt`, and the mistakes that it could make."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from masquerade.core import Part, Round, State, Task
from masquerade.core.round import Batch
from masquerade.methods import Domino, FedDST
from masquerade.rules.label_mix import label_mix
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests.papers.reference import Learner
from tests.papers.replay import World, assert_same, stage, weights_of
from tests.papers.small import at, layer, rows
from tests.support import advance, measure, raises

SPARSE: dict[str, Any] = {
    "lr": 0.2,
    "local_epochs": 2,
    "readjust": 0.5,
    "readjust_every": 2,
    "densities": "uniform",
}
ROUNDS = 3


def trained(**settings: Any) -> tuple[Simulation, World, RunState]:
    """Train on the small federation; return what evaluates it, its world, and its end."""
    made, world = stage(Domino(**SPARSE, **settings), ROUNDS)
    progress = made.begin()
    for _ in range(ROUNDS):
        advance(made, progress)
    return made, world, progress


def models(made: Simulation, progress: RunState, view: str = "personal") -> list[Any]:
    """Return what every client uses."""
    return list(measure(made, progress, view, list(made.federation.test)).models)


def second_text(
    world: World,
    shared: Mapping[str, Tensor],
    keep: Mapping[str, Tensor],
    client: int,
    share: float,
) -> tuple[dict[str, Tensor], Tensor]:
    """Do `adapt` once more: a module, autograd, counting and sorting by hand."""
    counts = Counter(world.federation.y[world.federation.train[client]].tolist())
    smoothed = torch.tensor([counts[each] + 1.0 for each in range(3)], dtype=torch.float64)
    mix = smoothed / smoothed.sum()

    class Adjusted(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + mix.log()

    moves = {
        name: keep.get(name, torch.ones_like(value)).double() for name, value in shared.items()
    }
    learner = Learner(world, dict(shared), 0.3 * world.lr_decay**ROUNDS, 0.0, 0.0)
    plain = learner.module
    learner.module = Adjusted(plain)
    learner.past = {f"inner.{name}": value for name, value in learner.past.items()}
    inside = {f"inner.{name}": value for name, value in moves.items()}
    for epoch in range(2):
        for x, y in world.epoch(client, ROUNDS, epoch, "adapt"):
            learner.step(x, y, inside)
    tuned = weights_of(plain)
    count = int(share * sum(int(value.sum()) for value in moves.values()))
    ranked = sorted(
        ((float((tuned[name] - shared[name]).abs().flatten()[place])), name, place)
        for name in shared
        for place in range(shared[name].numel())
    )
    own = {name: value.clone() for name, value in shared.items()}
    for _, name, place in ranked[len(ranked) - count :]:
        own[name].view(-1)[place] = tuned[name].flatten()[place]
    return own, mix.log()


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_adapt_equals_its_second_text(share: float) -> None:
    made, world, progress = trained(personal=share, tune_lr=0.3, tune_epochs=2)
    server = progress.server
    for client, model in enumerate(models(made, progress)):
        own, log_mix = second_text(world, server["params"], server["keep"], client, share)
        assert_same(model["params"].values, own)
        assert_same(model["mix"].values, {"log": log_mix})
        # What is added here is what rules on outputs take out.
        labels = world.federation.y[world.federation.train[client]]
        assert_same(model["mix"].values, {"log": label_mix(labels, 3).log()})
        x = world.federation.x[world.federation.test[client]]
        answered = made.server.method.predict(made.server.task, model, x)
        torch.testing.assert_close(answered, world.output(own, x) + log_mix)


def test_training_is_that_of_feddst_and_nothing_personal_is_sent() -> None:
    _, _, progress = trained(tune_lr=0.3)
    other, _ = stage(FedDST(**SPARSE), ROUNDS)
    plain = other.begin()
    for _ in range(ROUNDS):
        advance(other, plain)
    assert_same(progress.server["params"], plain.server["params"], 0)
    assert progress.costs["train"] == plain.costs["train"]


def test_a_round_by_hand() -> None:
    # Two inputs, two classes; three samples, of class 0, 0, 1: with one more of each, the mix is
    # 3/5 and 2/5. All weights are 0, so that logits + log mix answer (3/5, 2/5) to each sample.
    # One full step of rate 1 on x = (1, 0) of class 0, twice, and x = (0, 1) of class 1:
    #   column 0: mean of p − y over three samples, 2 · (3/5 − 1, 2/5) / 3 = (−4/15, 4/15)
    #   column 1: (3/5, 2/5 − 1) / 3 = (3/15, −3/15)
    # So weights become (4/15, −3/15; −4/15, 3/15). A half of four is kept: the column 0.
    task = layer(rows([0, 0], [0, 0]))
    method = Domino(sparsity=0.0, personal=0.5, tune_lr=1.0, tune_epochs=1)
    here = at(("personal", False), kind="adapt")
    message = {"params": Part(task.initial, {})}
    work = method.start(task, message, {}, here)
    x, y = rows([1, 0], [1, 0], [0, 1]), torch.tensor([0, 0, 1])
    batch = Batch(x, y, None, torch.tensor(1))
    work = played(method, task, work, batch, here)
    _, held = method.finish(task, work, message, {}, here)
    personal = method.personalize(task, message, held, "personal")
    expected = rows([4 / 15, 0], [-4 / 15, 0])
    torch.testing.assert_close(personal["params"].values["weight"], expected)
    # In use, an input of zeros is answered by the mix alone.
    answer = method.predict(task, personal, rows([0, 0])).softmax(-1)
    torch.testing.assert_close(answer, rows([3 / 5, 2 / 5]))


def played(method: Domino, task: Task, work: State, batch: Batch, here: Round) -> State:
    """Take one step of every stage of `adapt`."""
    for each in method.stages(task, here):
        work = each.then(each.step(each.prepare(work, here), batch, here), here)
    return work


def test_padding_is_not_counted() -> None:
    task = layer(rows([0, 0], [0, 0]))
    method, here = Domino(sparsity=0.0), at(("personal", False), kind="adapt")
    work = method.start(task, {"params": Part(task.initial, {})}, {}, here)
    real = torch.tensor([True, True, False])
    batch = Batch(rows([1, 0], [1, 0], [0, 1]), torch.tensor([0, 0, 1]), real, torch.tensor(1))
    count, _ = method.stages(task, here)
    assert count.step(work, batch, here)["counts"].tolist() == [2, 0]


def test_without_personal_weights_the_mix_is_all_that_differs() -> None:
    made, _, progress = trained(personal=0.0, tune_lr=0.3)
    mixes = []
    for model in models(made, progress):
        assert_same(model["params"].values, progress.server["params"], 0)
        mixes.append(model["mix"].values["log"])
    assert not all(torch.equal(mix, mixes[0]) for mix in mixes)
    for model in models(made, progress, "global"):
        assert_same(model["params"].values, progress.server["params"], 0)
        assert "mix" not in model


def test_without_the_mix_it_is_plain_tuning() -> None:
    made, world, progress = trained(personal=1.0, tune_lr=0.3, tune_epochs=1, label_mix=False)
    server, moves = progress.server, progress.server["keep"]
    inside = {name: moves.get(name, torch.ones(())).double() for name in server["params"]}
    for client, model in enumerate(models(made, progress)):
        learner = Learner(world, dict(server["params"]), 0.3 * world.lr_decay**ROUNDS, 0.0, 0.0)
        for x, y in world.epoch(client, ROUNDS, 0, "adapt"):
            learner.step(x, y, inside)
        assert_same(model["params"].values, weights_of(learner.module))
        assert "mix" not in model


def test_the_model_in_use_is_the_mean_of_the_last_rounds() -> None:
    # Of three rounds, a third is the last alone, two thirds are two, and all are three.
    for share, last in ((1 / 3, 1), (0.6, 1), (2 / 3, 2), (1.0, 3)):
        made, _ = stage(Domino(**SPARSE | {"readjust": 0.0}, average=share), ROUNDS)
        progress, seen = made.begin(), []
        for _ in range(ROUNDS):
            advance(made, progress)
            seen.append(progress.server["params"])
        used, *_ = models(made, progress, "global")
        expected = {n: torch.stack([one[n] for one in seen[-last:]]).mean(0) for n in seen[0]}
        assert_same(used["params"].values, expected)
    # Training goes on from the model of the last round.
    assert not torch.equal(seen[-1]["0.weight"], expected["0.weight"])


def test_a_regression_has_no_label_mix() -> None:
    task = Task(nn.Linear(2, 1), loss=lambda output, y: (output[:, 0] - y) ** 2)
    with raises("E202", "label_mix"):
        Domino().server_init(task)
    assert Domino(label_mix=False).server_init(task)["keep"]


# Mistakes


def test_training_without_the_mix_and_answering_with_it_is_noticed() -> None:
    class Twice(Domino):
        """The mistake of counting the mix twice: weights learn it, and it is added once more."""

        def _adjusted_loss(self, task: Task) -> Any:
            def loss(work: State, batch: Batch, round: Round) -> Any:
                logits, buffers = task.outputs(work["params"], batch)
                return cross_entropy(logits, batch.y, reduction="none"), buffers

            return loss

    made, world = stage(Twice(**SPARSE, personal=1.0, tune_lr=0.3, tune_epochs=2), ROUNDS)
    progress = made.begin()
    for _ in range(ROUNDS):
        advance(made, progress)
    server, (model, *_) = progress.server, models(made, progress)
    own, _ = second_text(world, server["params"], server["keep"], 0, 1.0)
    with pytest.raises(AssertionError):
        assert_same(model["params"].values, own)
