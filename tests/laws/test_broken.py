"""Planted mistakes: every law can fail, and says where."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from masquerade.core import Blocks, Method, Part, Stage, Task, gradient, tree
from masquerade.core.vmap import mapped
from masquerade.engine.store import Store
from masquerade.laws import engines, messages, purity, settings, states, steps
from masquerade.laws.compare import close, equal
from masquerade.laws.law import Law, LawBroken, Where, at
from masquerade.laws.problem import Problem
from masquerade.laws.table import LAWS
from masquerade.methods import METHODS, FedEM, FedSelect, HeteroFL, MethodEntry, PFedGate, TopK
from tests.support import BUDGETS, federation, network

BATCH = 8
"""Of the toy's clients some have less, some have one batch and a half, and one has two."""


def toy(method: Method, name: str = "") -> Problem:
    return Problem(method, Task(network()), federation(), BUDGETS, batch_size=BATCH, name=name)


def breach(law: Law, problem: Problem, said: str) -> LawBroken:
    """What a law says of a method that breaks it."""
    with pytest.raises(LawBroken, match=said) as caught:
        law(problem)
    assert caught.value.law is law
    assert str(caught.value).startswith(f"E207 law {law.number} is broken")
    assert law.advice in str(caught.value)
    return caught.value


def scaled(task: Task, method: Method, scale: Callable[[Any, Any], Any]) -> tuple[Stage, ...]:
    """A stage whose steps are those of SGD, and then scaled."""
    sgd = method.sgd_step(task)

    def step(work, batch, round):
        new = sgd(work, batch, round)
        factor = scale(batch, round)
        return {**new, "params": tree.each(lambda value: value * factor, new["params"])}

    return (Stage("scaled", step),)


class WritesInPlace(Method):
    """It halves a bias where it lies."""

    def start(self, task, message, client, round):
        message["params"].values["0.bias"].mul_(0.5)
        return super().start(task, message, client, round)


class WritesInThen(Method):
    """After its only stage it writes into what the client holds."""

    def client_init(self, task, info):
        return {"bias": task.initial["0.bias"]}

    def start(self, task, message, client, round):
        return {**super().start(task, message, client, round), "held": client["bias"]}

    def plan(self, task, round):
        def then(work, round):
            work["held"].add_(1)
            return work

        return (Stage("train", self.sgd_step(task), then=then), Stage("more", self.sgd_step(task)))


class AggregatesInPlace(Method):
    """It writes into the server that it was given."""

    def aggregate(self, task, server, rows, uploads, cohort, round):
        server["params"]["0.bias"].add_(1)
        return super().aggregate(task, server, rows, uploads, cohort, round)


class RollsDice(Method):
    """Its steps draw from Python."""

    def plan(self, task, round):
        return scaled(task, self, lambda batch, round: 1 + random.random())


class DrawsFromTorch(Method):
    """Its steps draw from torch's own generator."""

    def plan(self, task, round):
        return scaled(task, self, lambda batch, round: 1 + torch.rand(()))


class KnowsItsEngine(Method):
    """It is another method where it is mapped over clients."""

    def finish(self, task, work, message, client, round):
        upload, client = super().finish(task, work, message, client, round)
        values = tree.each(lambda value: value + 1e-7 * mapped(), upload["params"].values)
        return {"params": Part(values)}, client


class Branches(Method):
    """A number decides in Python."""

    def finish(self, task, work, message, client, round):
        if work["params"]["0.bias"].sum() > 0:
            return super().finish(task, work, message, client, round)
        return {"params": message["params"]}, client


class Miscounts(Method):
    """It sends four numbers, of which its blocks cover six."""

    def finish(self, task, work, message, client, round):
        upload, client = super().finish(task, work, message, client, round)
        keep = torch.ones(2, dtype=torch.bool)
        wrong = Part({"four": torch.zeros(4)}, {"four": keep}, {"four": Blocks((3, 3))})
        return {**upload, "wrong": wrong}, client


class CountsClients(Method):
    """It remembers how many clients came before."""

    calls: ClassVar[Iterator[int]] = itertools.count()

    def finish(self, task, work, message, client, round):
        upload, client = super().finish(task, work, message, client, round)
        place = next(self.calls)
        return {"params": Part(tree.each(lambda v: v + place, upload["params"].values))}, client


class HidesANumber(Method):
    """It keeps a number as an attribute of a tensor, which no file has."""

    def aggregate(self, task, server, rows, uploads, cohort, round):
        new, rows = super().aggregate(task, server, rows, uploads, cohort, round)
        rounds = getattr(server["params"]["0.bias"], "rounds", 0)
        bias = new["params"]["0.bias"] + rounds
        bias.rounds = rounds + 1
        return {"params": {**new["params"], "0.bias": bias}}, rows


class SendsTooMuch(Method):
    """It sends all of a tensor, of which it said three entries."""

    def limit(self, task, info):
        return {"use": {}, "upload": {"0.weight": 3}}


class UsesTooMuch(SendsTooMuch):
    """It uses all of a tensor, of which it said three entries."""

    def limit(self, task, info):
        return {"use": {"0.weight": 3}, "upload": {}}


class LimitsNothing(Method):
    """Its limit is of a tensor that there is not."""

    def limit(self, task, info):
        return {"use": {}, "upload": {"0.wieght": 3}}


class ReadsTheRound(Method):
    """Its steps read the round's number in Python."""

    def plan(self, task, round):
        return scaled(task, self, lambda batch, round: 1 / (1 + float(round.number)))


class CountsSteps(Method):
    """Its steps count themselves in Python."""

    def plan(self, task, round):
        calls = itertools.count(1)
        return scaled(task, self, lambda batch, round: 1 / next(calls))


class AveragesPadding(Method):
    """Its steps go by the mean over all samples of a batch, real or not."""

    def plan(self, task, round):
        def step(work, batch, round):
            def mean(trees):
                return task.losses(trees["params"], batch)[0].mean(), {}

            grads = gradient(mean, {"params": work["params"]})[0]["params"]
            return {"params": tree.each(lambda value, grad: value - grad, work["params"], grads)}

        return (Stage("train", step, 2),)


IN_TRAINING = {"kind": "train", "phase": "train"}
PLANTED = [
    (
        purity.functions_are_pure,
        WritesInPlace(),
        {**IN_TRAINING, "stage": "train", "client": 1, "tensor": "server/params/0.bias"},
        "written into",
    ),
    (
        purity.functions_are_pure,
        WritesInThen(),
        {**IN_TRAINING, "stage": "more", "client": 1, "tensor": "client/bias", "apart": 1.0},
        "written into",
    ),
    (
        purity.functions_are_pure,
        AggregatesInPlace(),
        {**IN_TRAINING, "client": None, "tensor": "server/params/0.bias"},
        "written into by `aggregate`",
    ),
    (
        purity.functions_are_pure,
        RollsDice(),
        {**IN_TRAINING, "stage": "scaled", "client": 1, "tensor": "params/0.weight"},
        "other work the second time",
    ),
    (
        purity.functions_are_pure,
        DrawsFromTorch(),
        {**IN_TRAINING, "stage": "scaled", "client": 1, "tensor": "params/0.weight"},
        "other work the second time",
    ),
    (
        engines.engines_agree,
        KnowsItsEngine(),
        {**IN_TRAINING, "number": 0, "tensor": "server/params/0.weight"},
        "batched differs from the loop; 6 of",
    ),
    (
        messages.counted_bytes_are_encoded_bytes,
        Miscounts(),
        {**IN_TRAINING, "client": 1},
        "RuntimeError: .*shape",
    ),
    (
        engines.order_does_not_matter,
        CountsClients(),
        {**IN_TRAINING, "number": 1, "tensor": "uploads/params/values/0.weight"},
        "another order",
    ),
    (
        states.saved_runs_continue,
        HidesANumber(),
        {**IN_TRAINING, "number": 2, "tensor": "server/params/0.bias"},
        "a run that was loaded goes on otherwise",
    ),
    (
        states.saved_runs_continue,
        CountsClients(),
        {**IN_TRAINING, "number": 0, "tensor": "server/params/0.weight"},
        "two runs differ",
    ),
    (
        messages.densities_stay_within_the_limit,
        SendsTooMuch(),
        {**IN_TRAINING, "client": 0, "tensor": "params/0.weight", "apart": 45},
        "48 entries are kept, and `limit` allows 3",
    ),
    (
        messages.densities_stay_within_the_limit,
        UsesTooMuch(),
        {"kind": "adapt", "phase": ("global", False), "client": 0, "tensor": "params/0.weight"},
        "48 entries are kept, and `limit` allows 3",
    ),
    (
        messages.densities_stay_within_the_limit,
        LimitsNothing(),
        {"tensor": ""},
        "no model and no upload has",
    ),
    (
        steps.traced_steps_serve_every_round,
        ReadsTheRound(),
        {**IN_TRAINING, "stage": "scaled"},
        "cannot be traced, so it reads a number in Python",
    ),
    (
        steps.traced_steps_serve_every_round,
        CountsSteps(),
        {**IN_TRAINING, "stage": "scaled", "number": 1, "tensor": "params/0.weight"},
        "traced in round 1 gives something else",
    ),
    (
        steps.padding_changes_nothing,
        AveragesPadding(),
        {**IN_TRAINING, "stage": "train", "client": 1, "tensor": "params/0.weight"},
        "does not mark",
    ),
]


@pytest.mark.parametrize(
    ("law", "method", "where", "said"),
    PLANTED,
    ids=[f"law_{law.number}_{type(method).__name__}" for law, method, *_ in PLANTED],
)
# What is over its limit is refused with a warning.
@pytest.mark.filterwarnings("ignore:W607")
def test_a_planted_mistake_is_found_where_it_is(
    law: Law, method: Method, where: dict[str, Any], said: str
) -> None:
    found = breach(law, toy(method), said)
    assert {name: getattr(found.where, name) for name in where} == where


# What cannot be batched is looped with a warning.
@pytest.mark.filterwarnings("ignore:W501")
def test_law_2_finds_a_method_that_cannot_be_batched() -> None:
    breach(engines.engines_agree, toy(Branches()), "cannot be batched over clients.*: Runtime")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Method], Problem]:
    """Return a function that puts a method into the table, under settings it calls neutral."""

    def made(method: Method, name: str = "planted") -> Problem:
        entry = MethodEntry(
            method=type(method), view="", title="", paper="", personal="", sent="", neutral={}
        )
        monkeypatch.setitem(METHODS.ours, name, entry)
        return toy(method, name)

    return made


@pytest.mark.parametrize(
    "method",
    [
        *(cls(local_epochs=3) for cls in (HeteroFL, PFedGate, TopK, FedEM)),
        FedSelect(local_epochs=3, select="growth", grow_every=1),
    ],
    ids=lambda method: type(method).__name__,
)
def test_law_5_tells_fedavg_from_settings_that_are_not_neutral(
    method: Method, registered: Callable[[Method], Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Devices stay small: what follows them is not FedAvg.
    monkeypatch.setattr(type(method), "budgeted", False)
    law_5 = settings.neutral_settings_give_fedavg
    found = breach(law_5, registered(method), "not that of FedAvg")
    assert found.where.kind == "train"
    assert found.where.tensor
    assert found.where.apart > 1e-6


def test_law_6_finds_a_store_that_writes_to_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures give a method no way to another client's state: the mistake is in the store."""

    @dataclass(frozen=True, kw_only=True)
    class Keeps(Method):
        def client_init(self, task, info):
            return {"params": task.initial}

        def finish(self, task, work, message, client, round):
            upload, _ = super().finish(task, work, message, client, round)
            return upload, {"params": work["params"]}

    states.unsampled_clients_are_untouched(toy(Keeps()))

    put_right = Store.put

    def put(store, ids, given):
        everybody = torch.arange(store.clients)
        put_right(store, everybody, tree.take(given, torch.zeros_like(everybody)))

    monkeypatch.setattr(Store, "put", put)
    found = breach(states.unsampled_clients_are_untouched, toy(Keeps()), "not sampled")
    assert (found.where.kind, found.where.number) == ("train", 1)
    assert found.where.tensor == "clients/params/0.weight"
    # Nobody of that round.
    with toy(Keeps()).simulating(8) as made:
        assert found.where.client not in made.server.participation.cohort(1).tolist()


def test_law_10_finds_settings_that_no_file_can_hold(
    registered: Callable[[Method], Problem],
) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Undecided(Method):
        target: float | None = None

    law_10 = settings.settings_survive_the_configuration
    breach(law_10, registered(Undecided()), "NoneType")

    @dataclass(frozen=True, kw_only=True)
    class Forgetful(Method):
        share: float = 0.5

        def __post_init__(self):
            object.__setattr__(self, "share", self.share / 2)

    breach(law_10, registered(Forgetful()), r"share=0.25.* is read as .*share=0.0625")


def test_every_law_has_a_planted_mistake() -> None:
    elsewhere = {5, 6, 10}
    assert {law.number for law, *_ in PLANTED} | elsewhere == {law.number for law in LAWS}


def test_states_differ_by_names_shapes_types_and_numbers() -> None:
    one = {"a": torch.ones(2), "clients/b": torch.zeros(3, 2)}
    moved = {**one, "clients/b": torch.tensor([[0.0, 0.0], [0.0, 0.25], [1.0, 0.0]])}
    for other, where in (
        ({"a": torch.ones(2)}, Where(tensor="clients/b")),
        ({**one, "a": torch.ones(3)}, Where(tensor="a: float32 [2] and float32 [3]")),
        ({**one, "a": torch.ones(2).long()}, Where(tensor="a: float32 [2] and int64 [2]")),
        (moved, Where(tensor="clients/b", client=1, apart=1.0)),
    ):
        with pytest.raises(LawBroken) as caught:
            equal(one, other, "different")
        assert caught.value.where == where
    close(one, {**one, "a": torch.full((2,), 1 + 1e-6)}, 1e-5, "different")
    for other in (torch.full((2,), 1 + 1e-4), torch.tensor([1.0, torch.nan])):
        with pytest.raises(LawBroken, match="different; 1 of 2 tensors differ"):
            close(one, {**one, "a": other}, 1e-5, "different")
    with pytest.raises(LawBroken):
        # A mask is equal or it is not.
        close({"keep": torch.tensor([1])}, {"keep": torch.tensor([2])}, 10.0, "different")


def test_a_place_is_told_from_inside_to_outside() -> None:
    with pytest.raises(LawBroken) as caught, at(kind="train", client=3), at(stage="s", client=1):
        raise ValueError("wrong")
    assert caught.value.where == Where(kind="train", stage="s", client=1)
    assert caught.value.text == "ValueError: wrong"
    where = replace(caught.value.where, phase="warm", number=0, tensor="w", apart=0.1234)
    said = "train round, number 0, phase warm, stage `s`, client 1, tensor `w`, 0.12 apart"
    assert str(where) == said
