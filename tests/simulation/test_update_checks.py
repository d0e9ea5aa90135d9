"""Updates are checked before aggregation: a refused one leaves but a line and a warning."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from masquerade.core.part import Axis, Blocks, Message, Part
from masquerade.core.tree import leaves, named, stack
from masquerade.engine.base import Engine, Job, Outcome
from masquerade.errors import MasqueradeWarning
from masquerade.simulation import update_checks
from masquerade.simulation.build import Simulation
from masquerade.simulation.participation import Drawn
from masquerade.simulation.state import RunState
from tests.messages import Golden
from tests.support import METHOD_TABLE, advance, final, measure, restored, simulation, warns

make: Callable[..., Any] = simulation
Poison = Callable[[Message, int], Message]


@dataclass
class Poisoned:
    """An engine some of whose uploads are replaced before the server sees them."""

    inner: Engine
    poison: Poison
    places: tuple[int, ...]
    name: str = "poisoned"

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds and spoil some of them."""
        done = self.inner.work(job)
        uploads = done.uploads
        for place in self.places:
            uploads = self.poison(uploads, place)
        return replace(done, uploads=uploads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass(frozen=True)
class Returning(Drawn):
    """A cohort of which certain places return."""

    rest: Tensor

    def returning(self, number: int, ids: Tensor) -> Tensor:
        """Return these places."""
        return self.rest


def spoiled(value: float, meant: bool = True) -> Poison:
    """One number of one client is another one, the last that is meant, or that is not."""

    def poison(uploads: Message, place: int) -> Message:
        for name, part in uploads.items():
            for tensor, values in part.values.items():
                held = part.held(tensor)
                some = torch.ones_like(values, dtype=torch.bool) if held is None else held
                wanted = some[place].flatten() == meant
                if values.is_floating_point() and wanted.any():
                    new = values.clone()
                    new[place].view(-1)[int(wanted.nonzero()[-1])] = value
                    spoilt = replace(part, values={**part.values, tensor: new})
                    return {**uploads, name: spoilt}
        raise AssertionError("there is no such number")

    return poison


def inflated(uploads: Message, place: int) -> Message:
    """One client claims every entry."""
    spoilt = {}
    for name, part in uploads.items():
        keep = {tensor: bits.clone() for tensor, bits in part.keep.items()}
        for bits in keep.values():
            bits[place] = True
        spoilt[name] = replace(part, keep=keep)
    return spoilt


def trained(name: str, places: tuple[int, ...], poison: Poison | None) -> RunState:
    """Train with some places of every cohort of four spoiled, or lost where nothing spoils them."""
    made: Simulation = make(METHOD_TABLE[name], rounds=2)
    progress = made.begin()
    if poison is None:
        rest = torch.tensor([place for place in range(4) if place not in places], dtype=torch.int64)
        made = replace(
            made,
            server=replace(
                made.server, participation=Returning(**vars(made.server.participation), rest=rest)
            ),
        )
    else:
        made = replace(made, engine=Poisoned(made.engine, poison, places))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MasqueradeWarning)
        while progress.number < 2:
            advance(made, progress)
    return progress


def assert_same(one: RunState, other: RunState) -> None:
    """Server, rows, clients and sessions, bit for bit."""
    left, right = (
        {n: v for n, v in state.tensors().items() if not n.startswith("participation/")}
        for state in (one, other)
    )
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


NAMES = ["fedavg", "dmpfl", "pfedgate", "fedselect_grow", "topk", "heterofl", "scaffold", "fedem"]
# Places in a cohort are the server's affair: a method with little state and one with much try all.
ENDS = [(name, places) for name in NAMES[:2] for places in ((0,), (3,))]


@pytest.mark.parametrize(("name", "places"), [*((name, (1, 2)) for name in NAMES), *ENDS])
def test_a_refused_update_is_as_if_its_client_were_absent(
    name: str, places: tuple[int, ...]
) -> None:
    absent = trained(name, places, None)
    refused = trained(name, places, spoiled(math.nan))
    assert_same(absent, refused)
    assert (absent.refused, refused.refused) == (0, 2 * len(places))
    # What was refused had been received, what was lost had not.
    assert refused.costs["train"]["up"] > absent.costs["train"]["up"]
    assert refused.costs["train"]["down"] == absent.costs["train"]["down"]


@dataclass
class IllStates(Poisoned):
    """An engine some of whose clients come to hold a number that is none."""

    def work(self, job: Job) -> Outcome:
        """Do the clients' rounds and spoil some states."""
        done = self.inner.work(job)
        for leaf in leaves(done.clients):
            if leaf.is_floating_point():
                for place in self.places:
                    leaf[place].view(-1)[-1] = math.nan
        return done


@pytest.mark.parametrize("name", ["dmpfl", "pfedgate", "ditto", "scaffold"])
def test_a_client_whose_own_state_is_ill_keeps_the_last_good_one(name: str) -> None:
    made: Simulation = make(METHOD_TABLE[name], rounds=2)
    made = replace(made, engine=IllStates(made.engine, lambda uploads, _: uploads, (0, 2)))
    progress = made.begin()
    with warns("W604"):
        lines = [advance(made, progress) for _ in range(2)]
    assert progress.refused == 4
    assert [set(line.refused.values()) for line in lines] == [{"W604"}] * 2
    assert progress.diverged is None
    assert_same(trained(name, (0, 2), None), progress)


def test_a_state_that_begins_infinite_may_stay_so() -> None:
    """A method may hold the best loss so far."""
    fine = {"best": torch.tensor([math.inf, 1.0, math.inf])}
    uploads = stack([{"p": Part({"w": torch.ones(2)})}] * 3)
    before = {"best": torch.tensor([math.inf, math.inf, 1.0])}
    assert update_checks.refusals(uploads, [{}] * 3, fine, lambda: before) == {2: "W604"}
    assert update_checks.refusals({}, [{}] * 3, fine, lambda: before) == {2: "W604"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("topk", {"ranking": "overall"}),
        ("fedselect", {"ranking": "overall", "stop": "iterations"}),
        ("fedselect", {"ranking": "tensor", "stop": "iterations"}),
        ("fedselect", {"share_of": "survivors", "iterations": 2, "stop": "iterations"}),
        ("fedselect", {"share_of": "survivors", "stop": "share", "target_share": 0.3}),
    ],
)
def test_budgets_are_what_honest_clients_send_at_most(name: str, settings: dict[str, Any]) -> None:
    """Nobody honest is refused, and whoever claims everything is."""
    method = replace(METHOD_TABLE[name], **settings)
    made: Simulation = make(method, rounds=2)
    progress = made.begin()
    for _ in range(2):
        assert advance(made, progress).refused == {}
    made = replace(made, engine=Poisoned(made.engine, inflated, (1,)))
    progress = made.begin()
    with warns("W607"):
        assert list(advance(made, progress).refused.values()) == ["W607"]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_values_are_refused_too(value: float) -> None:
    assert_same(trained("fedavg", (2,), None), trained("fedavg", (2,), spoiled(value)))


def test_a_mask_over_its_budget_is_refused() -> None:
    """Who claims every entry would alone decide those that nobody else holds."""
    for places in ((0,), (1, 3)):
        refused = trained("dmpfl", places, inflated)
        assert_same(trained("dmpfl", places, None), refused)
        assert refused.refused == 2 * len(places)


def test_a_structure_over_its_budget_is_refused_in_the_hello() -> None:
    """FedMask's structures are sent there and nowhere else; who has none decides no pruned bit."""
    made: Simulation = make(METHOD_TABLE["fedmask"], rounds=1, participation=1.0)
    made = replace(made, engine=Poisoned(made.engine, inflated, (1,)))
    progress = made.begin()
    bad = int(made.server.participation.eligible[1])
    with warns("W607", f"client {bad}"):
        line = advance(made, progress)
    assert line.refused_setup == {str(bad): "W607"}
    assert progress.refused == 1
    assert bad in line.clients
    structures = progress.rows.state["structure"]
    assert structures
    for name, keep in structures.items():
        assert keep[bad].all()
        honest = keep.sum(0) - 1
        assert torch.equal(progress.server["defined"][name], honest >= 2)
        assert (honest == 1).any()


@pytest.mark.parametrize(("poison", "code"), [(inflated, "W607"), (spoiled(math.nan), "W604")])
def test_a_novel_client_that_is_refused_is_as_if_it_had_not_been_asked(
    poison: Poison, code: str
) -> None:
    made, progress = make_novel("dmpfl")
    view, asked = made.server.method.views[0], [torch.arange(2)] * 6
    honest = measure(made, progress, view, asked, novel=True).models
    made = replace(made, engine=Poisoned(made.engine, poison, (0,)))
    with warns(code, "client 1", "round 2"):
        found = measure(made, progress, view, asked, novel=True).models
    assert_equal(found[1], honest[1])
    # Nobody asked client 1: it has what every client begins with, and the server's model of now.
    ids = torch.tensor([1])
    rows, clients = progress.rows.take(ids), progress.clients.take(ids)
    job = Job(progress.server, rows, clients, {}, ids, made.server.round("train", 1), 2)
    used = replace(job, round=made.context.round("adapt", (view, True), 2))
    assert_equal(found[0], made.engine.evaluate(used, [torch.arange(2)]).models[0])
    summary = final(made, progress)[0][0]
    assert summary.novel.refused == {"1": code}
    assert summary.refused == 0


def test_a_novel_clients_structure_over_its_budget_is_refused_in_the_hello(golden: Golden) -> None:
    made, progress = make_novel("fedmask")
    made = replace(made, engine=Poisoned(made.engine, inflated, (0,)))
    with warns("W607", "client 1") as warned:
        found = measure(made, progress, "personal", [torch.arange(2)] * 6, novel=True).models
    golden(warned[-1].message)
    refused, taken = ([keep.all() for keep in one["bits"].keep.values()] for one in found)
    assert refused
    assert all(refused)
    assert not all(taken)


def make_novel(name: str) -> tuple[Simulation, RunState]:
    """Train with clients 1 and 4 kept out."""
    made: Simulation = make(METHOD_TABLE[name], rounds=2, novel=(1, 4))
    progress = made.begin()
    for _ in range(2):
        advance(made, progress)
    return made, progress


def assert_equal(one: Message, other: Message) -> None:
    """Two models, bit for bit."""
    left, right = named(one), named(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_what_a_mask_hides_may_be_anything() -> None:
    clean, hidden = (trained("dmpfl", (0,), p) for p in (lambda u, _: u, spoiled(math.nan, False)))
    assert hidden.refused == 0
    assert_same(clean, hidden)


def test_a_refusal_is_reported_once_and_counted_always() -> None:
    made: Simulation = make(METHOD_TABLE["fedavg"], rounds=3)
    made = replace(made, engine=Poisoned(made.engine, spoiled(math.nan), (1,)))
    progress = made.begin()
    with pytest.warns(MasqueradeWarning) as seen:
        lines = [advance(made, progress) for _ in range(3)]
    (warning,) = (str(each.message) for each in seen)
    cohort = made.server.participation.cohort(0).tolist()
    assert f"W604 client {cohort[1]}, round 1: values that are not finite" in warning
    for number, line in enumerate(lines):
        bad = made.server.participation.cohort(number).tolist()[1]
        assert line.refused == {str(bad): "W604"}
        assert bad not in line.clients
        assert len(line.clients) == 3
    resumed = restored(made, progress.number, progress.tensors(), progress.facts())
    assert resumed.refused == 3
    summary = final(made, progress)[0][0]
    assert (summary.refused, summary.diverged) == (3, None)


def test_a_round_that_is_refused_altogether_is_said_and_as_if_all_were_absent() -> None:
    everybody = (0, 1, 2, 3)
    absent = trained("fedavg", everybody, None)
    refused = trained("fedavg", everybody, spoiled(math.nan))
    assert_same(absent, refused)
    assert (absent.diverged, refused.diverged) == (None, None)
    assert (absent.refused, refused.refused) == (0, 8)
    made: Simulation = make(METHOD_TABLE["fedavg"], rounds=2)
    made = replace(made, engine=Poisoned(made.engine, spoiled(math.nan), everybody))
    progress = made.begin()
    with pytest.warns(MasqueradeWarning) as seen:
        lines = [advance(made, progress) for _ in range(2)]
    first, round = (str(each.message) for each in seen)
    assert "round 1: values that are not finite; its update is ignored" in first
    assert "W604 round 1: no update is finite, so the round changes nothing" in round
    for number, line in enumerate(lines):
        assert line.clients == ()
        assert line.refused == {
            str(id): "W604" for id in made.server.participation.cohort(number).tolist()
        }


def test_entries_are_counted_by_what_a_bit_covers() -> None:
    rows = Part({"w": torch.ones(3, 4)}, {"w": torch.tensor([True, False, True])}, {"w": Axis(0)})
    blocks = Part({"w": torch.ones(9)}, {"w": torch.tensor([True, True])}, {"w": Blocks((2, 7))})
    whole, flags = Part({"w": torch.ones(5)}), Part({"w": torch.tensor([True, False])})
    for part, entries in ((rows, 8), (blocks, 9), (whole, 5), (flags, 2)):
        uploads = stack([{"p": part}] * 3)
        limits = [{"w": entries}, {"w": entries - 1}, {"other": 0}]
        assert update_checks.refusals(uploads, limits) == {1: "W607"}


def test_no_upload_is_no_refusal() -> None:
    assert update_checks.refusals({}, [{}, {}]) == {}
    assert update_checks.refusals({"p": Part({"w": torch.ones(0, 3)})}, []) == {}
    assert update_checks.refusals({"p": Part({})}, [{"w": 1}]) == {}


def test_finite_values_are_taken_whatever_their_sum_and_shape() -> None:
    """Their sum is infinite, and one of them is a scalar."""
    fine = {"p": Part({"w": torch.tensor([3e38, 3e38]), "s": torch.tensor(2.0)})}
    bad = {"p": Part({"w": torch.tensor([1.0, 3e38]), "s": torch.tensor(math.nan)})}
    assert update_checks.refusals(stack([fine, bad, fine]), [{}] * 3) == {1: "W604"}
