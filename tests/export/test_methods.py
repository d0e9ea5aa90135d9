"""Every method of the table leaves as ONNX and answers as before, sliced or not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from masquerade.core import Method, Task
from masquerade.core.part import Part
from masquerade.core.random import normal
from masquerade.core.round import Who
from masquerade.export import onnx, session
from masquerade.export.bundle import Model
from masquerade.export.graph import Program, trace_function
from masquerade.export.sliced import cut
from masquerade.methods import METHODS, FedAvg, PFedGate
from masquerade.models import build
from tests import support


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """Every view of every method under law, after two rounds on the toy."""
    found = {}
    for name, method in support.METHOD_TABLE.items():
        task = Task(support.network_of(method).float())
        made, progress = support.simulate(method, rounds=2, task=task)
        x = made.federation.x.float()
        nothing = [torch.zeros(0, dtype=torch.int64)] * made.federation.clients
        for view in method.views:
            parts = made.judge(progress, view, nothing).models[1]
            found[f"{name} {view}"] = Model(method, made.task, parts, x[:9])
    return found


def together(models: dict[str, Model]) -> Callable[[Tensor], Tensor]:
    """Put all models side by side: a conversion costs as much for many as for one."""
    return lambda x: torch.stack([model.predict(x) for model in models.values()], 1)


def answers(program: Program, x: Tensor) -> Tensor:
    """Answer with an ONNX file of a program, written without a check of its own."""
    encoded = onnx.encode(program, x, program(x))
    # Another batch, and one of a single sample, than it was traced with.
    pieces = [session.outputs(session.start(encoded), piece.numpy()) for piece in (x, x[:1] * 1.5)]
    return torch.cat([torch.from_numpy(piece) for piece in pieces])


@pytest.mark.parametrize("form", ["masked", "sliced"])
def test_every_method_answers_as_torch_does(form: str, models: dict[str, Model]) -> None:
    assert {type(model.method) for model in models.values()} == {
        line.method for line in METHODS.values()
    }
    x = next(iter(models.values())).x
    predict = together(models)
    program = trace_function(predict, x)
    assert program.batched
    found = answers(cut(program) if form == "sliced" else program, x)
    expected = torch.cat([predict(x), predict(x[:1] * 1.5)])
    apart = (found - expected).abs().amax((0, 2))
    assert {name: float(far) for name, far in zip(models, apart, strict=True) if far > 1e-5} == {}
    # Models differ, so that a wrong one would be seen.
    assert len(torch.unique(expected[0], dim=0)) > len(models) / 2


@pytest.mark.parametrize("solver", ["greedy", "exact"])
def test_a_gate_for_every_sample_is_inside_the_graph(solver: str) -> None:
    method = PFedGate(gating="sample", solver=solver, blocks=3)
    x = normal(1, (5, 6)).float()
    task = Task(support.network().float()).fed(x)
    client = method.client_init(task, Who(0, 1, 3, 0.6))
    client["gate"]["gate.linear"] = client["gate"]["gate.linear"] * 20
    parts = method.personalize(task, {"params": Part(task.initial)}, client, "personal")
    model = Model(method, task, parts, x)
    program = model.masked()
    assert not program.batched
    model.onnx(program)
    # Samples choose different blocks: no single set of weights would do.
    with pytest.raises(Exception, match="other weights for every sample"):
        model.networks()
    one = Model(method, task, parts, x[:1])
    assert not torch.allclose(
        one.predict(x[:1] * -3), FedAvg().predict(task, {"params": Part(task.initial)}, x[:1] * -3)
    )


NETWORKS = [("vgg_slim", (3, 32, 32)), ("resnet18_cifar_group", (3, 8, 8)), ("row_lstm", (1, 4, 4))]


def test_networks_of_the_table_leave_as_they_are() -> None:
    """Pixels are scaled inside, tokens looked up, and what shares a tensor goes on sharing it."""
    for name, shape in NETWORKS:
        x = (normal(1, (2, *shape)).abs() * 80).to(torch.uint8)
        task = Task(build(name, shape, 3, seed=1)).fed(x)
        method: Method = FedAvg()
        model = Model(method, task, {"params": Part(task.initial)}, x)
        data = model.onnx(cut(model.masked()))
        assert len(data) < 4 * task.parameters * 1.05 + 40_000
