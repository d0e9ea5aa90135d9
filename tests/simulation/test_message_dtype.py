"""`train.message_dtype`: what numbers are rounded to, both ways and in every engine."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import masquerade as mq
from masquerade.config.settings import Compute
from masquerade.config.toml import parse
from masquerade.core import Part, Task, tree
from masquerade.methods import FedAvg
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.state import RunState
from masquerade.wire import encode
from tests.support import (
    BUDGETS,
    METHOD_TABLE,
    advance,
    federation,
    network,
    network_of,
    raises,
    restored,
    specified,
)

make: Callable[..., Any] = network_of
data: Callable[..., Any] = federation


def simulated(name: str, wire: str, **compute: Any) -> tuple[Simulation, RunState]:
    """Four rounds of the toy federation."""
    method = METHOD_TABLE[name]
    spec = specified(
        method,
        Task(make(method)),
        data(),
        rounds=4,
        batch_size=4,
        participation=0.67,
        lr_decay=0.97,
        message_dtype=wire,
        compute=Compute(**({"engine": "loop"} | compute)),
        seed=5,
        budgets=BUDGETS,
    )
    with simulating(spec) as made:
        progress = made.begin()
        while progress.number < 4:
            advance(made, progress)
    return made, progress


def numbers(progress: RunState) -> dict[str, torch.Tensor]:
    found = progress.tensors().items()
    return {name: value for name, value in found if not name.startswith("session/version/")}


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["fedavg", "dmpfl", "scaffold"])
def test_engines_round_alike(name: str, wire: str) -> None:
    (_, loop), (_, batched) = (
        simulated(name, wire, engine=engine, clients_per_chunk=3) for engine in ("loop", "batched")
    )
    ours, theirs = numbers(loop), numbers(batched)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-9, atol=1e-9, msg=key)
    for cost in ("down", "up", "values_down", "values_up"):
        assert loop.costs["train"][cost] == batched.costs["train"][cost], cost
    full = numbers(simulated(name, "same")[1])
    assert any(not torch.equal(value, full[key]) for key, value in ours.items())


def test_processes_and_interruptions_change_no_bit() -> None:
    _, alone = simulated("dmpfl", "int8")
    _, together = simulated("dmpfl", "int8", processes=2)
    for name, value in alone.tensors().items():
        assert torch.equal(value, together.tensors()[name]), name
    made, _ = simulated("dmpfl", "int8")
    progress = made.begin()
    for _ in range(4):
        advance(made, progress)
        progress = restored(made, progress.number, progress.tensors(), progress.facts())
    made.close()
    for name, value in alone.tensors().items():
        assert torch.equal(value, progress.tensors()[name]), name


@pytest.mark.parametrize(("wire", "size"), [("float16", 2), ("bfloat16", 2), ("int8", 1)])
def test_bytes_follow(wire: str, size: int) -> None:
    made, progress = simulated("fedavg", wire)
    whole = Part(made.server.task.initial)
    sent = len(encode({"params": whole.to(wire, 1)}))
    assert progress.costs["train"]["up"] == 4 * 4 * sent
    assert progress.costs["train"]["values_up"] == 4 * 4 * size * made.server.task.parameters


def test_clients_and_server_go_on_with_what_was_received() -> None:
    """The server's model is the mean of rounded uploads, and clients start from a rounded one."""
    seen = []

    class Watching(FedAvg):
        """FedAvg that notes what comes and goes."""

        def start(self, task: Any, message: Any, client: Any, round: Any) -> Any:
            """Note a download; what is tried to see which parts a use needs is none."""
            seen.extend([message["params"]] * (round.kind == "train"))
            return super().start(task, message, client, round)

        def aggregate(self, task: Any, server: Any, rows: Any, uploads: Any, *rest: Any) -> Any:
            """Note the uploads."""
            seen.append(uploads["params"])
            return super().aggregate(task, server, rows, uploads, *rest)

    model: Any = network
    method = dataclasses.replace(Watching(), local_epochs=1)
    looped = Compute(engine="loop")
    mq.run(method, Task(model()), data(), 2, batch_size=4, message_dtype="bfloat16", compute=looped)
    assert len(seen) > 2 * 6
    for part in seen:
        assert part.dtype == "bfloat16"
        for value in part.values.values():
            assert torch.equal(value, value.to(torch.bfloat16).to(value.dtype))


def test_a_model_that_did_not_change_is_not_sent_again() -> None:
    """Also where rounding is random: downloads have one noise, uploads one per client and round."""
    made, progress = simulated("fedavg", "int8")
    ids = torch.arange(6)
    message = {"params": Part(progress.server["params"])}
    one, two = (made.context.as_received(message, id, None) for id in (0, 3))
    for left, right in zip(tree.leaves(one), tree.leaves(two), strict=True):
        assert torch.equal(left, right)
    several = made.context.as_received(tree.stack([message] * 6), ids, ("train", 1))
    ups = [made.context.as_received(message, id, ("train", 1)) for id in range(6)]
    for left, right in zip(tree.leaves(several), tree.leaves(tree.stack(ups)), strict=True):
        assert torch.equal(left, right)
    weight = several["params"].values["0.weight"]
    assert not torch.equal(weight[0], weight[1])
    later = made.context.as_received(message, 0, ("train", 2))["params"].values["0.weight"]
    assert not torch.equal(weight[0], later)


def test_the_setting_is_checked_and_written_down(tmp_path: Path) -> None:
    assert parse({"train": {"message_dtype": "int8"}}).train.message_dtype == "int8"
    with raises("E201", "`train.message_dtype`", "'int4'", "`int8`", "bfloat16"):
        parse({"train": {"message_dtype": "int4"}})
    model: Any = network
    with raises("E201", "`train.message_dtype`", "'float8'"):
        mq.run(FedAvg(), model(), data(), 1, message_dtype="float8")
    mq.run(
        FedAvg(local_epochs=1),
        model(),
        data(),
        1,
        batch_size=4,
        message_dtype="int8",
        out=tmp_path / "run",
    )
    assert 'message_dtype = "int8"' in (tmp_path / "run" / "config.toml").read_text(
        encoding="utf-8"
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
