"""pFedGate (2023): worked by hand, against a second text, and against what its release does."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import masquerade as mq
from masquerade.config.settings import Compute, Evaluate
from masquerade.core import (
    ClientInfo,
    Cohort,
    Message,
    Part,
    Round,
    Stage,
    State,
    Task,
    client_round,
)
from masquerade.core.random import normal
from masquerade.core.tree import stack
from masquerade.data import load, parse, partition
from masquerade.data.loader import BatchLoader
from masquerade.methods import PFedGate
from masquerade.methods.pfedgate.gate import Gate, Gated
from masquerade.models import build
from tests.papers import replay
from tests.papers.replay import assert_same, federation, network
from tests.support import advance, built, raises

DATA = federation()
TASK = Task(network()).with_example(DATA.x)
SMALL = PFedGate(local_epochs=1, blocks=3, density=0.6, gate_lr=0.3)
PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "clip": math.inf}
"""SGD as the paper says; the release's is the default."""


def at(kind: str = "train", phase: Any = "train") -> Round:
    """Return a round whose learning rates are not decayed."""
    one = torch.ones((), dtype=torch.float64)
    return Round(kind, phase, one, one, one)


def me(budget: float = 1.0) -> ClientInfo:
    return ClientInfo(4, 16, 77, budget)


def play(method: PFedGate, client: State, round: Round, task: Task = TASK) -> tuple[Message, State]:
    """Do the round of client 4, who has four whole batches of four."""
    loader = BatchLoader(DATA, 1, 4)

    def batches(stage: Stage) -> Any:
        return loader.batches(loader.shuffle(torch.tensor([4]), stage, round, 0), 0)

    return client_round(method, task, {"params": Part(task.initial)}, client, batches, round)


def total(part: Part) -> float:
    return part.kept() / TASK.parameters


# Equation 6 and Appendix A


def product_before(model: Gated, scores: Tensor, flags: Tensor) -> Tensor:
    return model.weights(scores, flags)


def product_after(model: Gated, scores: Tensor, flags: Tensor) -> Tensor:
    """As released: what is left out is multiplied by zero after the straight-through step."""
    return model.weights(scores, flags) * flags


Weigh = Callable[[Gated, Tensor, Tensor], Tensor]


def assert_straight_through(weigh: Weigh) -> None:
    # G = (0.7, 0.2), M = (0.5, 0.4), I* = (1, 0), and the slope of the loss by M' is (3, 5).
    # M' = M · I* = (0.5, 0). By M it is 3 · 1 and 5 · 0; by G, which stands for I*, 3 · 0.5 and
    # 5 · 0.4: the block that was left out learns whether it should have been.
    blocks = SMALL.gated(TASK).blocks
    model = Gated(TASK, blocks, Gate(4), alone=False, exact=False, scale=True, chunk=1)
    scores = torch.tensor([0.7, 0.2, 0.5, 0.4], dtype=torch.float64, requires_grad=True)
    found = weigh(model, scores, torch.tensor([True, False]))
    assert found.tolist() == [0.5, 0]
    (slope,) = torch.autograd.grad(found @ torch.tensor([3.0, 5.0]).double(), scores)
    assert slope.tolist() == pytest.approx([1.5, 2.0, 3.0, 0.0])


def test_the_gradient_goes_straight_through() -> None:
    assert_straight_through(product_before)


def test_a_product_after_the_straight_through_step_is_rejected() -> None:
    with pytest.raises(AssertionError):
        assert_straight_through(product_after)


def assert_more_important_wins(choose: Callable[[Gated, Tensor, Tensor], Tensor]) -> None:
    task = Task(nn.Linear(6, 1, bias=False).double()).with_example(torch.ones(1, 6))
    # ⌊6 · 0.2⌋ = 1 weight is always on; the others make two blocks, of three and two weights.
    # The budget 4/6 leaves room for three, so for one block: the second is worth 0.04 more.
    model = replace(SMALL, density=4 / 6).gated(task)
    scores = torch.tensor([0.0, 0.51, 0.549] * 2, dtype=torch.float64)
    found = choose(model, scores, model.blocks.room(4 / 6))
    assert found.tolist() == [True, False, True]


def test_scores_are_compared_as_real_numbers() -> None:
    assert_more_important_wins(lambda model, scores, room: model.choose(scores, room))


def test_scores_rounded_to_integers_are_rejected() -> None:
    with pytest.raises(AssertionError):
        assert_more_important_wins(
            lambda model, scores, room: model.choose((scores * 10).round(), room)
        )


@pytest.mark.parametrize("solver", ["greedy", "exact"])
@pytest.mark.parametrize("split", ["flat", "filter", "channel"])
def test_every_client_stays_within_its_own_budget(solver: str, split: str) -> None:
    method = replace(SMALL, solver=solver, split=split, density=0.7)
    for budget in (1.0, 0.5, 0.25):
        _, client = play(method, method.client_init(TASK, me(budget)), at())
        model = method.personalize(TASK, {"params": Part(TASK.initial)}, client, "personal")
        assert total(model["params"]) <= min(0.7, budget)
        # The room is used: no block of the smallest tensors, a weight or two, would still fit.
        assert total(model["params"]) > min(0.7, budget) - 0.25
    with raises("E202"):
        method.client_init(TASK, me(0.1))


def test_a_budget_in_flops_bounds_flops() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)).double()
    task = Task(module).with_example(torch.ones(2, 1, 6, 6))
    method = replace(SMALL, cost="flops", density=0.5)
    client = method.client_init(task, me())
    favors = torch.zeros_like(client["scores"])
    favors[3 : 3 + 3] = 1  # The convolution's blocks come first, but its bias is the favorite.
    model = method.gated(task)
    flags = model.choose(favors, client["room"])
    places = torch.tensor([16.0] * 18 + [16.0] * 2 + [1.0] * 96 + [1.0] * 3)
    kept = torch.cat([model.blocks.expand(flags, task.initial)[n].flatten() for n in task.initial])
    assert float(places[kept].sum()) <= 0.5 * float(places.sum())


# Appendix G


class WholeModels(PFedGate):
    """Averages whole models, as released."""

    def finish(self, *given: Any) -> tuple[Message, State]:
        message, client = super().finish(*given)
        return {"params": Part(message["params"].values)}, client


@dataclass(frozen=True, kw_only=True)
class StaleModels(PFedGate):
    """Averages over all clients, as released: the model of one that was not sampled is stale."""

    def aggregate(
        self, task: Any, server: Any, rows: Any, uploads: Any, cohort: Any, round: Any
    ) -> tuple[State, State]:
        mean, rows = super().aggregate(task, server, rows, uploads, cohort, round)
        share = 4 / 5
        old = server["params"]
        return {
            "params": {n: share * v + (1 - share) * old[n] for n, v in mean["params"].items()}
        }, rows


def assert_appendix_g(cls: type[PFedGate]) -> None:
    # Four clients with 1, 2, 3 and 4 samples, three blocks, θ = (10, 10, 10). They upload
    #   1: blocks 0, 2      2: blocks 1, 2      3: blocks 0, 1      4: blocks 0, 1, 2
    # with updates 1, 2, 3, 4 wherever they upload. Block 0 averages clients 1, 3 and 4:
    # (1 · 1 + 3 · 3 + 4 · 4) / 8 = 26/8; block 1 clients 2, 3, 4: (4 + 9 + 16) / 9 = 29/9;
    # block 2 clients 1, 2, 4: (1 + 4 + 16) / 7 = 3.
    method = cls(blocks=4, least=0.0)
    task = Task(nn.Linear(3, 1, bias=False).double()).with_example(torch.ones(1, 3))
    ten = {"weight": torch.full((1, 3), 10.0, dtype=torch.float64)}
    uploads = []
    for number, blocks in enumerate([(0, 2), (1, 2), (0, 1), (0, 1, 2)], start=1):
        client = method.client_init(task, me())
        work = method.start(task, {"params": Part(ten)}, client, at())
        chosen = torch.tensor([block in blocks for block in range(3)])
        moved = {"weight": ten["weight"] + torch.where(chosen, float(number), 0.0)}
        work |= {"params": moved, "chosen": chosen}
        uploads.append(method.finish(task, work, {"params": Part(ten)}, client, at())[0])
    cohort = Cohort(torch.arange(4), torch.tensor([1, 2, 3, 4]), 4, 5)
    server, _ = method.aggregate(task, {"params": ten}, {}, stack(uploads), cohort, at())
    expected = [10 + 26 / 8, 10 + 29 / 9, 13]
    assert server["params"]["weight"][0].tolist() == pytest.approx(expected)


def test_blocks_are_averaged_over_the_clients_that_sent_them() -> None:
    assert_appendix_g(PFedGate)


@pytest.mark.parametrize("wrong", [WholeModels, StaleModels])
def test_averages_of_whole_or_stale_models_are_rejected(wrong: type[PFedGate]) -> None:
    with pytest.raises(AssertionError):
        assert_appendix_g(wrong)


def test_an_upload_unites_the_blocks_of_a_round_and_holds_no_gate() -> None:
    method = replace(SMALL, local_epochs=4, density=0.4, gate_lr=3.0)
    upload, client = play(method, method.client_init(TASK, me()), at())
    assert upload.keys() == {"params"}
    assert upload["params"].values.keys() == TASK.initial.keys()
    # Masks differ from batch to batch, so that more than s_i of the model is sent, as q_i may be.
    assert 0.4 < total(upload["params"]) < 1
    model = method.personalize(TASK, {"params": Part(TASK.initial)}, client, "personal")
    assert total(model["params"]) <= 0.4


# Training


class Drifting(PFedGate):
    """Lets momentum and decay move what the batch did not choose, as released."""

    def sgd_step(self, *given: Any, **changes: Any) -> Any:
        return super().sgd_step(*given, **{**changes, "within": None})


def assert_nothing_else_moves(cls: type[PFedGate]) -> None:
    method = cls(local_epochs=1, blocks=3, density=0.3, momentum=0.9, weight_decay=0.1)
    upload, _ = play(method, method.client_init(TASK, me()), at())
    still = 0
    for name, value in upload["params"].values.items():
        held = upload["params"].held(name)
        assert held is not None
        assert torch.equal(value[~held], TASK.initial[name][~held])
        still += int((~held).sum())
    assert still


def test_blocks_that_were_not_chosen_do_not_move() -> None:
    assert_nothing_else_moves(PFedGate)


def test_blocks_that_drift_by_momentum_and_decay_are_rejected() -> None:
    with pytest.raises(AssertionError):
        assert_nothing_else_moves(Drifting)


class Swapped(PFedGate):
    """Gives the gate the model's rate and the model the gate's, as a released command does."""

    def sgd_step(self, *given: Any, **changes: Any) -> Any:
        return super().sgd_step(*given, **{**changes, "lr": changes["lr"][::-1]})


def assert_rates(cls: type[PFedGate]) -> None:
    method = cls(local_epochs=1, blocks=3, lr=0.1, gate_lr=0.0)
    begun = method.client_init(TASK, me())
    upload, client = play(method, begun, at())
    assert all(torch.equal(value, begun["gate"][name]) for name, value in client["gate"].items())
    moved = upload["params"].values
    assert any(not torch.equal(value, TASK.initial[name]) for name, value in moved.items())


def test_gate_and_model_have_their_own_rates() -> None:
    assert_rates(PFedGate)


def test_swapped_rates_are_rejected() -> None:
    with pytest.raises(AssertionError):
        assert_rates(Swapped)


def test_a_novel_client_trains_its_gate_alone() -> None:
    begun = SMALL.client_init(TASK, me())
    upload, client = play(SMALL, begun, at("adapt", ("personal", True)))
    assert_same(upload["params"].values, TASK.initial)
    assert any(not torch.equal(value, begun["gate"][n]) for n, value in client["gate"].items())
    assert not torch.equal(client["scores"], begun["scores"])
    # A client that took part, or never will, is used as it is.
    _, known = play(SMALL, client, at("adapt", ("personal", False)))
    assert torch.equal(known["scores"], client["scores"])
    assert SMALL.adapt(TASK, at("adapt", ("personal", False))) == ()


def test_a_client_that_never_trained_has_a_model_within_its_budget() -> None:
    client = SMALL.client_init(TASK, me(0.3))
    model = SMALL.personalize(TASK, {"params": Part(TASK.initial)}, client, "personal")
    assert 0 < total(model["params"]) <= 0.3
    assert SMALL.predict(TASK, model, DATA.x[:2]).isfinite().all()


class SecondText:
    """Algorithm 1 in plain PyTorch: a module as gate, autograd, loops over blocks.

    What is ours: the initial gates, how large blocks are, and which of them are always on.
    """

    def __init__(self, method: PFedGate, world: replay.World, task: Task, gates: Any) -> None:
        self.method, self.world = method, world
        blocks = method.gated(task).blocks
        self.sizes = blocks.sizes
        self.always = [int(block) for block in torch.nonzero(blocks.always)]
        self.gates = []
        for linear, bias in zip(gates["gate.linear"], gates["gate.bias"], strict=True):
            layer = nn.Linear(linear.shape[1], len(bias)).double()
            layer.weight.data, layer.bias.data = linear.clone(), bias.clone()
            self.gates.append(nn.Sequential(layer, nn.BatchNorm1d(len(bias)).double()))

    def knapsack(self, importance: Tensor) -> Tensor:
        """Fill the budget by importance; those that do not fit are skipped."""
        left, taken = self.method.density * float(self.sizes.sum()), torch.zeros(len(self.sizes))
        ranked = (importance.detach() * 2**16).round().neg().argsort(stable=True).tolist()
        for block in self.always + [block for block in ranked if block not in self.always]:
            if int(self.sizes[block]) <= left + 1e-9:
                taken[block], left = 1, left - int(self.sizes[block])
        return taken.double()

    def step(self, theta: Tensor, gate: nn.Module, x: Tensor, y: Tensor, decay: float) -> Any:
        """Return θ after lines 5 to 8, and I*; the gate moves in place."""
        gate.train(len(x) > 1)  # One sample has no variance.
        importance, weight = gate(x).sigmoid().mean(0).chunk(2)
        taken = self.knapsack(importance)
        gated = (taken - importance.detach() + importance) * weight
        theta = theta.requires_grad_()
        adapted = theta * torch.repeat_interleave(gated, self.sizes)
        output = torch.func.functional_call(self.world.network, self.unflat(adapted), x)
        slopes = torch.autograd.grad(cross_entropy(output, y), [theta, *gate.parameters()])
        for value, slope in zip(gate.parameters(), slopes[1:], strict=True):
            value.data -= self.method.gate_lr * decay * slope
        return (theta - self.method.lr * decay * slopes[0]).detach(), taken

    def unflat(self, flat: Tensor) -> replay.Weights:
        shapes = {n: v.shape for n, v in self.world.network.named_parameters()}
        pieces = flat.split([shape.numel() for shape in shapes.values()])
        return {n: p.view(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}

    def round(self, theta: Tensor, number: int) -> Tensor:
        """Return θ_g after a round (line 10, as Appendix G says)."""
        total, mass = torch.zeros_like(theta), torch.zeros_like(theta)
        for client in self.world.cohorts[number]:
            mine, union = theta.clone(), torch.zeros(len(self.sizes)).double()
            for epoch in range(self.method.local_epochs):
                for x, y in self.world.epoch(client, number, epoch):
                    decay = self.world.lr_decay**number
                    mine, taken = self.step(mine, self.gates[client], x, y, decay)
                    union = torch.maximum(union, taken)
            held = torch.repeat_interleave(union, self.sizes) * self.world.share(client)
            total, mass = total + held * mine, mass + held
        return torch.where(mass > 0, total / mass.clamp(min=1), theta)


def test_three_rounds_equal_a_second_text_of_algorithm_1() -> None:
    method = replace(SMALL, local_epochs=2, pre_norm=False, lr=0.2, **PLAIN)
    made, world = replay.stage(method, 3)
    progress = made.begin()
    second = SecondText(method, world, made.server.task, progress.clients.state["gate"])
    theta = torch.cat([value.flatten() for value in replay.weights_of(world.network).values()])
    for number in range(3):
        advance(made, progress)
        before, theta = theta, second.round(theta, number)
        assert not torch.equal(before, theta)
        assert_same(progress.server["params"], second.unflat(theta))


# In use


class BatchDependent(PFedGate):
    """Gates a test batch by its own mean, as released."""

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        gate = Part({**client["gate"], **client["running"], "room": client["room"]})
        return {"params": message["params"], "gate": gate}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        model, gate = self.gated(task), personal["gate"].values
        scores, _ = model.scores(gate, x)
        weights = model.weights(scores, model.choose(scores, gate["room"]))
        return model.output(personal["params"].values, weights, x)


class ReLUOnLogits(PFedGate):
    """Cuts off negative logits, as the released networks do once they are gated."""

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        return super().predict(task, personal, x).relu()


def used(cls: type[PFedGate], gating: str) -> tuple[PFedGate, Message]:
    method = cls(local_epochs=2, blocks=3, density=0.6, gate_lr=1.0, gating=gating, chunk=3)
    _, client = play(method, method.client_init(TASK, me()), at())
    return method, method.personalize(TASK, {"params": Part(TASK.initial)}, client, "personal")


def assert_alone_as_in_a_batch(cls: type[PFedGate], gating: str) -> None:
    method, personal = used(cls, gating)
    x = DATA.x[:7]
    each = torch.cat([method.predict(TASK, personal, sample[None]) for sample in x])
    torch.testing.assert_close(method.predict(TASK, personal, x), each)


@pytest.mark.parametrize("gating", ["batch", "sample", "client"])
def test_an_answer_does_not_depend_on_the_other_samples(gating: str) -> None:
    assert_alone_as_in_a_batch(PFedGate, gating)


def test_answers_that_depend_on_the_test_batch_are_rejected() -> None:
    with pytest.raises(AssertionError):
        assert_alone_as_in_a_batch(BatchDependent, "batch")


def assert_answers_are_logits(cls: type[PFedGate]) -> None:
    method, personal = used(cls, "batch")
    params, weights = personal["params"].values, personal["gate"].values["weights"]
    module = copy.deepcopy(TASK.module)
    spread = method.gated(TASK).blocks.expand(weights, params)
    module.load_state_dict({name: value * spread[name] for name, value in params.items()})
    expected = module(DATA.x[:20])
    assert bool((expected < 0).any())
    torch.testing.assert_close(method.predict(TASK, personal, DATA.x[:20]), expected)


def test_answers_are_the_logits_of_the_gated_network() -> None:
    assert_answers_are_logits(PFedGate)


def test_a_relu_on_logits_is_rejected() -> None:
    with pytest.raises(AssertionError):
        assert_answers_are_logits(ReLUOnLogits)


def test_a_model_in_use_has_the_mask_of_the_mean_scores_of_the_training_data() -> None:
    _, client = play(SMALL, SMALL.client_init(TASK, me()), at())
    gate = {**client["gate"], **client["running"]}
    scores, _ = SMALL.gated(TASK).gate(gate, DATA.x[DATA.train[4]])
    torch.testing.assert_close(client["scores"], scores.mean(0))


def test_a_client_wise_gate_reads_the_mean_input() -> None:
    method = replace(SMALL, gating="client")
    _, client = play(method, method.client_init(TASK, me()), at())
    gate = {**client["gate"], **client["running"]}
    pooled = DATA.x[DATA.train[4]].mean(0, keepdim=True)
    torch.testing.assert_close(client["scores"], method.gated(TASK).gate(gate, pooled)[0][0])


# One mask per sample


def test_every_sample_has_its_own_mask_and_chunks_change_nothing() -> None:
    method = replace(SMALL, gating="sample")
    found = [
        play(replace(method, chunk=n), method.client_init(TASK, me()), at()) for n in (1, 3, 99)
    ]
    for other, _ in found[1:]:
        assert_same(other["params"].values, found[0][0]["params"].values)
    model = method.gated(TASK)
    client = found[0][1]
    scores, _ = model.scores({**client["gate"], **client["running"]}, DATA.x[:9])
    flags = model.choose(scores, client["room"])
    assert len(set(map(tuple, flags.tolist()))) > 1
    assert bool(((flags * model.blocks.sizes).sum(1) <= 0.6 * TASK.parameters).all())


def test_the_gradient_of_samples_with_their_own_masks_is_that_of_a_plain_loop() -> None:
    model = replace(SMALL, gating="sample", chunk=2).gated(TASK)
    loader = BatchLoader(DATA, 1, 4)
    stage = Stage("train", lambda work, batch, round: work)
    batch: Any = next(loader.batches(loader.shuffle(torch.tensor([4]), stage, at(), 0), 0))
    weights = normal(5, (4, len(model.blocks.sizes)), torch.float64).requires_grad_()
    params = {name: value.clone().requires_grad_() for name, value in TASK.initial.items()}
    leaves = [*params.values(), weights]
    _, _, chunked = model.losses(params, weights, batch)
    losses = [
        cross_entropy(TASK(model.values(params, weight), x[None])[0], y[None])
        for weight, x, y in zip(weights, batch.x, batch.y, strict=True)
    ]
    plain = torch.stack(losses).mean()
    torch.testing.assert_close(chunked, plain)
    for left, right in zip(
        torch.autograd.grad(chunked, leaves), torch.autograd.grad(plain, leaves), strict=True
    ):
        torch.testing.assert_close(left, right)


def test_one_mask_per_sample_is_refused_where_a_network_couples_them() -> None:
    task = Task(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    with raises("E202", "BatchNorm"):
        PFedGate(gating="sample").server_init(task)


def test_a_gate_refuses_tokens_and_a_task_that_has_seen_no_data() -> None:
    with raises("E202", "int64"):
        SMALL.client_init(Task(network()).with_example(torch.ones(2, 3, dtype=torch.int64)), me())
    with raises("E202", "task.with_example"):
        SMALL.client_init(Task(network()), me())


# All of it


@pytest.mark.parametrize("gating", ["sample", "client"])
def test_engines_agree_also_where_samples_or_clients_are_gated(gating: str) -> None:
    ended = []
    for engine in ("loop", "batched"):
        method = replace(SMALL, gating=gating, chunk=3, momentum=0.5, solver="exact")
        rounds = {"rounds": 2, "batch_size": 4, "participation": 0.67}
        compute = Compute(engine=engine, clients_per_chunk=3)
        made = built(method, TASK, DATA, compute=compute, seed=5, **rounds)
        assert made.engine.name == engine
        progress = made.begin()
        advance(made, progress)
        ended.append(progress)
    assert_same(ended[0].server["params"], ended[1].server["params"])
    for left, right in zip(*(p.clients.state["gate"].values() for p in ended), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-9)


def test_digits_are_learned_within_every_budget() -> None:
    data = partition(load("digits"), 5, parse("pathological"), 1, (0.2, 0.1, 0.7))
    model, budgets = build("mlp", (1, 8, 8), 10, seed=1), [1.0, 0.3, 1.0, 0.3, 1.0]
    with torch.no_grad():
        right = [(model(data.x[own]).argmax(1) == data.y[own]).double() for own in data.test]
    untrained = 100 * float(torch.stack([own.mean() for own in right]).mean())
    method, looks = PFedGate(lr=0.3, gate_lr=0.3, local_epochs=1), Evaluate(every=4, degrees=(0,))
    result = mq.run(method, model, data, 6, evaluate=looks, budgets=budgets)
    (summary,) = result.summaries
    assert summary.accuracy.own.mean >= untrained + 10
    for id, budget in enumerate(budgets):
        part = result.client(id).parts["params"]
        assert part.kept() <= min(0.5, budget) * result.task.parameters
    # A histogram of the gates' weights at every look: 20 bins, in which all blocks are.
    assert [point.round for point in summary.history] == [4, 6]
    blocks = len(method.gated(result.task).blocks.sizes)
    for point in summary.history:
        counts = point.notes["gate_weights"]
        assert (len(counts), sum(counts)) == (20, pytest.approx(blocks))


def test_notes_count_the_gates_weights_in_twenty_bins() -> None:
    weights = torch.tensor([0.0, 0.04, 0.05, 0.52, 0.99, 1.0, 1.7])
    found = SMALL.notes(TASK, {"gate": Part({"weights": weights})})["gate_weights"].tolist()
    # 0 and 0.04 lie below 1/20, 0.05 in the next bin, 0.52 in the eleventh, the rest in the last.
    assert {place: count for place, count in enumerate(found) if count} == {
        0: 2,
        1: 1,
        10: 1,
        19: 3,
    }


def test_the_forward_pass_is_counted_by_what_is_chosen_and_weight_gradients_whole() -> None:
    method = replace(SMALL, density=0.6)
    training = method.plan(TASK, at())[0]
    work = method.start(TASK, {"params": Part(TASK.initial)}, method.client_init(TASK, me()), at())
    assert training.masks is not None
    idle, _ = training.masks(work)
    half = {**work, "load": torch.full_like(work["load"], 3.0), "steps": work["steps"] + 6}
    forward, backward = training.masks(half)
    assert backward == {}
    for name, share in forward.items():
        assert float(share.double().mean()) == pytest.approx(0.5), name
        assert float(idle[name].double().mean()) == 0
