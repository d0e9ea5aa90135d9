"""DP-SGD: clipping equals a loop over samples, noise has its variance, engines agree."""

from dataclasses import replace

import pytest
import torch

from masquerade.config.settings import Privacy
from masquerade.core import Batch, Task, tree
from masquerade.core.dp import DPSGD, noise
from masquerade.core.random import normal, uniform
from masquerade.core.round import Round, Stage
from masquerade.core.sgd import sgd_step
from masquerade.core.vmap import over
from masquerade.data.poisson import PoissonLoader
from masquerade.laws.toy import federation
from masquerade.methods import METHODS
from masquerade.simulation.build import build
from tests.support import METHOD_TABLE, advance, network, toy

ROUND = Round.of("train", None, 0, 1, 1.0, torch.device("cpu"))
DRAWS = 100_000
COVERED = ("fedavg", "ditto", "dmpfl", "feddst", "fedmask", "fedselect_grow", "topk")


def test_noise_is_standard_normal_and_never_the_same():
    first, second = (noise(torch.empty(DRAWS // 100, 100)) for _ in range(2))
    assert first.shape == (DRAWS // 100, 100)
    assert first.dtype == torch.float32
    # Five standard errors of a mean, of a variance and of a correlation.
    assert abs(first.mean()) < 5 / DRAWS**0.5
    assert abs(first.var() - 1) < 5 * (2 / DRAWS) ** 0.5
    assert abs((first * second).mean()) < 5 / DRAWS**0.5
    assert abs((first.abs() < 1).double().mean() - 0.6827) < 0.01


def test_seeds_do_not_repeat_noise_and_mapped_clients_have_their_own():
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        with over(3) as inside:
            own = inside.enter(torch.zeros(3, 50))
            drawn.append(inside.leave(noise(own)))
    assert not torch.equal(*drawn)
    assert drawn[0].shape == (3, 50)
    assert not torch.equal(drawn[0][0], drawn[0][1])


def brute_force(task, work, batch, dp, keep, penalty):
    """The clipped mean, by a loop over samples with plain autograd."""
    names = [(entry, name) for entry in ("params", "other") for name in work[entry]]
    total = {name: torch.zeros_like(work[name[0]][name[1]]) for name in names}
    for place in range(len(batch.y)):
        if batch.valid is not None and not batch.valid[place]:
            continue
        leaves = {n: work[n[0]][n[1]].clone().requires_grad_() for n in names}
        params = {n: leaves["params", n] * leaves["other", n] for n in work["params"]}
        output, _ = task(params, batch.x[place : place + 1], True, batch.key)
        value = torch.nn.functional.cross_entropy(output, batch.y[place : place + 1])
        value = value + penalty * sum(leaf.square().sum() for leaf in leaves.values())
        found = torch.autograd.grad(value, list(leaves.values()))
        grads = {
            n: grad * keep[n[1]] if n[1] in keep else grad
            for n, grad in zip(names, found, strict=True)
        }
        norm = sum(grad.square().sum() for grad in grads.values()).sqrt()
        for n, grad in grads.items():
            total[n] += grad * min(1.0, dp.max_grad_norm / float(norm))
    return {n: value / dp.batch_size for n, value in total.items()}


@pytest.mark.parametrize("bound", [0.3, 100.0])
@pytest.mark.parametrize("padding", [0, 3])
def test_clipping_of_samples_equals_a_loop_over_them(bound, padding):
    dp, penalty = DPSGD(0.0, bound, 7), 0.01
    task, data = Task(network()).with_dp(dp), federation()
    valid = torch.arange(6 + padding) < 6 if padding else None
    x = data.x[: 6 + padding].clone()
    x[6:] = torch.nan
    batch = Batch(x, data.y[: 6 + padding], valid, torch.tensor(3))
    other = {
        name: normal(place, v.shape, v.dtype)
        for place, (name, v) in enumerate(task.initial.items())
    }
    work = {"params": task.initial, "other": other}
    keep = {"0.weight": uniform(5, (8, 6)) < 0.5}

    def loss(work, batch, round):
        params = {n: value * work["other"][n] for n, value in work["params"].items()}
        norms = [v.square().sum() for entry in ("params", "other") for v in work[entry].values()]
        return *task.losses(params, batch), penalty * torch.stack(norms).sum()

    step = sgd_step(task, loss, ("params", "other"), lr=1.0, within=lambda work: keep)
    after = step(work, batch, ROUND)
    wanted = brute_force(task, work, batch, dp, keep, penalty)
    for (entry, name), grad in wanted.items():
        torch.testing.assert_close(work[entry][name] - after[entry][name], grad, atol=1e-12, rtol=0)


def test_a_sample_whose_gradient_is_not_finite_adds_nothing():
    task, data = Task(network()).with_dp(DPSGD(0.0, 1.0, 2)), federation()
    x = data.x[:2].clone()
    x[1] = torch.inf
    step = sgd_step(task, lr=0.1)
    both = step({"params": task.initial}, Batch(x, data.y[:2], None, torch.tensor(0)), ROUND)
    one = step({"params": task.initial}, Batch(x[:1], data.y[:1], None, torch.tensor(0)), ROUND)
    for left, right in zip(tree.leaves(both), tree.leaves(one), strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


def private(name, **settings):
    spec = toy(METHOD_TABLE[name], rounds=3, **settings.pop("run", {}))
    view = METHODS[name].view
    return replace(
        spec,
        privacy=Privacy(unit="sample", delta=1e-3, **settings),
        train=replace(spec.train, batch_size=2),
        views=(view,),
        names=spec.names[:1],
    )


@pytest.mark.parametrize("name", COVERED)
def test_loop_and_batched_agree_where_gradients_are_clipped_without_noise(name):
    states = []
    for engine in ("loop", "batched"):
        made = build(private(name, max_grad_norm=0.5, run={"engine": engine}))
        assert made.engine.name == engine
        state = made.begin()
        for _ in range(2):
            advance(made, state)
        # Sessions have digests, in which the last bit of a weight changes all.
        kept = ("server/", "clients/")
        states.append({n: v for n, v in state.tensors().items() if n.startswith(kept)})
    assert states[0]
    for path, value in states[0].items():
        torch.testing.assert_close(value, states[1][path], atol=1e-9, rtol=1e-9)


def test_noise_has_the_size_that_it_is_accounted_with():
    made = build(private("fedavg", noise_multiplier=500.0, run={"participation": 1.0}))
    method = replace(made.server.method, local_epochs=1, momentum=0.0)
    task = made.server.task
    step = method.sgd_step(task, lr=1.0)
    x, y = federation().x[:1], federation().y[:1]
    drawn = []
    for _ in range(400):
        empty = Batch(x, y, torch.tensor([False]), torch.tensor(0))
        after = step({"params": task.initial}, empty, ROUND)
        moved = [
            a - b for a, b in zip(*map(tree.leaves, (after["params"], task.initial)), strict=True)
        ]
        drawn.append(torch.cat([each.flatten() for each in moved]))
    found = torch.stack(drawn)
    # σ = z · C / B, with a batch that has no sample at all.
    size = 500.0 * 1.0 / 2
    assert found.numel() > 40_000
    assert float(found.std()) == pytest.approx(size, rel=0.02)
    assert abs(float(found.mean())) < 5 * size / found.numel() ** 0.5


def loaded(secret, size=5):
    data = federation()
    stage = Stage("train", lambda work, batch, round: work, epochs=200)
    loader = PoissonLoader(data, 1, size, secret=secret)
    ids = torch.tensor([0, 3])
    return data, ids, loader.shuffle(ids, stage, ROUND, 0), loader


@pytest.mark.parametrize("secret", [True, False])
def test_every_sample_is_in_every_batch_with_the_same_chance(secret):
    data, ids, made, loader = loaded(secret)
    for row, id in enumerate(ids.tolist()):
        own = data.train[id]
        batches = list(loader.batches(made, row))
        steps = 200 * -(-len(own) // 5)
        assert len(batches) == steps
        sizes = torch.tensor([float(len(b.y)) * (b.valid is None) for b in batches])
        rate = 5 / len(own)
        # Five standard errors of a binomial mean.
        spread = 5 * (len(own) * rate * (1 - rate) / steps) ** 0.5
        assert abs(float(sizes.mean()) - 5) < spread
        assert float(sizes.var()) == pytest.approx(len(own) * rate * (1 - rate), rel=0.3)
        seen = torch.zeros(len(data.x))
        for step in range(steps):
            chosen = made.indices[row, step, : int(made.drawn_counts[row, step])]
            assert len(chosen.unique()) == len(chosen)
            seen[chosen] += 1
        assert seen.sum() == seen[own].sum()
        assert (seen[own] / steps - rate).abs().max() < 5 * (rate * (1 - rate) / steps) ** 0.5


def test_secret_batches_are_never_the_same_and_others_always():
    same, other = ([loaded(secret)[2].indices for _ in range(2)] for secret in (False, True))
    assert torch.equal(*same)
    assert other[0].shape != other[1].shape or not torch.equal(*other)


def test_operations_do_not_tell_how_many_samples_were_drawn():
    """ε holds while nobody knows; they say what is expected, which is nearly what was drawn."""
    told, drawn = [], []
    for noise_multiplier in (1.0, 1.0, 0.0):
        made = build(private("fedavg", noise_multiplier=noise_multiplier))
        state = made.begin()
        costs = advance(made, state).costs
        (told if noise_multiplier else drawn).append(costs["dense"])
    assert told[0] == told[1] > 0
    assert drawn[0] == pytest.approx(told[0], rel=0.5)


def test_a_batch_without_a_sample_is_a_step_in_both_engines():
    _, _, made, loader = loaded(secret=False, size=1)
    assert (made.drawn_counts == 0).any()
    stacked = loader.stack(made)
    assert stacked.lengths == [len(list(loader.batches(made, row))) for row in range(2)]
