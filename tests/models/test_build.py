"""Networks by name: reproducible, refused where they cannot fit, and batched over clients."""

import pytest
import torch

from masquerade.core.task import Task
from masquerade.core.tree import Tree, leaves, split, stack, take
from masquerade.errors import MasqueradeError
from masquerade.models import MODELS, build

SHAPES = {
    "mlp": (1, 8, 8),
    "mlp_bn": (5,),
    "logistic": (28, 28),
    "cifar_cnn": (3, 32, 32),
    "mnist_cnn": (1, 28, 28),
    "dropout_cnn": (3, 32, 32),
    "digits_cnn": (1, 8, 8),
    "digits_cnn_bn": (1, 8, 8),
    "resnet18": (3, 8, 8),
    "resnet18_group": (3, 8, 8),
    "resnet18_cifar": (3, 8, 8),
    "resnet18_cifar_group": (3, 8, 8),
    "vgg_slim": (3, 32, 32),
    "row_lstm": (1, 8, 8),
    "char_lstm": (12,),
}
SHAPES |= {f"{name}_binary": shape for name, shape in SHAPES.items() if f"{name}_binary" in MODELS}


def test_every_network_is_built_here() -> None:
    # VGG16 is the slim one's text with other widths, and half a gigabyte.
    assert SHAPES.keys() | {"vgg16"} == MODELS.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_equal_seeds_give_equal_weights_and_others_do_not(name: str) -> None:
    def weights(seed: int) -> Tree:
        task = Task(build(name, SHAPES[name], 10, seed))
        # Norms begin as the identity whatever the seed.
        return split(task.initial, task.norms)[1]

    first, again, other = weights(5), weights(5), weights(6)
    assert all(torch.equal(first[key], again[key]) for key in first)
    # Biases may begin at zero or one, whatever the seed.
    drawn = [key for key in first if key.endswith("weight")]
    assert drawn
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


def test_building_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    build("mlp", (4,), 2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_logistic_is_a_single_linear_layer() -> None:
    assert Task(build("logistic", (28, 28), 10, seed=0)).parameters == 7850


def test_unknown_name_gets_the_nearest_match() -> None:
    with pytest.raises(MasqueradeError, match=r"E201 unknown model `cifarcnn` .*`cifar_cnn`\?"):
        build("cifarcnn", (3, 32, 32), 10, seed=0)


def test_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(MasqueradeError, match="E201 unknown model `xyz`; known are mlp, logistic"):
        build("xyz", (4,), 2, seed=0)


@pytest.mark.parametrize("name", [name for name in SHAPES if "cnn" in name or "vgg" in name])
def test_wrong_input_shape_is_refused_with_the_shape_it_needs(name: str) -> None:
    needed = ", ".join(map(str, SHAPES[name]))
    with pytest.raises(MasqueradeError, match=rf"E202 .*\({needed}\).*\(3, 8, 8\)"):
        build(name, (3, 8, 8), 10, seed=0)


@pytest.mark.parametrize("name", SHAPES)
def test_clients_batched_equal_clients_one_by_one(name: str) -> None:
    task = Task(build(name, SHAPES[name], 10, seed=0))
    trained = {name for name in task.initial if task.trainable(name)}
    rest = {name: value for name, value in task.initial.items() if name not in trained}
    fresh = [task.fresh(client) for client in range(2)]
    values = stack([{name: one[name] for name in trained} for one in fresh])
    x = torch.randn(2, 3, *SHAPES[name], generator=torch.Generator().manual_seed(0))
    if name == "char_lstm":
        x = (x.abs() * 3).long()

    def square(own: Tree, inputs: torch.Tensor) -> torch.Tensor:
        return task({**rest, **own}, inputs)[0].square().sum()

    slope = torch.func.grad(square)
    batched = torch.func.vmap(slope)(values, x)
    for client in range(2):
        alone = slope(take(values, client), x[client])
        for one, other in zip(leaves(take(batched, client)), leaves(alone), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
