"""BNN-FedAvg: by hand, and against the usual mistakes of binarized networks in a federation."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import (
    Batch,
    Cohort,
    Message,
    Part,
    Round,
    Stage,
    State,
    Task,
    average,
    client_round,
)
from masquerade.core.tree import stack
from masquerade.data import Federation
from masquerade.methods import BNN
from masquerade.models import BinaryMLP, build
from masquerade.models.binary import sign
from masquerade.simulation.build import Simulation
from masquerade.wire import nbytes
from tests.papers import replay
from tests.support import advance, built, measure, raises

ONE = torch.ones((), dtype=torch.float64)
ROUND = Round("train", "train", 0 * ONE, ONE, ONE)


class Line(nn.Module):
    """One layer of four weights without a norm, for examples by hand."""

    binary = True

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1, bias=False)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.gain * self.layer(x)
        return output[:, 0]


def square(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square() / 2


LINE = Task(Line().double(), loss=square, metric=square)
BITS = torch.tensor([[True, True, False, False]])


def message(bits: Tensor = BITS, gain: float = 1.0) -> Message:
    return {"params": Part({"gain": gain * ONE, "layer.weight": bits})}


def test_a_round_by_hand() -> None:
    # Four inputs and scale 1/2: the shadows begin at ±1/4. The network uses ±1:
    # x = (1, 2, 4, 0), so the output is 1 + 2 − 4 − 0 = −1, and with y = 0 the error is −1.
    # Its slope goes straight through to the shadows: −x = (−1, −2, −4, 0), and for the gain
    # −1 · −1 = 1. Rate 1/8: shadows (3/8, 1/2, 1/4, −1/4), so the third bit flips; gain 7/8.
    method = BNN(scale=0.5, lr=0.125, local_epochs=1)
    start = method.start(LINE, message(), {}, ROUND)
    assert start["params"]["layer.weight"].tolist() == [[0.25, 0.25, -0.25, -0.25]]
    x = torch.tensor([[1.0, 2, 4, 0]], dtype=torch.float64)
    batch = Batch(x, torch.zeros(1, dtype=torch.float64), None, ONE.long())
    (stage,) = method.plan(LINE, ROUND)
    work = stage.step(start, batch, ROUND)
    assert work["params"]["layer.weight"].tolist() == [[0.375, 0.5, 0.25, -0.25]]
    upload, _ = client_round(method, LINE, message(), {}, lambda stage: [batch], ROUND)
    assert upload["params"].values["layer.weight"].tolist() == [[True, True, True, False]]
    assert upload["params"].values["gain"] == 0.875
    # In use, the received bits are −1 and +1.
    used = method.personalize(LINE, message(), {}, "global")
    assert method.predict(LINE, used, x).tolist() == [-1]


def assert_shadows_stay_within_one(method: BNN) -> None:
    x = torch.tensor([[1.0, 2, 4, 0]], dtype=torch.float64)
    batch = Batch(x, torch.zeros(1, dtype=torch.float64), None, ONE.long())
    (stage,) = method.plan(LINE, ROUND)
    work = stage.step(method.start(LINE, message(), {}, ROUND), batch, ROUND)
    assert work["params"]["layer.weight"].tolist() == [[1, 1, 1, -0.25]]


class Unclipped(BNN):
    """Lets shadows run away, from where no later slope brings them back."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        (stage,) = super().plan(task, round)
        return (replace(stage, step=replace(stage.step, project=None)),)


def test_shadows_stay_within_one() -> None:
    assert_shadows_stay_within_one(BNN(scale=0.5, lr=10.0))
    with pytest.raises(AssertionError):
        assert_shadows_stay_within_one(Unclipped(scale=0.5, lr=10.0))


def assert_signs_are_averaged(method: BNN) -> None:
    # Shadows of the first weight: 0.9 with A, −0.1 with B and C, one sample each. Two of three
    # signs are −1, so the server has −1; the mean of the shadows, 0.23, would say +1.
    uploads = []
    for first in (0.9, -0.1, -0.1):
        shadows = torch.tensor([[first, 0.5, 0.5, -0.5]], dtype=torch.float64)
        work = {"params": {"gain": ONE, "layer.weight": shadows}}
        uploads.append(method.finish(LINE, work, message(), {}, ROUND)[0])
    cohort = Cohort(torch.arange(3), torch.tensor([1, 1, 1]), 3, 3)
    server = {"params": message()["params"].values}
    new, _ = method.aggregate(LINE, server, {}, stack(uploads), cohort, ROUND)
    assert new["params"]["layer.weight"].tolist() == [[False, True, True, False]]


class AveragesShadows(BNN):
    """Sends real numbers, and takes the sign of their mean."""

    def finish(self, *given: Any) -> tuple[Message, State]:
        return {"params": Part(given[1]["params"])}, given[3]

    def aggregate(self, *given: Any) -> tuple[State, State]:
        task, server, rows, uploads, cohort, _ = given
        real = {name: value.double() for name, value in server["params"].items()}
        return {"params": self.bits(task, average(uploads["params"], cohort.samples, real))}, rows


def test_averaging_shadow_weights_is_a_mistake() -> None:
    assert_signs_are_averaged(BNN())
    with pytest.raises(AssertionError):
        assert_signs_are_averaged(AveragesShadows())


def test_votes_count_samples_and_a_tie_leaves_the_bit() -> None:
    # A has 2 samples, B and C one each. Weight 0: A against both, a tie: True stays. Weight 2: the
    # same tie, and False stays. Weight 1: A and B against C. Weight 3: A alone against both, a tie.
    bits = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()
    uploads = stack([message(row[None], gain) for row, gain in zip(bits, (1, 2, 4), strict=True)])
    cohort = Cohort(torch.arange(3), torch.tensor([2, 1, 1]), 3, 3)
    new, _ = BNN().aggregate(
        LINE, {"params": message()["params"].values}, {}, uploads, cohort, ROUND
    )
    assert new["params"]["layer.weight"].tolist() == [[True, True, False, False]]
    # What is not binarized is averaged: (2 · 1 + 2 + 4) / 4 = 2.
    assert new["params"]["gain"] == 2


def binary_world(method: BNN, rounds: int) -> Simulation:
    """A simulation of six clients and a small binary network."""
    data = replay.federation()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        task = Task(BinaryMLP(3, (8,), 3).double())
    return built(method, task, data, rounds=rounds, batch_size=4, participation=0.67, seed=5)


def assert_bits_flip(method: BNN) -> None:
    made = binary_world(method, 3)
    progress = made.begin()
    first = progress.server["params"]
    for _ in range(3):
        advance(made, progress)
    names = method.binarized(made.server.task)
    flips = sum(int((first[n] != progress.server["params"][n]).sum()) for n in names)
    assert flips > 0


class BeginsAtOne(BNN):
    """Puts the shadows where the sign is, a long way from zero."""

    def start(self, *given: Any) -> State:
        values = given[1]["params"].values
        return {"params": values | self.weights(given[0], values)}


def test_shadows_at_one_never_flip_under_small_rates() -> None:
    settings: dict[str, Any] = {"lr": 0.02, "local_epochs": 5}
    assert_bits_flip(BNN(**settings))
    with pytest.raises(AssertionError):
        assert_bits_flip(BeginsAtOne(**settings))


def assert_sees_how_large_inputs_are(network: nn.Module) -> None:
    # The two inputs have the same signs, and differ in which entry is large.
    pair = torch.tensor([[3.0, 0.1, -0.1], [0.1, 3.0, -0.1]])
    first, second = network(pair)
    assert not torch.equal(first, second)


class BinarizesInput(nn.Module):
    """Takes the sign of what comes in."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.network(sign(x))
        return output


def test_binarizing_the_input_is_a_mistake() -> None:
    network = build("mlp_binary", (3,), 4, seed=1)
    assert_sees_how_large_inputs_are(network)
    with pytest.raises(AssertionError):
        assert_sees_how_large_inputs_are(BinarizesInput(network))


def test_activations_are_signs_whose_slope_is_cut_off_beyond_one() -> None:
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0], requires_grad=True)
    y = sign(x)
    assert y.tolist() == [-1, -1, 1, 1, 1]
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.tolist() == [0, 1, 1, 1, 0]


def test_the_size_of_weights_says_nothing_behind_a_norm() -> None:
    network = build("digits_cnn_binary", (1, 8, 8), 10, seed=1).double()
    larger = copy.deepcopy(network)
    for name, value in larger.named_parameters():
        hidden = name.endswith("layer.weight") and not name.startswith("layers.3.")
        value.data *= 1000 if hidden else 1
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(network(x), larger(x), rtol=0.05, atol=0.05)


def test_a_network_without_signs_is_refused() -> None:
    with raises("E202", "MLP", "NAME_binary"):
        BNN().server_init(Task(build("mlp", (3,), 4, seed=1)))


def test_a_weight_costs_one_bit_both_ways() -> None:
    task = Task(BinaryMLP(64, (64,), 10))
    server = BNN().server_init(task)
    down = BNN().download(task, server, {}, ROUND)
    upload, _ = client_round(BNN(), task, down, {}, lambda stage: [], ROUND)
    # 64 · 64 + 64 · 10 weights as bits; a norm of 64 outputs with weight and bias and ten biases as
    # float32; a header and a flag, one more for each of five tensors, and for each of the two that
    # are bits a flag and how many are ones, in two bytes. About half of them are.
    for sent in (down, upload):
        rest = (2 * 64 + 10) * 4 + 24 + 1 + 5 + 2 * 3
        assert 0.97 * (64 * 64 + 64 * 10) / 8 <= nbytes(sent) - rest <= (64 * 64 + 64 * 10) / 8


def test_training_learns() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(240, 8, generator=generator)
    y = (x @ torch.randn(8, 3, generator=generator)).argmax(1)
    parts = torch.arange(240).split(60)
    data = Federation("blobs", x, y, 3, parts, parts, parts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        task = Task(BinaryMLP(8, (64,), 3))
    method = BNN(local_epochs=2)
    made = built(method, task, data, rounds=10, batch_size=10)
    progress = made.begin()
    for _ in range(10):
        advance(made, progress)
    scores = torch.cat(measure(made, progress, "global", list(parts)).scores)
    assert scores.mean() > 75


def assert_norms_follow_hidden_layers(model: nn.Module) -> None:
    """Without a norm, sums of signs grow with the inputs, and no slope passes a sign again."""
    kinds = [layer.kind for layer in Task(model).layers]
    weighted = [place for place, kind in enumerate(kinds) if kind != "norm"]
    assert all(kinds[place + 1] == "norm" for place in weighted[:-1])


class NormLess(nn.Module):
    """Signs of plain linear layers."""

    binary = True

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(sign(self.hidden(x)))
        return logits


@pytest.mark.parametrize("name", ["mlp_binary", "digits_cnn_binary"])
def test_networks_of_signs_have_a_norm_behind_every_hidden_layer(name: str) -> None:
    assert_norms_follow_hidden_layers(build(name, (1, 8, 8), 10, seed=1))
    with pytest.raises(AssertionError):
        assert_norms_follow_hidden_layers(NormLess())


def test_rounding_decides_neither_a_sign_nor_its_slope() -> None:
    """Norms of sums of signs are often 0 or ±1, up to the last bits."""
    exact = torch.tensor([0.0, 1.0, -1.0])
    for rounded in (exact - 5e-7, exact, exact + 5e-7):
        x = rounded.requires_grad_()
        made = sign(x)
        assert made.tolist() == [1, 1, -1]
        made.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [1, 1, 1]
    beyond = torch.tensor([-0.01, 1.01]).requires_grad_()
    made = sign(beyond)
    assert made.tolist() == [-1, 1]
    made.sum().backward()
    assert beyond.grad is not None
    assert beyond.grad.tolist() == [1, 0]
