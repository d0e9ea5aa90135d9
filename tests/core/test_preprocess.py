"""Preprocessing: by hand, as a property, and wherever a task takes it along."""

import copy
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from masquerade.core import Task
from masquerade.core.preprocess import Normalize, Raw, Scale, Standardize, describe
from masquerade.core.random import normal
from masquerade.models import DigitsCNN
from tests.support import network, raises

PIXELS = torch.arange(256, dtype=torch.uint8).reshape(2, 2, 8, 8)


def before(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What a task did to samples before it had preprocessing."""
    if x.dtype == torch.uint8:
        pixels = x.to(dtype)
        return pixels / pixels.new_full((), 255)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("x", [PIXELS, normal(1, (4, 3)), normal(1, (4, 3)).float()])
def test_the_default_gives_the_bits_that_it_always_gave(x: Tensor, dtype: torch.dtype) -> None:
    found = Task(network(dtype)).inputs(x)
    assert found.dtype is dtype
    assert torch.equal(found, before(x, dtype))


def test_raw_bytes_are_numbers_up_to_255() -> None:
    found = Task(network(torch.float32), preprocess=Raw()).inputs(PIXELS)
    assert torch.equal(found, PIXELS.float())


def test_every_channel_has_its_own_mean_and_std() -> None:
    # Bytes 51 and 204 are 0.2 and 0.8 of 255.
    x = torch.tensor([51, 204], dtype=torch.uint8).reshape(1, 2, 1, 1).expand(3, 2, 4, 4)
    task = Task(network(), preprocess=Normalize((0.1, 0.3), (0.5, 0.25)))
    first, second = task.inputs(x).unbind(1)
    torch.testing.assert_close(first, torch.full((3, 4, 4), 0.2).double())
    torch.testing.assert_close(second, torch.full((3, 4, 4), 2.0).double())


def test_features_and_one_number_for_all_are_normalized_too() -> None:
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    assert Normalize((2, 20), (1, 10))(x).tolist() == [[-1, -1], [1, 1]]
    assert Normalize(1, 2)(x).tolist() == [[0, 4.5], [1, 14.5]]
    assert Normalize(1, 2)(x[:, 0]).tolist() == [0, 1]


def test_sums_of_two_clients_give_mean_and_std() -> None:
    # Feature 0 is 1, 2 | 6: means 1.5 and 6, squared deviations 0.25 + 0.25 and 0. Together n = 3,
    # mean 3 and 0.5 + 0 + 2·1/3 · 4.5² = 14, which is 4 + 1 + 9; variance 14/3.
    # Feature 1 is 5 everywhere: variance 0, so it is divided by 1.
    standard = Standardize()
    one = standard.statistics(torch.tensor([[1.0, 5.0], [2.0, 5.0]]))
    other = standard.statistics(torch.tensor([[6.0, 5.0]]))
    assert {name: value.tolist() for name, value in one.items()} == {
        "count": 2,
        "sum": [3, 10],
        "deviations": [0.5, 0],
    }
    assert all(value.dtype is torch.float64 for value in one.values())
    fitted = standard.fitted(standard.merged(one, other))
    assert fitted.mean.tolist() == [3, 5]
    assert fitted.std.tolist() == pytest.approx([(14 / 3) ** 0.5, 1])


def test_pixels_count_by_channel_as_numbers_from_0_to_1() -> None:
    # Two images of two channels, 2 × 1 pixels: 0, 255 | 255, 255 and 51, 51 | 0, 0.
    given = torch.tensor([0, 255, 51, 51, 255, 255, 0, 0], dtype=torch.uint8).reshape(2, 2, 2, 1)
    found = Standardize().statistics(given)
    assert float(found["count"]) == 4
    assert found["sum"].tolist() == pytest.approx([3, 0.4])
    # Means 0.75 and 0.1: 0.75² + 3 · 0.25² = 0.75, and 4 · 0.1² = 0.04.
    assert found["deviations"].tolist() == pytest.approx([0.75, 0.04])


numbers = st.floats(-100, 100, width=32)


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30), st.integers(1, 29))
def test_what_was_standardized_has_mean_0_and_std_1(rows: list[list[float]], cut: int) -> None:
    x, standard = torch.tensor(rows), Standardize()
    pieces = [standard.statistics(part) for part in torch.split(x, cut)]
    found = standard.fitted(reduce(standard.merged, pieces))(x)
    for values, given_values in zip(found.T, x.double().T, strict=True):
        middle, spread = float(given_values.mean()), float(given_values.std(correction=0))
        if spread > 1e-10 * abs(middle) and spread > 1e-30:
            assert float(values.mean()) == pytest.approx(0, abs=1e-4)
            assert float(values.std(correction=0)) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("cut", [1, 7, 1000])
@pytest.mark.parametrize("step", [64.0, 1e3, 1e6])
def test_a_spread_that_is_small_beside_the_mean_is_seen(step: float, cut: int) -> None:
    # Near 1e9 float32 has steps of 64.
    x, standard = 1e9 + step * torch.arange(1000.0)[:, None].remainder(5), Standardize()
    pieces = [standard.statistics(part) for part in torch.split(x, cut)]
    fitted = standard.fitted(reduce(standard.merged, pieces))
    assert fitted.mean.tolist() == pytest.approx([float(x.double().mean())], rel=1e-15)
    assert fitted.std.tolist() == pytest.approx([float(x.double().std(correction=0))], rel=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e6, 1 / 3, -7.3, 1e9 + 64])
@pytest.mark.parametrize("cut", [3, 1000])
def test_a_constant_feature_is_divided_by_1_whatever_sums_are_rounded_to(
    value: float, cut: int
) -> None:
    x, standard = torch.full((1000, 1), value), Standardize()
    pieces = [standard.statistics(part) for part in torch.split(x, cut)]
    fitted = standard.fitted(reduce(standard.merged, pieces))
    assert fitted.std.tolist() == [1]
    assert float(fitted(x).abs().max()) <= 1e-12 * abs(value)


def test_what_is_not_fitted_is_not_used() -> None:
    with raises("E202"):
        Task(network(), preprocess=Standardize())(network().state_dict(), normal(1, (2, 6)))


@pytest.mark.parametrize(
    ("mean", "std"), [(0.5, 0.0), (0.5, -1.0), ((0.5, 0.5), 1.0), (float("nan"), 1.0)]
)
def test_constants_that_cannot_normalize_are_refused(mean: float, std: float) -> None:
    with raises("E201", "stds"):
        Normalize(mean, std)


def test_constants_for_other_channels_are_refused() -> None:
    task = Task(network(), preprocess=Normalize((0.1, 0.2, 0.3), (1, 1, 1)))
    with raises("E202", "3", "[1, 8, 8]"):
        task.with_example(torch.zeros(2, 1, 8, 8))


def test_tokens_are_never_preprocessed() -> None:
    tokens = torch.tensor([[1, 4]])
    task = Task(nn.Embedding(5, 2), preprocess=Normalize(0.5, 0.5))
    assert torch.equal(task.inputs(tokens), tokens)
    with raises("E202", "tokens"):
        task.with_example(tokens)
    Task(nn.Embedding(5, 2)).with_example(tokens)


def test_constants_are_rounded_once_to_the_type_of_the_network() -> None:
    task = Task(network(torch.float32), preprocess=Normalize(0.1, 0.3))
    assert task.preprocess.mean.dtype is torch.float32
    x = normal(1, (5, 6)).float()
    by_hand = (x - torch.tensor(0.1)) / torch.tensor(0.3)
    assert torch.equal(task.inputs(x), by_hand)
    assert torch.equal(task.to("cpu").inputs(x), by_hand)


def test_preprocessing_that_was_given_is_not_changed() -> None:
    own = Normalize(0.1, 0.3)
    Task(network(torch.float32), preprocess=own)
    assert own.mean.dtype is torch.float64


def test_a_function_of_ones_own_may_change_the_shape() -> None:
    def first_axis_last(x: Tensor) -> Tensor:
        return x.movedim(-1, 1) / 255

    task = Task(DigitsCNN(), preprocess=first_axis_last)
    images = torch.arange(3 * 64, dtype=torch.uint8).reshape(3, 8, 8, 1)
    plain = Task(task.module)
    assert torch.equal(task(task.initial, images)[0], plain(task.initial, images.movedim(-1, 1))[0])
    assert task.with_example(images).positions()
    assert describe(first_axis_last) == "samples go through `first_axis_last`"


def test_a_module_of_ones_own_has_the_type_of_the_network_and_is_not_trained() -> None:
    own = nn.Linear(6, 6)
    task = Task(network(), preprocess=own)
    assert isinstance(task.preprocess, nn.Linear)
    assert task.preprocess.weight.dtype is torch.float64
    assert not task.preprocess.weight.requires_grad
    assert own.weight.requires_grad
    assert task.initial.keys() == Task(network()).initial.keys()


def test_clients_batched_are_normalized_as_one_by_one() -> None:
    task = Task(DigitsCNN(), preprocess=Normalize((0.3, 0.6), (0.2, 0.4)))
    x = PIXELS[None].expand(3, *PIXELS.shape)
    mapped = torch.func.vmap(task.inputs)(x)
    assert torch.equal(mapped, torch.stack([task.inputs(one) for one in x]))


@pytest.mark.parametrize("own", [Scale(), Raw(), Normalize((0.3, 0.6), (0.2, 0.4))], ids=describe)
def test_the_layout_of_images_is_kept_and_changes_no_bit(own: nn.Module) -> None:
    task = Task(DigitsCNN(), preprocess=copy.deepcopy(own))
    found = task.inputs(PIXELS.to(memory_format=torch.channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, task.inputs(PIXELS))


def test_each_says_what_it_does_in_a_sentence() -> None:
    assert describe(Scale()) == "bytes are divided by 255"
    assert describe(Raw()) == "bytes are read as numbers from 0 to 255"
    assert describe(Normalize(0.1307, 0.3081)) == (
        "bytes are divided by 255, then mean 0.1307 is subtracted and the rest divided by std "
        "0.3081"
    )
    assert "each of 561 features" in describe(Normalize([0.0] * 561, [1.0] * 561))
    assert "training samples" in describe(Standardize())
