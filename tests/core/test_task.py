"""A task is its module as a function: same outputs, nothing left behind."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from masquerade.core import Batch, Layer, Task
from masquerade.core.random import fold, normal, uniform
from masquerade.core.task import accuracy, cross_entropy
from masquerade.core.tree import Tree
from masquerade.models import DigitsCNN
from tests.support import network, raises

X = normal(4, (5, 6))
Y = torch.tensor([0, 2, 1, 1, 0])


def batch(valid: Tensor | None = None) -> Batch:
    return Batch(X, Y, valid, torch.tensor(9))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def other(task: Task) -> Tree:
    """Values that are not the module's own."""
    return {
        name: normal(fold(5, name), tuple(value.shape), value.dtype) * 0.3
        if value.is_floating_point() and "running" not in name
        else value
        for name, value in task.initial.items()
    }


def holding(model: nn.Module, values: Tree) -> nn.Module:
    """A module that really holds these values."""
    made = copy.deepcopy(model)
    made.load_state_dict(values, strict=False)
    return made


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("model", [network(torch.float32), normed(), nn.Linear(6, 3)], ids=str)
def test_the_function_equals_the_module(model: nn.Module, train: bool) -> None:
    task = Task(model)
    values = other(task)
    reference = holding(model, values).train(train)
    output, _ = task(values, X, train)
    assert torch.equal(output, reference(X))


class Tied(nn.Module):
    """Two layers that share a weight, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.first(x))
        return output


def test_a_weight_that_layers_share_is_replaced_in_all_of_them() -> None:
    task = Task(Tied())
    values = other(task)
    reference = Tied()
    reference.load_state_dict(values | {"last.weight": values["first.weight"]})
    assert torch.equal(task(values, X)[0], reference(X))


@pytest.mark.parametrize("train", [True, False])
def test_neither_the_module_nor_its_task_is_changed_by_a_call(train: bool) -> None:
    model = normed()
    before = copy.deepcopy(model.state_dict())
    task = Task(model)
    held = copy.deepcopy(task.module.state_dict())
    values = other(task)
    given = {name: value.clone() for name, value in values.items()}
    task(values, X, train)
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)
        assert torch.equal(task.module.state_dict()[name], held[name])
        assert torch.equal(task.initial[name], value)
    assert all(torch.equal(values[name], value) for name, value in given.items())


def test_a_call_that_fails_leaves_the_module_as_it_was() -> None:
    task = Task(normed())
    with pytest.raises(RuntimeError):
        task(other(task), torch.ones(5, 7))
    for name, value in task.module.state_dict().items():
        assert torch.equal(value, task.initial[name])


def test_changing_the_model_afterwards_does_not_change_the_task() -> None:
    model = network()
    task = Task(model)
    with torch.no_grad():
        model.get_parameter("0.weight").zero_()
    assert task.initial["0.weight"].all()
    assert task(task.initial, X)[0].any()


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_of_the_model_is_its_owners_business(mode: bool) -> None:
    model = normed().train(mode)
    task = Task(model)
    for train in (True, False):
        task(task.initial, X, train)
        assert model.training is mode


def test_training_returns_new_buffers_and_evaluating_none() -> None:
    model = normed()
    task = Task(model)
    values = other(task)
    reference = holding(model, values).train()
    reference(X)
    _, buffers = task(values, X, train=True)
    expected = dict(reference.named_buffers())
    assert buffers.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(buffers[name], value)
        assert not torch.equal(values[name], value)
    assert task(values, X, train=False)[1] == {}


def test_a_transform_sees_training_batches_and_their_key() -> None:
    seen: list[int] = []

    def noisy(x: Tensor, key: Tensor) -> Tensor:
        seen.append(int(key))
        return x + uniform(key, tuple(x.shape), x.dtype)

    task = Task(network(), transform=noisy)
    moved, _ = task.loss(task.initial, batch())
    again, _ = task.loss(task.initial, batch())
    plain, _ = task.loss(task.initial, batch(), train=False)
    task(task.initial, X)
    assert seen == [9, 9]
    assert torch.equal(moved, again)
    assert not torch.equal(moved, plain)


def test_losses_are_per_sample_and_the_loss_is_their_mean_over_the_real_ones() -> None:
    task = Task(network())
    losses, _ = task.losses(task.initial, batch())
    logits = task(task.initial, X)[0]
    expected = [float(-row.log_softmax(0)[label]) for row, label in zip(logits, Y, strict=True)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)
    assert float(task.loss(task.initial, batch())[0]) == pytest.approx(sum(expected) / 5)
    valid = torch.tensor([True, False, True, False, False])
    padded, _ = task.loss(task.initial, batch(valid))
    assert float(padded) == pytest.approx((expected[0] + expected[2]) / 2)


def test_a_regression_has_its_own_loss_and_metric() -> None:
    def squared(output: Tensor, y: Tensor) -> Tensor:
        return (output[:, 0] - y).square()

    task = Task(nn.Linear(2, 1, bias=False), loss=squared, metric=squared, better="lower")
    values = {"weight": torch.tensor([[2.0, -1.0]])}
    given = Batch(
        torch.tensor([[1.0, 1.0], [0.0, 3.0]]), torch.tensor([0.0, 1.0]), None, torch.tensor(0)
    )
    # Outputs 1 and −3; squared errors 1 and 16.
    assert task.losses(values, given)[0].tolist() == [1.0, 16.0]
    assert float(task.loss(values, given)[0]) == 8.5
    assert task.better == "lower"


def test_the_defaults_are_cross_entropy_and_percent_right() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    # Probabilities (3/4, 1/4) and (1/2, 1/2).
    expected = [-math.log(0.25), -math.log(0.5)]
    assert cross_entropy(logits, torch.tensor([1, 0])).tolist() == pytest.approx(expected)
    assert accuracy(logits, torch.tensor([0, 1])).tolist() == [100.0, 0.0]


def test_fresh_weights_depend_on_the_key_and_on_where_the_task_begins_alone() -> None:
    task = Task(DigitsCNN(norm="group"))
    state = torch.random.get_rng_state()
    one, again, two = task.fresh(7), task.fresh(7), task.fresh(fold(7, "model"))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert one.keys() == two.keys() == task.initial.keys()
    for name, value in one.items():
        assert value.shape == task.initial[name].shape
        assert torch.equal(value, again[name])
        # Norms begin as the identity whatever the key.
        assert torch.equal(value, two[name]) == name.startswith("norm")
    assert not torch.equal(one["fc1.weight"], task.initial["fc1.weight"])
    # Runs of two seeds must not share what they draw beside their initial weights.
    elsewhere = copy.deepcopy(task.module)
    elsewhere.fc1.bias.data += 1
    assert not torch.equal(Task(elsewhere).fresh(7)["fc1.weight"], one["fc1.weight"])


def test_fresh_weights_follow_the_rules_of_their_layers() -> None:
    bound = 1 / 128**0.5
    weight = Task(nn.Linear(128, 64)).fresh(1)["weight"]
    assert weight.abs().max() <= bound
    assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.05)


@pytest.mark.parametrize(
    ("model", "couples"),
    [
        (normed(), True),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False)), True),
        (nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), False),
        (DigitsCNN(norm="group"), False),
    ],
    ids=["batchnorm1d", "batchnorm2d", "layernorm", "groupnorm"],
)
def test_a_task_knows_whether_samples_of_a_batch_touch_each_other(
    model: nn.Module, couples: bool
) -> None:
    assert Task(model).couples_batch is couples


def test_parameters_and_buffers_are_told_apart() -> None:
    task = Task(normed())
    names = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert [name for name in task.initial if not task.trainable(name)] == names
    assert task.trainable("gate.weight")
    # 6·4 + 4, then 4 + 4 of the norm, then 4·3 + 3.
    assert task.parameters == 28 + 8 + 15
    assert task.shapes["1.num_batches_tracked"] == torch.Size([])


def test_layers_come_in_order_with_their_tensors() -> None:
    class Odd(nn.Module):
        """A layer of no known kind, beside two that are known."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.conv = nn.Conv2d(1, 2, 3, bias=False)
            self.words = nn.Embedding(5, 2)
            self.lstm = nn.LSTM(2, 2)

    assert Task(Odd()).layers == (
        Layer("", "other", None, None),
        Layer("conv", "conv", "conv.weight", None),
        Layer("words", "embedding", "words.weight", None),
        Layer("lstm", "lstm", None, None),
    )
    assert Task(normed()).layers[1] == Layer("1", "norm", "1.weight", "1.bias")
    assert Task(nn.Linear(2, 2)).layers == (Layer("", "linear", "weight", "bias"),)


def test_data_arrive_in_the_precision_of_the_network() -> None:
    task = Task(network(torch.float64))
    assert task.dtype is torch.float64
    assert torch.equal(task(task.initial, X)[0], task(task.initial, X.double())[0])


def test_tokens_are_left_as_integers() -> None:
    task = Task(nn.Embedding(5, 2))
    found = task(task.initial, torch.tensor([[1, 4]]))[0]
    assert torch.equal(found, task.initial["weight"][torch.tensor([[1, 4]])])


def test_a_moved_task_computes_the_same_and_shares_nothing() -> None:
    task = Task(normed())
    moved = task.to("cpu")
    values = other(task)
    assert torch.equal(moved(values, X)[0], task(values, X)[0])
    assert moved.module is not task.module


def test_a_doubled_task_is_the_same_in_double_precision_and_shares_nothing() -> None:
    single = Task(normed(), metric=cross_entropy, better="lower").with_example(X)
    task = single.double()
    assert (task.dtype, single.dtype) == (torch.float64, torch.float32)
    assert (task.metric, task.better, task.layers) == (cross_entropy, "lower", single.layers)
    for name, value in single.initial.items():
        assert torch.equal(task.initial[name], value.to(task.initial[name].dtype))
    assert task.initial["1.num_batches_tracked"].dtype == torch.int64
    output, buffers = task(task.initial, X, train=True)
    assert {output.dtype, buffers["1.running_mean"].dtype} == {torch.float64}
    torch.testing.assert_close(output.float(), single(single.initial, X, train=True)[0])
    again = task.double()
    for value in again.initial.values():
        value.zero_()
    assert task.initial["0.weight"].any()
    assert single(single.initial, X)[0].dtype == torch.float32


def test_a_task_maps_over_clients() -> None:
    task = Task(network())
    clients = [task.fresh(key) for key in range(3)]
    stacked = {name: torch.stack([one[name] for one in clients]) for name in task.initial}
    mapped = torch.func.vmap(lambda values: task(values, X)[0])(stacked)
    looped = torch.stack([task(one, X)[0] for one in clients])
    torch.testing.assert_close(mapped, looped, rtol=1e-12, atol=1e-12)


def deep() -> Task:
    """Two norms with statistics: behind the first layer, and behind the last."""
    layers = (nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False))
    return Task(nn.Sequential(*layers))


def test_a_head_takes_along_the_norms_that_follow_it_with_their_statistics() -> None:
    task = deep()
    behind = {"3.running_mean", "3.running_var", "3.num_batches_tracked"}
    body, head = task.divide(1)
    assert head.keys() == {"2.weight", "2.bias", *behind}
    assert body.keys() == task.initial.keys() - head.keys()
    assert task.divide(0) == (task.initial, {})


def test_a_joined_tree_has_the_names_in_the_order_of_the_network() -> None:
    task = deep()
    body, head = task.divide(1)
    assert [*body, *head] != list(task.initial)
    for pieces in ((body, head), (head, body)):
        assert list(task.join(*pieces)) == list(task.initial)
    with pytest.raises(KeyError):
        task.join(body)


@pytest.mark.parametrize("count", [2, 3, -1])
def test_a_head_that_leaves_no_body_is_refused(count: int) -> None:
    with raises("E202", count):
        deep().divide(count)


def test_tensors_of_norms_are_found_with_and_without_parameters() -> None:
    expected = {name for name in deep().initial if name.startswith(("1.", "3."))}
    assert set(deep().norms) == expected
    assert set(Task(DigitsCNN(norm="group")).norms) == {
        f"norm{place}.{leaf}" for place in (1, 2) for leaf in ("weight", "bias")
    }
    assert Task(network()).norms == ()


def test_a_task_that_is_fed_knows_what_an_input_looks_like() -> None:
    task = Task(network())
    fed = task.with_example(torch.ones(4, 2, 3))
    assert torch.equal(fed.sample, torch.zeros(1, 2, 3))
    assert torch.equal(fed.to("cpu").sample, fed.sample)
    with raises("E202", "task.with_example"):
        _ = task.sample


def test_positions_count_the_places_of_every_layer() -> None:
    model = nn.Sequential(
        nn.Embedding(9, 4),
        nn.LayerNorm(4),
        nn.LSTM(4, 5, batch_first=True),
        First(),
        nn.Linear(5, 2),
    )
    # Six tokens run through everything, token by token.
    task = Task(model).with_example(torch.ones(3, 6, dtype=torch.int64))
    assert task.positions() == dict.fromkeys(task.parameter_names, 6)
    image = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    found = Task(image).with_example(torch.ones(3, 1, 4, 4)).positions()
    assert found == {
        **dict.fromkeys(("0.weight", "0.bias", "1.weight", "1.bias"), 4),
        **dict.fromkeys(("3.weight", "3.bias"), 1),
    }


class First(nn.Module):
    """Takes the outputs and leaves the states of a recurrent layer."""

    def forward(self, found: tuple[Tensor, Tensor]) -> Tensor:
        return found[0]


def test_bytes_are_pixels_scaled_as_numpy_scales_them() -> None:
    pixels = torch.arange(256, dtype=torch.uint8)
    scaled = pixels.numpy().astype(np.float32) / np.float32(255)
    assert torch.equal(Task(nn.Linear(6, 3)).inputs(pixels), torch.from_numpy(scaled))
    exact = Task(nn.Linear(6, 3).double()).inputs(pixels)
    assert torch.equal(exact, pixels.double() / 255)


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_are_tokens_of_any_width(kind: torch.dtype) -> None:
    task = Task(nn.Embedding(9, 4))
    tokens = torch.tensor([[0, 8, 3]])
    assert torch.equal(task(task.initial, tokens.to(kind))[0], task(task.initial, tokens)[0])
