"""VGG16: the layers of torchvision's, and a slim one that is as deep."""

import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, max_pool2d, relu

from masquerade.core.task import Task
from masquerade.models import VGG16, build, slim_vgg


def count(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def test_it_has_the_size_of_the_papers_table_5() -> None:
    with torch.device("meta"):
        # 4 bytes each: 537.21 MB with 10 outputs, 538.09 MB with 64.
        assert count(VGG16(10)) == 134_301_514
        assert round(count(VGG16(64)) * 4 / 1e6, 2) == 538.09
    assert count(slim_vgg(10)) == 256_690


def test_the_last_eight_layers_are_five_convolutions_and_the_classifier() -> None:
    task = Task(slim_vgg())
    weights = [name for name in task.last(8) if name.endswith("weight")]
    assert weights == [f"features.{place}.weight" for place in range(8, 13)] + [
        f"classifier.{place}.weight" for place in range(3)
    ]


def test_it_computes_what_torchvisions_layout_does() -> None:
    model = VGG16(4, widths=(2, 3, 4, 5, 6), dense=7, field=7).double()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, place = x, 0
    for symbol in "CCMCCMCCCMCCCMCCCM":
        if symbol == "M":
            y = max_pool2d(y, 2)
        else:
            y, place = relu(model.features[place](y)), place + 1
    y = adaptive_avg_pool2d(y, 7).flatten(1)
    first, second, third = model.classifier
    torch.testing.assert_close(model(x), third(relu(second(relu(first(y))))))


def test_emnists_images_get_a_margin_of_two_pixels() -> None:
    model = build("vgg_slim", (1, 28, 28), 62, seed=0)
    small = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    framed = torch.zeros(2, 1, 32, 32)
    framed[:, :, 2:30, 2:30] = small
    assert model(small).shape == (2, 62)
    assert torch.equal(model(small), model(framed))


def test_the_signal_reaches_the_end_of_sixteen_layers() -> None:
    task = Task(slim_vgg())
    x = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    spread = task(task.fresh(1), x)[0].std()
    assert 0.05 < spread < 20
