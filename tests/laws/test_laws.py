"""The laws, each over every method of the table: a new method is covered by being in it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from masquerade.core import ClientInfo, Task, tree
from masquerade.core.aggregation import Aggregation
from masquerade.engine.batched import where_busy
from masquerade.engine.vmapped import VmappedMethod
from masquerade.laws.law import DoesNotApply, Law
from masquerade.laws.problem import Problem
from masquerade.laws.settings import neutral_settings_give_fedavg as law_5
from masquerade.laws.settings import settings_survive_the_configuration as law_10
from masquerade.laws.table import LAWS
from masquerade.methods import METHODS, HeteroFL
from masquerade.simulation.build import Simulation
from tests.laws.test_broken import BATCH
from tests.support import BUDGETS, METHOD_TABLE, federation, network, network_of, simulation


def problem(name: str) -> Problem:
    """A method of the table on the toy."""
    # Two epochs have a second one, which is all that laws need.
    method = replace(METHOD_TABLE[name], local_epochs=min(METHOD_TABLE[name].local_epochs, 2))
    task = Task(network_of(method))
    return Problem(method, task, federation(), BUDGETS, batch_size=BATCH, name=name)


def applies(law: Law, name: str) -> bool:
    """Whether a law has something to say of a method."""
    if law.number == 3:
        return not name.startswith("local")
    if law.number == 5:
        return METHODS[name].neutral is not None
    if law.number == 8:
        method = METHOD_TABLE[name]
        limit = method.limit(Task(network_of(method)), ClientInfo(0, 7, 0, 0.6))
        return any(limit.values())
    return True


@pytest.mark.parametrize("name", METHOD_TABLE)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"law_{law.number}_{law.name}")
def test_every_method_keeps_every_law(law: Law, name: str) -> None:
    expected = nullcontext() if applies(law, name) else pytest.raises(DoesNotApply)
    with expected:
        law(problem(name))


class Defended(Problem):
    """A problem whose server bears false updates."""

    @contextmanager
    def simulating(self, rounds: int, drop: float = 0.0, **compute: Any) -> Iterator[Simulation]:
        rule = Aggregation("median", clip_updates=1.0, min_contributors=2)
        with super().simulating(rounds, drop, **compute) as made:
            yield replace(made, server=replace(made.server, aggregation=rule))


@pytest.mark.parametrize(("name", "number"), [("dmpfl", 2), ("fedmask", 2), ("dmpfl", 7)])
def test_the_laws_hold_under_a_robust_rule(name: str, number: int) -> None:
    LAWS[number - 1](Defended(**vars(problem(name))))


def test_laws_are_eleven_and_numbered() -> None:
    assert [law.number for law in LAWS] == list(range(1, 12))
    assert all(law.sentence.endswith(".") and law.advice for law in LAWS)


@pytest.mark.parametrize("name", METHODS)
def test_every_name_survives_the_config(name: str) -> None:
    # Names that are views of one training are one row of the other table.
    task = Task(network())
    law_10(Problem(METHODS[name].method(), task, federation(), name=name))


def test_neutral_settings_give_fedavg_bit_for_bit_unless_differences_are_added_up() -> None:
    rounded = {name for name, entry in METHODS.items() if entry.neutral_within}
    # One of them takes gradients sample by sample, and then their mean.
    assert rounded == {"topk", "pfedme", "pfedgate_sample"}
    assert all(METHODS[name].neutral_within == 1e-12 for name in rounded)


def test_neutral_heterofl_is_fedavg_on_small_devices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # The law gives all devices room where models follow them.
    monkeypatch.setattr(HeteroFL, "budgeted", False)
    law_5(problem("heterofl"))


def test_a_step_without_samples_changes_nothing():
    """All of a client's work stays bit-identical where a step has no sample for it."""
    method = METHOD_TABLE["dmpfl"]
    made = simulation(method, participation=1.0)
    progress = made.begin()
    vmapped = VmappedMethod(method, len(BUDGETS))
    round = made.context.round("train", ("dual", True), 0)
    download = vmapped.download(made.server.task, progress.server, progress.rows.state, round)
    work = vmapped.start(made.server.task, download, progress.clients.state, round)
    stage = vmapped.stages(made.server.task, round)[0]
    work = stage.prepare(work, round)
    loader = made.context.loader
    pack = loader.stack(loader.shuffle(torch.arange(6), stage, round, 0))
    idle = 0
    for row in pack.rows:
        busy = row[:, -2] > 0
        new = where_busy(busy, stage.step(work, loader.batch(row, 1, whole=False), round), work)
        for id, has in enumerate(busy.tolist()):
            same = [
                torch.equal(a[id], b[id])
                for a, b in zip(tree.leaves(work), tree.leaves(new), strict=True)
            ]
            assert has or all(same)
            assert not has or not all(same)
            idle += not has
        work = new
    assert idle


def test_who_is_told_apart_by_the_task():
    """Budgets reach the methods: a client of HeteroFL that can hold half is never wide."""
    task = Task(network())
    for budget, widths in ((1.0, {0.5, 1.0}), (0.5, {0.5})):
        assert {
            HeteroFL().width(task, ClientInfo(0, 1, key, budget)) for key in range(20)
        } == widths
