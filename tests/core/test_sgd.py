"""Gradients and descent: torch's own SGD to the last digits, and masks that freeze."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import Batch, MetricStep, Round, Task, gradient, sgd_step, tree
from masquerade.core import sgd as train
from masquerade.core.random import normal
from masquerade.core.round import Stage, steps
from masquerade.core.sgd import Losses, in_chunks
from masquerade.core.tree import State, Tree
from masquerade.core.vmap import over
from masquerade.engine.vmapped import mapped as over_clients
from tests.support import federation, network, raises

RATE, DECAY = 0.3, 0.5
"""A learning rate, and what a round multiplies it by."""


def now(decay: float = DECAY) -> Round:
    scalar = torch.tensor(decay, dtype=torch.float64)
    return Round("train", "train", torch.tensor(2.0), torch.tensor(8.0), scalar)


def batches(count: int) -> list[Batch]:
    data = federation()
    return [
        Batch(data.x[i * 4 : i * 4 + 4], data.y[i * 4 : i * 4 + 4], None, torch.tensor(i))
        for i in range(count)
    ]


def initial() -> State:
    return {"params": Task(network()).initial}


def advance(step: Any, work: State, count: int) -> State:
    work = step.prepare(work, now())
    for batch in batches(count):
        work = step(work, batch, now())
    return work


def clip_exactly(parameters: list[nn.Parameter], largest: float) -> None:
    """Clip by torch's function, less the 1e-6 that it adds to the norm."""
    norm = float(nn.utils.clip_grad_norm_(parameters, math.inf))
    nn.utils.clip_grad_norm_(parameters, largest * (1 + 1e-6 / norm))


def by_torch(count: int, momentum: float, decay: float, clip: float) -> Tree:
    """The same training as anybody writes it."""
    model = network()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE * DECAY, momentum=momentum, weight_decay=decay)
    for batch in batches(count):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(batch.x.double()), batch.y))
        if clip < math.inf:
            clip_exactly(parameters, clip)
        optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("clip", [math.inf, 0.4, 1.2])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_descent_is_the_sgd_of_torch(momentum: float, decay: float, clip: float) -> None:
    step = sgd_step(Task(network()), lr=RATE, momentum=momentum, weight_decay=decay, clip=clip)
    ours = advance(step, initial(), 7)["params"]
    for name, value in by_torch(7, momentum, decay, clip).items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-12)


def test_a_clip_of_1_2_is_reached_by_some_gradients_only() -> None:
    """Otherwise the comparison above would not see both sides of the bound."""
    task, params = Task(network()), initial()["params"]
    norms = [
        float(sum(grad.square().sum() for grad in slope(task, params, batch).values())) ** 0.5
        for batch in batches(7)
    ]
    assert 0.4 < min(norms) < 1.2 < max(norms)


def test_clipping_is_that_of_torch_but_for_its_epsilon() -> None:
    task, batch = Task(network()), batches(1)[0]
    step = sgd_step(task, lr=1.0, clip=0.25)
    before = initial()
    moved = step(before, batch, now(1.0))["params"]
    model = network()
    torch.autograd.backward(nn.functional.cross_entropy(model(batch.x.double()), batch.y))
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for name, value in model.named_parameters():
        assert value.grad is not None
        change = before["params"][name] - moved[name]
        torch.testing.assert_close(change, value.grad, rtol=1e-5, atol=0)


def slope(task: Task, params: Tree, batch: Batch) -> Tree:
    grads, _, _ = gradient(lambda trees: task.loss(trees["params"], batch), {"params": params})
    return grads["params"]


def some(seed: int) -> Tree:
    """A mask of about half of every tensor, but for one that is whole."""
    params = Task(network()).initial
    return {
        name: normal(seed + place, tuple(value.shape)) > 0
        for place, (name, value) in enumerate(params.items())
        if name != "2.bias"
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_outside_its_mask_nothing_moves_and_no_state_builds_up(momentum: float) -> None:
    keep = some(10)
    step = sgd_step(
        Task(network()),
        lr=RATE,
        within=lambda work: keep,
        momentum=momentum,
        weight_decay=0.1,
        clip=1.0,
    )
    before = initial()
    after = advance(step, before, 5)
    for name, old in before["params"].items():
        inside = keep.get(name, torch.ones_like(old, dtype=torch.bool))
        new = after["params"][name]
        assert torch.equal(new[~inside], old[~inside])
        assert (new[inside] != old[inside]).any()
        if momentum:
            velocity = after["momentum"]["params"][name]
            assert not velocity[~inside].any()
            assert velocity[inside].any()


def test_outside_its_mask_odd_numbers_keep_their_bits() -> None:
    def loss(work: State, batch: Batch, round: Round) -> Losses:
        return None, {}, work["params"]["w"][0].square()

    odd = torch.tensor([1.0, -0.0, 0.0, math.nan, math.inf, 1e-310], dtype=torch.float64)
    keep = {"w": torch.arange(6) == 0}
    step = sgd_step(
        Task(nn.Linear(1, 1)),
        loss,
        lr=0.1,
        within=lambda work: keep,
        momentum=0.9,
        weight_decay=0.1,
    )
    work = step.prepare({"params": {"w": odd}}, now())
    batch = batches(1)[0]
    looped = step(work, batch, now())
    mapped = over_clients(1, lambda w: step({**work, "params": {"w": w}}, batch, now()), odd[None])
    for found in (looped["params"]["w"], mapped["params"]["w"][0]):
        assert torch.equal(found.view(torch.int64)[1:], odd.view(torch.int64)[1:])
        assert found[0] < 1


def test_a_masked_step_equals_the_step_of_a_smaller_problem() -> None:
    """One Linear layer, half of its weights frozen at their values: work it out by hand."""
    task = Task(nn.Linear(2, 1, bias=False), loss=lambda output, y: (output[:, 0] - y).square() / 2)
    work: State = {"params": {"weight": torch.tensor([[1.0, 3.0]])}}
    keep = {"weight": torch.tensor([[True, False]])}
    step = sgd_step(task, lr=0.1, within=lambda work: keep, momentum=0.5, weight_decay=0.2)
    batch = Batch(torch.tensor([[2.0, 1.0]]), torch.tensor([1.0]), None, torch.tensor(0))
    work = step(step.prepare(work, now()), batch, now(1.0))
    # Output 2·1 + 1·3 = 5, error 4, slope 4·2 = 8, with decay 8 + 0.2·1 = 8.2; 1 − 0.82 = 0.18.
    torch.testing.assert_close(work["params"]["weight"], torch.tensor([[0.18, 3.0]]))
    torch.testing.assert_close(work["momentum"]["params"]["weight"], torch.tensor([[8.2, 0.0]]))
    work = step(work, batch, now(1.0))
    # Output 0.36 + 3 = 3.36, error 2.36, slope 4.72 + 0.2·0.18 = 4.756; momentum
    # 0.5·8.2 + 4.756 = 8.856; 0.18 − 0.8856 = −0.7056.
    torch.testing.assert_close(work["params"]["weight"], torch.tensor([[-0.7056, 3.0]]))


def test_momentum_does_not_leak_when_a_mask_moves() -> None:
    first, second = some(10), some(30)
    step = sgd_step(Task(network()), lr=RATE, within=lambda work: work["keep"], momentum=0.9)
    work = advance(step, {**initial(), "keep": first}, 3)
    moved = step({**work, "keep": second}, batches(1)[0], now())
    back = step({**moved, "keep": first}, batches(1)[0], now())
    for name, keep in first.items():
        left = keep & ~second[name]
        assert work["momentum"]["params"][name][left].any()
        assert not moved["momentum"]["params"][name][left].any()
        # What comes back starts from rest: its momentum is the gradient of this step alone.
        alone = slope(Task(network()), moved["params"], batches(1)[0])[name]
        torch.testing.assert_close(back["momentum"]["params"][name][left], alone[left])


def test_a_gradient_that_is_masked_out_cannot_poison_the_norm() -> None:
    def loss(work: State, batch: Batch, round: Round) -> Losses:
        return None, {}, work["params"]["w"].sqrt().sum()

    task = Task(nn.Linear(1, 1))
    work: State = {"params": {"w": torch.tensor([0.0, 4.0])}}
    keep = {"w": torch.tensor([False, True])}
    step = sgd_step(task, loss, lr=1.0, within=lambda work: keep, clip=0.125)
    # The slope at 0 is infinite, at 4 it is 1/4, clipped to 1/8.
    assert step(work, batches(1)[0], now(1.0))["params"]["w"].tolist() == [0.0, 3.875]


def two_trees(work: State, batch: Batch, round: Round) -> Losses:
    """(a·b)²/2, whose slopes are a·b² and a²·b."""
    return None, {}, (work["a"]["w"] * work["b"]["w"]).square().sum() / 2


def test_several_trees_go_down_at_their_own_rates() -> None:
    task = Task(nn.Linear(1, 1))
    work: State = {
        "a": {"w": torch.tensor([2.0])},
        "b": {"w": torch.tensor([3.0])},
        "c": {"w": torch.tensor([5.0])},
    }
    step = sgd_step(task, two_trees, ("a", "b"), lr=(0.1, 0.01))
    moved = step(work, batches(1)[0], now(0.5))
    # 2 − 0.5·0.1·18 = 1.1 and 3 − 0.5·0.01·12 = 2.94; both from the values before the step.
    torch.testing.assert_close(moved["a"]["w"], torch.tensor([1.1]))
    torch.testing.assert_close(moved["b"]["w"], torch.tensor([2.94]))
    assert moved["c"] is work["c"]


def test_one_rate_serves_all_trees() -> None:
    task = Task(nn.Linear(1, 1))
    work: State = {"a": {"w": torch.tensor([2.0])}, "b": {"w": torch.tensor([3.0])}}
    step = sgd_step(task, two_trees, ("a", "b"), lr=0.1, momentum=0.5)
    moved = step(step.prepare(work, now()), batches(1)[0], now(1.0))
    torch.testing.assert_close(moved["a"]["w"], torch.tensor([0.2]))
    torch.testing.assert_close(moved["b"]["w"], torch.tensor([1.8]))
    assert moved["momentum"]["a"]["w"].tolist() == [18.0]
    assert moved["momentum"]["b"]["w"].tolist() == [12.0]


def test_the_gradient_that_is_left_is_that_of_the_last_batch_unmasked_and_unclipped() -> None:
    task, keep = Task(network()), some(10)
    step = sgd_step(
        task, lr=RATE, within=lambda work: keep, clip=0.01, weight_decay=0.5, gradient=True
    )
    work = step.prepare(initial(), now())
    assert not any(value.any() for value in work["gradient"]["params"].values())
    first, second = batches(2)
    work = step(work, first, now())
    after = step(work, second, now())
    for name, value in slope(task, work["params"], second).items():
        assert torch.equal(after["gradient"]["params"][name], value)


def test_momentum_and_gradient_that_are_there_are_kept() -> None:
    step = sgd_step(Task(network()), lr=RATE, momentum=0.9, gradient=True)
    work = advance(step, initial(), 2)
    again = step.prepare(work, now())
    assert again["momentum"]["params"] is work["momentum"]["params"]
    assert again["gradient"]["params"] is work["gradient"]["params"]


def test_a_plain_step_leaves_no_state_behind() -> None:
    assert advance(sgd_step(Task(network()), lr=RATE), initial(), 1).keys() == {"params"}


def test_projection_comes_after_the_step() -> None:
    def nonnegative(work: State) -> State:
        return {**work, "params": tree.each(lambda value: value.clamp(min=0), work["params"])}

    task, batch = Task(network()), batches(1)[0]
    plain = sgd_step(task, lr=RATE)(initial(), batch, now())
    projected = sgd_step(task, lr=RATE, project=nonnegative)(initial(), batch, now())
    for name, value in plain["params"].items():
        assert torch.equal(projected["params"][name], value.clamp(min=0))


def test_a_step_returns_buffers_and_does_not_move_them_downhill() -> None:
    task = Task(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double())
    step = sgd_step(task, lr=RATE, momentum=0.9, weight_decay=0.1)
    work = step.prepare({"params": task.initial}, now())
    assert not any("running" in name for name in work["momentum"]["params"])
    after = step(work, batches(1)[0], now())["params"]
    assert after.keys() == task.initial.keys()
    assert int(after["1.num_batches_tracked"]) == 1
    hidden, _ = Task(nn.Linear(6, 4).double())(
        {"weight": task.initial["0.weight"], "bias": task.initial["0.bias"]}, batches(1)[0].x
    )
    # BatchNorm moves its mean by a tenth of the way to the batch's.
    torch.testing.assert_close(after["1.running_mean"], hidden.mean(0).detach() * 0.1)
    assert int(task.initial["1.num_batches_tracked"]) == 0


def test_a_step_touches_none_of_its_inputs() -> None:
    keep = some(10)
    step = sgd_step(
        Task(network()), lr=RATE, within=lambda work: keep, momentum=0.9, clip=1.0, gradient=True
    )
    work = advance(step, initial(), 2)
    before = tree.transform(torch.clone, work)
    step(work, batches(1)[0], now())
    for left, right in zip(tree.leaves(before), tree.leaves(work), strict=True):
        assert torch.equal(left, right)
        assert not right.requires_grad


Function = Callable[[dict[str, Tree]], tuple[Tensor, Any]]


def loss_of(task: Task, batch: Batch) -> Function:
    return lambda trees: task.loss(trees["params"], batch)


def test_the_loop_and_a_map_over_clients_find_the_same_gradients() -> None:
    task = Task(network())
    clients = [tree.each(lambda value, k=k: value * (1 + 0.1 * k), task.initial) for k in range(3)]
    given = batches(3)
    looped = [
        gradient(loss_of(task, b), {"params": p}) for p, b in zip(clients, given, strict=True)
    ]
    mapped = over_clients(
        3,
        lambda p, b: gradient(loss_of(task, b), {"params": p})[:2],
        tree.stack(clients),
        tree.stack(given),
    )
    for place, (grads, value, _) in enumerate(looped):
        torch.testing.assert_close(mapped[1][place], value, rtol=1e-12, atol=1e-12)
        for name, grad in grads["params"].items():
            torch.testing.assert_close(
                mapped[0]["params"][name][place], grad, rtol=1e-9, atol=1e-12
            )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_mapped_step_equals_the_looped_one(momentum: float) -> None:
    keep = some(10)
    step = sgd_step(
        Task(network()),
        lr=RATE,
        within=lambda work: keep,
        momentum=momentum,
        weight_decay=0.1,
        clip=0.5,
    )
    work = step.prepare(initial(), now())
    given = batches(3)
    looped = [step(work, batch, now()) for batch in given]
    mapped = over_clients(3, lambda batch: step(work, batch, now()), tree.stack(given))
    for left, right in zip(tree.leaves(tree.stack(looped)), tree.leaves(mapped), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mapped", [False, True])
def test_what_the_loss_does_not_read_has_no_slope(mapped: bool) -> None:
    trees = {"params": {"used": torch.tensor([2.0]), "unused": torch.tensor([1.0, 1.0])}}

    def function(trees: dict[str, Tree]) -> tuple[Tensor, Tree]:
        return trees["params"]["used"].square().sum(), {"seen": trees["params"]["used"] + 1}

    if mapped:
        given = tree.transform(lambda one: one[None], trees)
        stacked = over_clients(1, lambda own: gradient(function, own), given)
        grads, value, extra = tree.take(stacked, 0)
    else:
        grads, value, extra = gradient(function, trees)
    assert grads["params"]["used"].tolist() == [4.0]
    assert grads["params"]["unused"].tolist() == [0.0, 0.0]
    assert float(value) == 4.0
    assert extra["seen"].tolist() == [3.0]
    assert not extra["seen"].requires_grad


def test_gradients_are_found_where_gradients_are_switched_off() -> None:
    with torch.no_grad():
        found = slope(Task(network()), initial()["params"], batches(1)[0])
    assert all(value.any() for value in found.values())


def test_a_map_ends_even_after_an_error() -> None:
    mapped: list[bool] = []

    def function(trees: dict[str, Tree]) -> tuple[Tensor, Tree]:
        # Under a map tensors are wrapped for `torch.func.grad`; in the loop they are plain leaves.
        mapped.append(torch._C._functorch.is_gradtrackingtensor(trees["p"]["w"]))
        return trees["p"]["w"].sum(), {}

    trees = {"p": {"w": torch.ones(1)}}

    def fail() -> None:
        with over(1):
            gradient(function, trees)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    gradient(function, trees)
    assert mapped == [True, False]


def test_stages_that_move_different_trees_have_a_momentum_and_gradient_each() -> None:
    """As a method with a shared and a personal model has: the second stage finds the first's."""
    task = Task(network())
    shared = sgd_step(task, lr=RATE, momentum=0.9, gradient=True)
    personal = sgd_step(task, on=("own",), lr=RATE, momentum=0.9, gradient=True)
    both = {**initial(), "own": tree.each(lambda value: value * 0.5, task.initial)}
    after = advance(personal, advance(shared, both, 3), 3)
    alone = advance(shared, initial(), 3)
    apart = advance(personal, {"own": both["own"]}, 3)
    for key in ("momentum", "gradient"):
        assert after[key].keys() == {"params", "own"}
        for name, value in alone[key]["params"].items():
            assert torch.equal(after[key]["params"][name], value)
            assert torch.equal(after[key]["own"][name], apart[key]["own"][name])


def test_a_slope_is_the_gradient_of_what_training_moves() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    model[0].bias.requires_grad_(False)
    task, (batch,) = Task(model), batches(1)
    found, buffers = train.loss_gradient(task, task.initial, batch)
    model.train()
    torch.autograd.backward(nn.functional.cross_entropy(model(batch.x.double()), batch.y))
    expected = {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(buffers["1.running_mean"], model[1].running_mean)


@pytest.mark.parametrize(
    ("better", "passes"), [("higher", [True, False]), ("lower", [False, True])]
)
def test_looking_averages_the_metric_over_the_real_samples(better: str, passes: list[bool]) -> None:
    def answer(output: Tensor, y: Tensor) -> Tensor:
        return output[:, 0]

    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1)
    task = Task(model, metric=answer, better=better)
    metric = MetricStep(task)
    work = metric.prepare({"params": task.initial}, now())
    # 1 and 3 of the first batch, whose third sample is padding, and 8: the mean is 4.
    for values, valid in (([1.0, 3.0, 99.0], [True, True, False]), ([8.0], None)):
        x = torch.tensor(values)[:, None]
        real = None if valid is None else torch.tensor(valid)
        work = metric(work, Batch(x, x, real, torch.tensor(0)), now())
    assert (float(work["score"]), float(work["seen"])) == (12, 3)
    assert [bool(metric.passes(work, bar)) for bar in (3.9, 4.1)] == passes
    assert not metric.passes(work, 4.0)


@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_sum_in_chunks_has_the_gradient_of_the_whole(chunk: int, mapped: bool) -> None:
    shared = {"w": normal(1, (3,), torch.float64)}
    own, given = (normal(key, (5, 3), torch.float64) for key in (2, 3))

    def whole(shared: Tree, own: Tensor, given: Tensor) -> Tensor:
        return ((own * given).tanh() @ shared["w"]).square().sum()

    def of(trees: dict[str, Tree], pieces: bool) -> tuple[Tensor, Tree]:
        rows = trees["own"]["rows"] * 2
        if pieces:
            return in_chunks(whole, trees["shared"], rows, given, chunk), {}
        return whole(trees["shared"], rows, given), {}

    trees = {"shared": shared, "own": {"rows": own}}

    def find(_: Tensor, pieces: bool) -> tuple[dict[str, Tree], Tensor]:
        return gradient(lambda moved: of(moved, pieces), trees)[:2]

    if mapped:
        found, expected = (
            over_clients(2, lambda i, p=p: find(i, p), torch.arange(2)) for p in (True, False)
        )
    else:
        found, expected = (find(torch.tensor(0), p) for p in (True, False))
    torch.testing.assert_close(found, expected)


def test_a_tree_without_anything_that_moves_is_left_as_it_is():
    task = Task(nn.Linear(2, 2))
    step = sgd_step(
        task,
        model=lambda work: work["params"],
        on=("nothing", "params"),
        lr=0.1,
        momentum=0.9,
        clip=1.0,
    )
    round = Round("train", None, *[torch.ones(())] * 3)
    work = step.prepare({"params": task.initial, "nothing": {}}, round)
    batch = Batch(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), None, torch.tensor(0))
    moved = step(work, batch, round)
    assert moved["nothing"] == {}
    assert not torch.equal(moved["params"]["weight"], task.initial["weight"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "clip": 0.1, "masked": True, "gradient": True},
        {"proximal": 0.5, "masked": True},
    ],
    ids=str,
)
def test_steps_in_place_have_the_bits_of_others_and_leave_what_was_given(
    settings: dict[str, Any],
) -> None:
    settings = dict(settings)
    masked = settings.pop("masked", False)
    keep = tree.each(lambda value: value > 0, initial()["params"])
    step = sgd_step(
        Task(network()), lr=RATE, within=(lambda work: keep) if masked else None, **settings
    )
    work = initial()
    work["anchor"] = tree.each(lambda value: value * 0.5, work["params"])
    before = tree.transform(torch.clone, work)
    stage = Stage("train", step)
    found = steps(stage, step.prepare(work, now()), batches(4), now())
    tree.transform(
        lambda old, new: torch.testing.assert_close(old, new, rtol=0, atol=0), before, work
    )
    expected, one = tree.named(advance(step, work, 4)), tree.named(found)
    assert one.keys() == expected.keys()
    assert all(torch.equal(one[name], value) for name, value in expected.items())


def test_a_second_step_writes_where_the_first_one_did() -> None:
    step = sgd_step(Task(network()), lr=RATE)
    first = step(initial(), batches(1)[0], now())
    places = [value.data_ptr() for value in tree.leaves(first)]
    second = step.again(first, batches(2)[1], now())
    assert [value.data_ptr() for value in tree.leaves(second)] == places


def test_a_projection_is_never_written_over() -> None:
    """What it returns may be held by others: here, the anchor itself."""
    anchor = initial()["params"]
    step = sgd_step(Task(network()), lr=RATE, project=lambda work: {**work, "params": anchor})
    before = tree.transform(torch.clone, anchor)
    steps(Stage("train", step), initial(), batches(3), now())
    assert all(torch.equal(anchor[name], value) for name, value in before.items())


def test_a_pull_is_the_gradient_of_half_the_squared_distance() -> None:
    task = Task(network())
    anchor = tree.each(lambda value: value * 0.5 + 1, task.initial)
    work = {"params": task.initial, "anchor": anchor}

    def pulled(work: State, batch: Batch, round: Round) -> Losses:
        pull = 0.7 / 2 * tree.squared_distance(work["params"], work["anchor"])
        return *task.losses(work["params"], batch), pull

    known = advance(sgd_step(task, lr=RATE, proximal=0.7), work, 3)["params"]
    for name, value in advance(sgd_step(task, pulled, lr=RATE), work, 3)["params"].items():
        torch.testing.assert_close(known[name], value, rtol=1e-12, atol=1e-12)


def mean_and_step(loss: train.Loss, batch: Batch) -> Tree:
    task = Task(network())
    moved: Tree = sgd_step(task, loss, lr=RATE)(initial(), batch, now())["params"]
    return moved


def padded(batch: Batch, count: int) -> Batch:
    """The batch with samples behind it that are not real."""
    x = torch.cat([batch.x, batch.x.new_full((count, *batch.x.shape[1:]), 7)])
    y = torch.cat([batch.y, batch.y.new_zeros(count)])
    return Batch(x, y, torch.arange(len(y)) < len(batch.y), batch.key)


def test_a_loss_of_ones_own_is_averaged_over_the_real_samples_alone() -> None:
    task, (batch,) = Task(network()), batches(1)

    def loss(work: State, batch: Batch, round: Round) -> Losses:
        output, buffers = task(work["params"], batch.x, True, batch.key)
        values = nn.functional.cross_entropy(output, batch.y, reduction="none")
        return values, buffers, work["params"]["0.weight"].square().sum()

    whole, ragged = mean_and_step(loss, batch), mean_and_step(loss, padded(batch, 3))
    for name, value in whole.items():
        torch.testing.assert_close(ragged[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_per_sample_has_the_bits_of_the_tasks_own(dtype: torch.dtype) -> None:
    task = Task(network().to(dtype))
    step = sgd_step(task, lambda work, batch, round: task.losses(work["params"], batch), lr=RATE)
    for batch in batches(5):
        own = step({"params": task.initial}, batch, now())["params"]
        plain = sgd_step(task, lr=RATE)({"params": task.initial}, batch, now())["params"]
        assert all(torch.equal(own[name], value) for name, value in plain.items())


WRONG: dict[str, Callable[[Tensor], Any]] = {
    "a mean": lambda losses: (losses.mean(), {}),
    "a column": lambda losses: (losses[:, None], {}),
    "others": lambda losses: (losses[1:], {}),
    "no buffers": lambda losses: losses,
    "nothing": lambda losses: None,
    "a penalty for buffers": lambda losses: (losses, losses.sum()),
    "no values": lambda losses: (None, {}),
    "four": lambda losses: (losses, {}, losses.sum(), losses),
}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("how", WRONG)
def test_a_loss_that_is_not_one_value_per_sample_is_refused(how: str, mapped: bool) -> None:
    task, (batch,) = Task(network()), batches(1)

    def loss(work: State, batch: Batch, round: Round) -> Any:
        return WRONG[how](task.losses(work["params"], batch)[0])

    work = initial()

    def step(given: Batch) -> State:
        return sgd_step(task, loss, lr=RATE)(work, given, now())

    with raises("E205"):
        over_clients(1, step, tree.stack([batch])) if mapped else step(batch)


def test_a_step_has_a_loss_or_a_model_and_not_both() -> None:
    task = Task(network())
    with raises("E202"):
        sgd_step(task, lambda *given: task.losses(given[0], given[1]), lr=1.0, model=dict)
