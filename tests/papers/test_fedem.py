"""FedEM (Marfoq et al., 2021): by hand, against plain PyTorch, and against its usual mistakes."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from masquerade.core import Batch, Cohort, Message, Part, Round, State, Task, client_round
from masquerade.core.tree import stack
from masquerade.methods import FedEM
from tests.papers import replay
from tests.support import advance, raises

ONE = torch.ones((), dtype=torch.float64)
ROUND = Round("train", "train", 0 * ONE, ONE, ONE)


def layer(*chances: float) -> Tensor:
    """Return a layer of two inputs: of unit vector i, class 0 has the chance of that place."""
    first = torch.tensor(chances, dtype=torch.float64)
    return torch.stack([first, 1 - first]).log()


# Two samples, the unit vectors, both of class 0; two models with these chances of being right.
BATCH = Batch(
    torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64), None, ONE.long()
)
MODELS = {"params": layer(0.6, 0.9), "params2": layer(0.2, 0.1)}
MESSAGE = {name: Part({"weight": weight}) for name, weight in MODELS.items()}
CLIENT = {"mixture": torch.tensor([0.25, 0.75], dtype=torch.float64)}
TASK = Task(nn.Linear(2, 2, bias=False).double())


def play(method: FedEM) -> tuple[Message, State]:
    """Do the round of the one client of the examples; every epoch is one batch."""
    return client_round(method, TASK, MESSAGE, CLIENT, lambda stage: [BATCH] * stage.epochs, ROUND)


def near(found: Tensor, expected: list[Any] | float) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=0, atol=1e-12)


# The round by hand. q of a sample is π_m · p_m(y | x), made to sum to 1:
#   sample 0: 1/4 · 0.6 = 0.15 and 3/4 · 0.2 = 0.15, so q = (1/2, 1/2)
#   sample 1: 1/4 · 0.9 = 0.225 and 3/4 · 0.1 = 0.075, so q = (3/4, 1/4)
#   π = the mean over both = (5/8, 3/8)


def assert_mixture_by_hand(method: FedEM) -> None:
    near(play(method)[1]["mixture"], [5 / 8, 3 / 8])


def test_a_round_by_hand() -> None:
    method = FedEM(models=2, lr=1.0, local_epochs=1)
    assert_mixture_by_hand(method)
    upload, _ = play(method)
    # The slope of q/2 · loss at the logit of class 0 is q/2 · (p − 1), and its negative at class 1:
    #   model 1: 1/4 · (−0.4) = −0.1 for sample 0, 3/8 · (−0.1) = −0.0375 for sample 1
    #   model 2: 1/4 · (−0.8) = −0.2 for sample 0, 1/8 · (−0.9) = −0.1125 for sample 1
    moved = {name: part.values["weight"] - MODELS[name] for name, part in upload.items()}
    near(moved["params"], [[0.1, 0.0375], [-0.1, -0.0375]])
    near(moved["params2"], [[0.2, 0.1125], [-0.2, -0.1125]])


class ForgetsPrior(FedEM):
    """Takes q from the losses alone."""

    def responsibilities(self, task: Task, work: State, batch: Batch) -> Tensor:
        even = torch.ones_like(work["mixture"])
        return super().responsibilities(task, {**work, "mixture": even}, batch)


def test_responsibilities_without_the_mixture_are_a_mistake() -> None:
    with pytest.raises(AssertionError):
        assert_mixture_by_hand(ForgetsPrior(models=2, lr=1.0, local_epochs=1))


class LooksAtUpdated(FedEM):
    """Takes q from the models as they move."""

    def responsibilities(self, task: Task, work: State, batch: Batch) -> Tensor:
        moving = {name: work[name] for name in self.names()}
        return super().responsibilities(task, {**work, "received": moving}, batch)


def test_responsibilities_of_updated_models_are_a_mistake() -> None:
    # In the second epoch the models have moved, and the responsibilities must not have.
    assert_mixture_by_hand(FedEM(models=2, lr=1.0, local_epochs=2))
    with pytest.raises(AssertionError):
        assert_mixture_by_hand(LooksAtUpdated(models=2, lr=1.0, local_epochs=2))


def assert_mixes_probabilities(method: FedEM) -> None:
    # Model 1 is almost sure of class 0, with a share of 1/5; model 2 gives it a chance of 0.3.
    # Mixed: 0.2 · 0.9999 + 0.8 · 0.3 = 0.43998, so class 1.
    # Mixed logits: 0.2 · log(9999) + 0.8 · log(3/7) = 1.84 − 0.68 > 0, so class 0.
    models = {"params": layer(0.9999, 0.5), "params2": layer(0.3, 0.5)}
    message = {name: Part({"weight": weight}) for name, weight in models.items()}
    client = {"mixture": torch.tensor([0.2, 0.8], dtype=torch.float64)}
    personal = method.personalize(TASK, message, client, "personal")
    output = method.predict(TASK, personal, BATCH.x[:1])
    near(output.exp(), [[0.43998, 0.56002]])
    # Cross entropy of what is returned is the likelihood of the mixture.
    near(cross_entropy(output, torch.tensor([1])), -math.log(0.56002))
    assert output.argmax(-1).tolist() == [1]


class MixesLogits(FedEM):
    """Mixes outputs where it should mix probabilities."""

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        outputs = torch.stack([task(personal[name].values, x)[0] for name in self.names()], -1)
        return outputs @ personal["mixture"].values["mixture"]


def test_mixing_logits_is_a_mistake() -> None:
    assert_mixes_probabilities(FedEM(models=2))
    with pytest.raises(AssertionError):
        assert_mixes_probabilities(MixesLogits(models=2))


def test_a_regression_mixes_outputs() -> None:
    def square(output: Tensor, y: Tensor) -> Tensor:
        return (output - y).square().sum(-1)

    task = Task(nn.Linear(2, 2, bias=False).double(), loss=square, metric=square)
    weights = [torch.full((2, 2), value, dtype=torch.float64) for value in (8.0, 4.0)]
    names = FedEM(models=2).names()
    message = {n: Part({"weight": w}) for n, w in zip(names, weights, strict=True)}
    personal = FedEM(models=2).personalize(task, message, CLIENT, "personal")
    # 1/4 · 8 + 3/4 · 4 = 5
    near(FedEM(models=2).predict(task, personal, BATCH.x), [[5.0, 5.0], [5.0, 5.0]])


def assert_models_grow_apart(method: FedEM) -> None:
    made, _ = replay.stage(method, 2)
    progress = made.begin()
    for _ in range(2):
        advance(made, progress)
    sampled = sorted(
        {
            *made.server.participation.cohort(0).tolist(),
            *made.server.participation.cohort(1).tolist(),
        }
    )
    mixtures = progress.clients.state["mixture"]
    assert (mixtures[sampled] - 1 / method.models).abs().min() > 1e-3
    unsampled = sorted(set(range(len(replay.SIZES))) - set(sampled))
    assert torch.all(mixtures[unsampled] == 1 / method.models)


class BeginsEqual(FedEM):
    """Starts every model from the same weights."""

    def server_init(self, task: Task) -> State:
        return dict.fromkeys(self.names(), task.initial)


def test_equal_initial_models_are_a_mistake() -> None:
    settings: dict[str, Any] = {"models": 2, "lr": 0.3, "local_epochs": 2}
    assert_models_grow_apart(FedEM(**settings))
    with pytest.raises(AssertionError):
        assert_models_grow_apart(BeginsEqual(**settings))


class Fixed(nn.Module):
    """A network whose weights have no rule to be drawn by."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_network_that_cannot_begin_elsewhere_is_refused() -> None:
    with raises("E202", "2"):
        FedEM(models=2).server_init(Task(Fixed()))
    assert FedEM(models=1).server_init(Task(Fixed())).keys() == {"params"}


def assert_sampled_clients_decide(method: FedEM) -> None:
    # Two of three clients were sampled, with 1 and 3 samples: (1 · 4 + 3 · 8) / 4 = 7.
    uploads = stack(
        [{"params": Part({"weight": torch.full((2, 2), value)})} for value in (4.0, 8.0)]
    )
    cohort = Cohort(torch.tensor([0, 2]), torch.tensor([1, 3]), 2, 3)
    server = {"params": {"weight": torch.zeros(2, 2)}}
    new, _ = method.aggregate(TASK, server, {}, uploads, cohort, ROUND)
    assert torch.all(new["params"]["weight"] == 7)


class AveragesAll(FedEM):
    """Counts clients that were not sampled as having sent the old model."""

    def aggregate(self, *given: Any) -> tuple[State, State]:
        task, server, rows, uploads, cohort, round = given
        old = {name: Part(server[name]) for name in uploads}
        every = {n: stack([*_unstack(uploads[n], 2), old[n]]) for n in uploads}
        samples = torch.cat([cohort.samples, torch.tensor([2])])
        whole = Cohort(torch.arange(3), samples, 3, 3)
        return super().aggregate(task, server, rows, every, whole, round)


def _unstack(part: Part, count: int) -> list[Part]:
    return [Part({name: value[i] for name, value in part.values.items()}) for i in range(count)]


def test_averaging_over_unsampled_clients_is_a_mistake() -> None:
    assert_sampled_clients_decide(FedEM(models=1))
    with pytest.raises(AssertionError):
        assert_sampled_clients_decide(AveragesAll(models=1))


def test_three_rounds_equal_plain_pytorch() -> None:
    """Algorithm 1 of the paper: E-step with θ of the last round, M-step, local SGD, mean."""
    made, world = replay.stage(FedEM(models=2, lr=0.2, local_epochs=2), 3)
    progress = made.begin()
    nets = [copy.deepcopy(world.network) for _ in range(2)]
    for name, net in zip(("params", "params2"), nets, strict=True):
        net.load_state_dict(progress.server[name])
    mixture = {client: torch.tensor([0.5, 0.5]).double() for client in range(len(replay.SIZES))}
    for number, cohort in enumerate(world.cohorts):
        advance(made, progress)
        sums: list[dict[str, Tensor]] = [{}, {}]
        for client in cohort:
            own, mass = copy.deepcopy(nets), torch.zeros(2).double()
            for epoch in range(2):
                for x, y in world.epoch(client, number, epoch):
                    with torch.no_grad():
                        right = [net(x).softmax(1)[range(len(y)), y] for net in nets]
                        joint = mixture[client] * torch.stack(right, 1)
                        q = joint / joint.sum(1, keepdim=True)
                    mass += q.sum(0)
                    for m, net in enumerate(own):
                        losses = cross_entropy(net(x), y, reduction="none")
                        net.zero_grad()
                        (q[:, m] * losses).mean().backward()
                        for value in net.parameters():
                            assert value.grad is not None
                            value.data -= 0.2 * world.lr_decay**number * value.grad
            mixture[client] = mass / (2 * world.share(client))
            for m, net in enumerate(own):
                for name, value in net.named_parameters():
                    part = world.share(client) * value.detach()
                    sums[m][name] = sums[m].get(name, 0) + part
        total = sum(world.share(client) for client in cohort)
        for name, net, found in zip(("params", "params2"), nets, sums, strict=True):
            net.load_state_dict({key: value / total for key, value in found.items()})
            replay.assert_same(progress.server[name], replay.weights_of(net))
        held = torch.stack([mixture[client] for client in range(len(replay.SIZES))])
        torch.testing.assert_close(progress.clients.state["mixture"], held, rtol=0, atol=1e-9)
