"""Every method of the table leaves as ONNX and answers as before, sliced or not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import Task
from masquerade.core.part import Part
from masquerade.core.random import normal
from masquerade.core.round import ClientInfo
from masquerade.export import onnx
from masquerade.export import predict as session
from masquerade.export.bundle import Model
from masquerade.export.graph import trace_function
from masquerade.export.sliced import cut
from masquerade.methods import METHODS, FedAvg, PFedGate
from masquerade.models import VGG16, build
from tests import support
from tests.export.test_sliced import SmallResNet
from tests.support import measure, raises


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """Every view of every method under law, after two rounds on the toy."""
    found = {}
    for name, method in support.METHOD_TABLE.items():
        # A gate for every sample is no graph over batches; it has a test of its own below.
        if getattr(method, "gating", "") == "sample":
            continue
        task = Task(support.network_of(method).float())
        made, progress = support.simulate(method, rounds=2, task=task)
        x = made.federation.x.float()
        nothing = [torch.zeros(0, dtype=torch.int64)] * made.federation.clients
        for view in method.views:
            parts = measure(made, progress, view, nothing).models[1]
            found[f"{name} {view}"] = Model(method, made.server.task, parts, x[:9])
    return found


def together(models: dict[str, Model]) -> Callable[[Tensor], Tensor]:
    """Put all models side by side: a conversion costs as much for many as for one."""

    def answer(x: Tensor) -> Tensor:
        # `Model.predict` switches gradients off, which torch takes out of a graph at great length.
        each = (model.method.predict(model.task, model.parts, x) for model in models.values())
        return torch.stack(list(each), 1)

    return answer


def test_every_method_answers_as_torch_does(models: dict[str, Model]) -> None:
    assert {type(model.method) for model in models.values()} == {
        line.method for line in METHODS.values()
    }
    x = next(iter(models.values())).x
    predict = together(models)
    program = trace_function(predict, x)
    assert program.batched
    torch.testing.assert_close(program(x), predict(x))
    encoded = onnx.encode(cut(program), x, predict(x))
    # Another batch, of a single sample, than it was traced and checked with.
    for piece in (x, x[:1] * 1.5):
        found = torch.from_numpy(session.outputs(session.start(encoded), piece.numpy()))
        apart = (found - predict(piece)).abs().amax((0, 2))
        far = dict(zip(models, apart.tolist(), strict=True))
        assert {name: off for name, off in far.items() if off > 1e-5} == {}
    # Models differ, so that a wrong one would be seen.
    assert len(torch.unique(predict(x)[0], dim=0)) > len(models) / 2


@pytest.mark.parametrize("solver", ["greedy", pytest.param("exact", marks=pytest.mark.drill)])
def test_a_gate_for_every_sample_is_inside_the_graph(solver: str) -> None:
    method = PFedGate(gating="sample", solver=solver, blocks=3)
    x = normal(1, (5, 6)).float()
    task = Task(support.network().float()).with_example(x)
    client = method.client_init(task, ClientInfo(0, 1, 3, 0.6))
    client["gate"]["gate.linear"] = client["gate"]["gate.linear"] * 20
    parts = method.personalize(task, {"params": Part(task.initial)}, client, "personal")
    model = Model(method, task, parts, x)
    program = model.masked()
    assert not program.batched
    # It is compared with `predict` on all five samples, which choose different blocks.
    model.onnx(program)
    gate, chooser = parts["gate"].values, method.gated(task)
    flags = chooser.choose(chooser.scores(gate, x)[0], gate["room"])
    assert len(torch.unique(flags, dim=0)) > 1
    with raises("E202"):
        model.networks()


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else -x


def test_what_the_values_of_an_input_decide_is_refused() -> None:
    with raises("E202"):
        trace_function(Branching(), torch.ones(2, 3))


def pictures() -> Iterator[tuple[str, nn.Module]]:
    yield "vgg", VGG16(5, (4, 4, 6, 6, 8), 10, 2)
    yield "resnet batch", SmallResNet("batch")
    yield "resnet group", SmallResNet("group")


def test_pixels_are_scaled_and_norms_are_known_inside_the_graph() -> None:
    x = (normal(1, (3, 3, 32, 32)).abs() * 80).to(torch.uint8)
    tasks = {name: Task(network.eval()).with_example(x) for name, network in pictures()}

    def predict(given: Tensor) -> Tensor:
        return torch.stack([task(task.initial, given)[0] for task in tasks.values()], 1)

    program = trace_function(predict, x)
    with torch.no_grad():
        onnx.encode(cut(program), x, predict(x))


@pytest.mark.drill
@pytest.mark.parametrize(
    ("name", "shape"),
    [("vgg16", (3, 32, 32)), ("resnet18_cifar", (3, 32, 32)), ("char_lstm", (20,))],
)
def test_networks_of_the_papers_leave_as_large_as_they_are(name: str, shape: Any) -> None:
    """What layers share, as those of a recurrent network do, is in the file once."""
    x = (normal(1, (2, *shape)).abs() * 20).to(torch.int64 if name == "char_lstm" else torch.uint8)
    task = Task(build(name, shape, 80, seed=1)).with_example(x)
    model = Model(FedAvg(), task, {"params": Part(task.initial)}, x)
    data = model.onnx(cut(model.masked()))
    assert len(data) < 4 * task.parameters * 1.02 + 60_000
