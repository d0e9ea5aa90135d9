"""Networks by name: reproducible, refused where they cannot fit, and batched over clients."""

from dataclasses import replace

import pytest
import torch

from masquerade.core import Batch, Round
from masquerade.core.sgd import sgd_step
from masquerade.core.task import Task
from masquerade.core.tree import Tree, leaves, split, stack, take
from masquerade.models import MODELS, build
from tests.messages import Golden
from tests.support import raises

SHAPES = {
    "mlp": (1, 8, 8),
    "mlp_bn": (5,),
    "logistic": (28, 28),
    "cifar_cnn": (3, 32, 32),
    "cifar_cnn_bn": (3, 32, 32),
    "mnist_cnn": (1, 28, 28),
    "dropout_cnn": (3, 32, 32),
    "digits_cnn": (1, 8, 8),
    "digits_cnn_bn": (1, 8, 8),
    "resnet18": (3, 8, 8),
    "resnet18_group": (3, 8, 8),
    "resnet18_cifar": (3, 8, 8),
    "resnet18_cifar_group": (3, 8, 8),
    "vgg_slim": (3, 32, 32),
    "mlp_1024_512": (561,),
    "mlp_300_100": (9, 128),
    "lenet": (3, 32, 32),
    "lenet_wide": (3, 16, 16),
    "leaf_cnn": (1, 28, 28),
    "pfllib_cnn": (3, 32, 32),
    "mnist_conv": (1, 28, 28),
    "mlp_256_128": (1, 8, 8),
    "row_lstm": (1, 8, 8),
    "row_lstm_64": (1, 8, 8),
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


# A convolution has (inputs x kernel + 1) x outputs, a linear layer (inputs + 1) x outputs. Printed:
# FedMask, Table 5 (4 bytes each: VGG16 537.21 MB, HAR 4.41 MB, characters 1.53 MB); pFedGate,
# App. G; McMahan et al., 2017, section 3. DM-PFL's are inferred, see its page.
COUNTS = [
    ("cifar_cnn", (3, 32, 32), 10, 797_962),
    ("mnist_cnn", (1, 28, 28), 10, 1_663_370),
    ("lenet", (3, 32, 32), 10, 256_830),
    ("lenet_wide", (3, 32, 32), 100, 4_146_300),
    ("leaf_cnn", (3, 32, 32), 100, 3_537_444),
    ("leaf_cnn", (1, 28, 28), 62, 2_278_334),
    ("leaf_cnn", (1, 28, 28), 10, 2_171_786),
    ("vgg16", (3, 32, 32), 10, 134_301_514),
    # One channel instead of three has 2 x 9 x 64 weights less, and 62 outputs have 52 x 4097 more.
    ("vgg16", (1, 28, 28), 10, 134_301_514 - 2 * 9 * 64),
    ("vgg16", (1, 28, 28), 62, 134_301_514 - 2 * 9 * 64 + 52 * 4097),
    ("vgg_slim", (3, 32, 32), 10, 256_690),
    ("mlp_1024_512", (561,), 6, 1_103_366),
    ("mlp_300_100", (561,), 6, 199_306),
    # The raw signals have 9 x 128 = 1152 numbers instead of 561.
    ("mlp_1024_512", (9, 128), 6, 1_103_366 + (1152 - 561) * 1024),
    ("mlp_300_100", (9, 128), 6, 199_306 + (1152 - 561) * 300),
    # Three layers, 784-256-128-10; four gates that read a row and 64 states, and the head.
    ("mlp_256_128", (1, 28, 28), 10, 785 * 256 + 257 * 128 + 129 * 10),
    ("row_lstm_64", (1, 28, 28), 10, 4 * (28 + 64 + 1) * 64 + 65 * 10),
    # PFLlib's FedAvgCNN for CIFAR-100: 2,432 + 51,264 in convolutions, 819,712 + 51,300 behind.
    ("pfllib_cnn", (3, 32, 32), 100, 924_708),
    ("mnist_conv", (1, 28, 28), 10, 832 + 51_264 + 10_250),
    ("char_lstm", (80,), 80, 382_352),
    ("resnet18", (3, 32, 32), 10, 11_181_642),
    ("resnet18_group", (3, 32, 32), 10, 11_181_642),
    # The stem has 3 x 64 x (49 - 9) = 7,680 weights less.
    ("resnet18_cifar", (3, 32, 32), 10, 11_173_962),
    ("resnet18_cifar_group", (3, 32, 32), 10, 11_173_962),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_the_networks_of_the_papers_have_their_sizes(
    name: str, shape: tuple[int, ...], classes: int, count: int
) -> None:
    network = replace(MODELS[name], shape=shape, classes=classes)
    assert MODELS[name].takes(shape)
    assert network.parameters() == count


def test_a_network_is_at_home_with_its_own_shape() -> None:
    assert all(network.takes(network.shape) for network in MODELS.values())
    assert all(network.about for network in MODELS.values())


def test_images_that_are_too_small_for_two_poolings_are_refused() -> None:
    with raises("E202", "`lenet`", "16 x 16"):
        build("lenet", (1, 8, 8), 10, seed=0)


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 64, 64)])
def test_vgg_takes_images_of_28_to_32_pixels(shape: tuple[int, ...], golden: Golden) -> None:
    with raises("E202", "`vgg_slim`", "28 x 28", "32 x 32") as refusal:
        build("vgg_slim", shape, 10, seed=0)
    golden(refusal.value)


def test_unknown_name_gets_the_nearest_match() -> None:
    with raises("E201", "`cifarcnn`", "`cifar_cnn`"):
        build("cifarcnn", (3, 32, 32), 10, seed=0)


def test_name_like_no_other_gets_the_list() -> None:
    with raises("E201", "`xyz`", "mlp", "logistic"):
        build("xyz", (4,), 2, seed=0)


@pytest.mark.parametrize("name", [name for name in SHAPES if MODELS[name].needs == "this shape"])
def test_wrong_input_shape_is_refused_with_the_shape_it_needs(name: str) -> None:
    needed = ", ".join(map(str, SHAPES[name]))
    with raises("E202", f"({needed})", "(3, 8, 8)"):
        build(name, (3, 8, 8), 10, seed=0)


@pytest.mark.parametrize("name", SHAPES)
def test_a_batch_of_one_sample_is_trained_on(name: str) -> None:
    """The last batch of an epoch may be as small, and deep layers may see a single pixel of it."""
    task, one = Task(build(name, SHAPES[name], 10, seed=0)), torch.ones(())
    x = torch.rand(1, *SHAPES[name], generator=torch.Generator().manual_seed(0))
    if name == "char_lstm":
        x = (x * 3).long()
    batch = Batch(x, torch.tensor([3]), None, torch.tensor(0))
    step = sgd_step(task, lr=0.1)
    after = step({"params": task.initial}, batch, Round("train", "train", one, one, one))["params"]
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(after[key], task.initial[key]) for key in after)


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
