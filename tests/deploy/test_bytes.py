"""The law over bytes: clients behind encoded messages train what the loop trains, bit for bit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from masquerade.core import Task, tree
from masquerade.core.part import Message, Part
from masquerade.data.loader import BatchLoader
from masquerade.deploy.client import Client, alone
from masquerade.deploy.measure import Adapted, ClientReport, Measurer
from masquerade.engine.exchange import Channel
from masquerade.engine.loop import Loop
from masquerade.engine.remote import Call, Exchanged, Remote
from masquerade.evaluation.accuracy import mean_of
from masquerade.evaluation.evaluate import Evaluator
from masquerade.laws.toy import BUDGETS, SIZES, federation, network_of
from masquerade.simulation.build import Simulation
from masquerade.simulation.server import train
from masquerade.simulation.state import RunState
from tests.support import METHOD_TABLE, built, raises, warns
from tests.wire.parts import HEADER, forged

ROUNDS = 4
RUN = "toy"


def simulated(method, **settings) -> Simulation:
    """Six ragged clients, four of whom are asked in a round."""
    given = {"rounds": ROUNDS, "batch_size": 4, "participation": 0.7, "lr_decay": 0.9} | settings
    return built(method, Task(network_of(method)), federation(), budgets=BUDGETS, seed=5, **given)


@dataclass
class InMemory:
    """Clients in this process, some of whose replies are lost after they have done their work."""

    clients: dict[int, Client]
    lost: Mapping[int, set[int]] = field(default_factory=dict)
    """By round."""
    spoiled: set[int] = field(default_factory=set)
    """Clients whose replies arrive with a bit flipped."""
    calls: list[Call] = field(default_factory=list)

    def exchange(self, calls: Sequence[Call]) -> Exchanged:
        self.calls += calls
        found = {}
        for call in calls:
            reply = self.clients[call.client].answer(call)
            if call.client in self.spoiled and reply.body:
                body = bytearray(reply.body)
                body[-1] ^= 1
                reply = replace(reply, body=bytes(body))
            if call.kind != "train" or call.client not in self.lost.get(call.number, set()):
                found[call.client] = reply
        return Exchanged(found)


def far(made: Simulation, folder: Path) -> tuple[Simulation, InMemory]:
    """The same federation with every client behind bytes, and its states in files."""
    clients = {}
    for id, info in enumerate(made.server.clients):
        own = BatchLoader(alone(made.federation, id), made.spec.seed, made.spec.train.batch_size)
        (folder / str(id)).mkdir(parents=True)
        clients[id] = Client(RUN, replace(made.context, loader=own), info, folder / str(id))
    transport = InMemory(clients)
    engine = Remote(made.context, RUN, made.server.clients, transport)
    server = replace(made.server, holds_clients=False)
    return replace(made, server=server, engine=engine), transport


def trained(made: Simulation) -> RunState:
    return train(made.server, made.engine, made.begin())


def lost_in(made: Simulation) -> dict[int, set[int]]:
    """By round, the clients whose answer the simulator loses."""
    found = {}
    for number in range(ROUNDS):
        asked = made.server.participation.cohort(number)
        back = made.server.participation.returning(number, asked)
        found[number] = set(asked.tolist()) - set(asked[back].tolist())
    return found


def are_equal(here: RunState, there: RunState, clients: Mapping[int, Client]) -> None:
    """Server, rows and sessions as the loop has them; states as clients have them in files."""
    left, right = here.tensors(), there.tensors()
    shared = {name for name in left if not name.startswith("clients/")}
    assert shared == set(right) - {"session/turn"}
    for name in shared:
        assert torch.equal(left[name], right[name]), name
    for id, client in clients.items():
        base = client.channel.base(there.session.one(id))
        found = tree.named(client.load(base).client)
        wanted = tree.named(tree.take(here.clients.state, id))
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(found[name], value), (id, name)


@pytest.mark.parametrize("name", METHOD_TABLE)
def test_clients_behind_bytes_are_the_loop_with_lost_replies(name: str, tmp_path: Path) -> None:
    here = simulated(METHOD_TABLE[name], drop=0.3)
    there, transport = far(simulated(METHOD_TABLE[name]), tmp_path)
    transport.lost = lost_in(here)
    assert any(transport.lost.values())
    mine, theirs = trained(here), trained(there)
    are_equal(mine, theirs, transport.clients)
    for way in ("down", "up", "values_down", "values_up"):
        assert mine.costs["train"][way] == theirs.costs["train"][way], way


ROUNDED = ("fedavg", "dmpfl", "pfedgate")
"""Of all methods, those that `make test` rounds; `make drill` rounds the others too."""


@pytest.mark.parametrize(
    "name",
    [n if n in ROUNDED else pytest.param(n, marks=pytest.mark.drill) for n in METHOD_TABLE],
)
def test_rounded_messages_are_rounded_alike(name: str, tmp_path: Path) -> None:
    here = simulated(METHOD_TABLE[name], drop=0.3, message_dtype="int8")
    there, transport = far(simulated(METHOD_TABLE[name], message_dtype="int8"), tmp_path)
    transport.lost = lost_in(here)
    are_equal(trained(here), trained(there), transport.clients)


@pytest.mark.parametrize("name", ["fedavg", "dmpfl", "fedmask", "pfedgate", "fedselect"])
def test_clients_measure_themselves_what_the_simulator_measures(name: str, tmp_path: Path) -> None:
    here = simulated(METHOD_TABLE[name])
    there, transport = far(simulated(METHOD_TABLE[name]), tmp_path)
    for id, client in transport.clients.items():
        measure = Measurer(Evaluator.of(alone_at(here, id)), id)

        def told(adapted: Adapted, measure: Measurer = measure) -> bytes:
            return measure(adapted)[0].to_bytes()

        transport.clients[id] = replace(client, measure=told)
    mine, theirs = trained(here), trained(there)
    for view in here.server.method.views:
        ids = torch.tensor(here.server.known)
        round = here.server.round("adapt", mine.number, (view, False))
        job = there.server.make_job(theirs, ids, round)
        wanted = Evaluator.of(here).measure(mine, view, list(here.federation.test)).scores
        for final in (False, True):
            found = there.engine.reports(job, final)
            for id, scores in enumerate(wanted):
                report = ClientReport.from_bytes(found[id].body)
                assert report.own == mean_of(scores)
                assert report.tests == len(scores)
                assert (report.final is not None) == final


def alone_at(made: Simulation, id: int) -> Simulation:
    """A simulation of one client alone, of which nothing but its samples is used."""
    own = alone(made.federation, id)
    context = replace(made.context, loader=replace(made.context.loader, federation=own))
    server = replace(made.server, clients=made.server.clients[: id + 1], known=(id,))
    evaluate = replace(made.spec.evaluate, degrees=(0,))
    spec = replace(made.spec, federation=own, evaluate=evaluate)
    return replace(
        made, spec=spec, server=server, federation=own, context=context, engine=Loop(context)
    )


def test_a_call_says_nothing_but_the_download(tmp_path: Path) -> None:
    there, transport = far(simulated(METHOD_TABLE["dmpfl"]), tmp_path)
    state = trained(there)
    assert state.costs["train"]["down"] == sum(len(call.body) for call in transport.calls)
    assert not tree.leaves(state.clients.state)


def test_a_server_holds_no_models_of_clients_that_it_knows(tmp_path: Path) -> None:
    there, _ = far(simulated(METHOD_TABLE["dmpfl"]), tmp_path)
    trained(there)
    engine = there.engine
    assert isinstance(engine, Remote)
    round = there.context.round("train", there.context.method.schedule(0, ROUNDS), 0)
    held = tree.leaves(engine.channel(0).templates(round, 0))
    assert sum(values.numel() for values in held) > 50
    assert all(values.untyped_storage().nbytes() <= 8 for values in held)


def test_an_answer_that_cannot_be_read_counts_as_lost(tmp_path: Path, golden) -> None:
    there, transport = far(simulated(METHOD_TABLE["fedavg"]), tmp_path)
    transport.spoiled = {2}
    with warns("W608", 2) as warned:
        state = trained(there)
    golden(warned[0].message)
    assert state.sampled[2] > 0
    assert state.answered[2] == 0


class Masking(Channel):
    """A client's end that sends masks which its template has not."""

    def write_upload(self, number: int, message: Message, *rest: Any) -> bytes:
        masked = {
            name: Part(part.values, {t: torch.ones_like(v).bool() for t, v in part.values.items()})
            for name, part in message.items()
        }
        return super().write_upload(number, masked, *rest)


def test_who_sends_masks_that_nobody_asked_for_is_lost_and_the_round_is_not(tmp_path: Path) -> None:
    there, transport = far(simulated(METHOD_TABLE["fedavg"]), tmp_path / "hostile")
    one = transport.clients[2]
    vars(one)["channel"] = Masking(RUN, one.context, one.info)
    without, lossy = far(simulated(METHOD_TABLE["fedavg"]), tmp_path / "lost")
    lossy.lost = {number: {2} for number in range(ROUNDS)}
    with warns("W608", 2):
        found = trained(there).tensors()
    wanted = trained(without).tensors()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_a_download_with_a_mask_that_its_method_has_not_is_refused(tmp_path: Path) -> None:
    there, transport = far(simulated(METHOD_TABLE["pfedgate"]), tmp_path)
    trained(there)
    call = transport.calls[-1]
    body = bytearray(call.body)
    assert body[HEADER : HEADER + 2] == b"\x01\x00"
    body[HEADER + 1] = 1
    with raises("E605"):
        transport.clients[call.client].answer(replace(call, body=forged(bytes(body))))


def test_a_client_keeps_two_states_and_refuses_a_third(tmp_path: Path, golden) -> None:
    there, transport = far(simulated(METHOD_TABLE["ditto"]), tmp_path)
    trained(there)
    for id, size in enumerate(SIZES):
        assert size
        assert len(list((tmp_path / str(id)).iterdir())) <= 2
    old = next(call for call in transport.calls if call.number == 0)
    client = transport.clients[old.client]
    with raises("E606", f"{7:016x}") as refusal:
        client.answer(replace(old, base=7))
    golden(refusal.value)
    with raises("E606", old.client):
        client.answer(replace(old, run="another"))


def test_models_and_samples_stay_at_clients(tmp_path: Path, golden) -> None:
    there, _ = far(simulated(METHOD_TABLE["fedavg"]), tmp_path)
    with raises("E608") as refusal:
        assert there.engine.federation
    golden(refusal.value)
