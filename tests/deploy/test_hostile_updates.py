"""Hostile answers of one client: a round is bit for bit what it is without that client."""

import math
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from masquerade.core import Method, Part, tree
from masquerade.core.part import Message
from masquerade.deploy.client import Client
from masquerade.engine.remote import Call, Exchanged, Reply
from masquerade.errors import MasqueradeWarning
from masquerade.simulation.server import train
from tests.deploy.test_bytes import RUN, far, simulated
from tests.reliability import publish
from tests.support import METHOD_TABLE, raises

HEAD, CHECK = struct.Struct("<2sBBIIQ"), struct.Struct("<I")
FIELDS = ("magic", "version", "parts", "round", "client", "base")


def restamped(field: str) -> Callable[[Reply], Reply]:
    """Another number in the header, under a right checksum."""

    def change(reply: Reply) -> Reply:
        head = dict(zip(FIELDS, HEAD.unpack_from(reply.body), strict=True))
        head[field] = b"MP" if field == "magic" else head[field] ^ 1
        body, packed = reply.body[HEAD.size + CHECK.size :], HEAD.pack(*head.values())
        checksum = CHECK.pack(zlib.crc32(body, zlib.crc32(packed)))
        return replace(reply, body=packed + checksum + body)

    return change


def of_body(change: Callable[[bytes], bytes]) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, body=change(reply.body))


def of_flops(change: Callable[[list[list[float]]], Any]) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, flops=change([list(each) for each in reply.flops]))


ANSWERS: dict[str, Callable[[Reply], Reply]] = {
    **{f"another {each}": restamped(each) for each in FIELDS},
    "nothing": of_body(lambda body: b""),
    "cut": of_body(lambda body: body[: len(body) // 2]),
    "a byte more": of_body(lambda body: body + b"\0"),
    "a bit flipped": of_body(lambda body: body[:-3] + bytes([body[-3] ^ 4]) + body[-2:]),
    "noise": of_body(lambda body: bytes(range(256)) * 4),
    "a thousand times": of_body(lambda body: body * 1000),
    "no number of operations": of_flops(lambda columns: [[math.nan] * len(columns[0])] * 4),
    "operations below zero": of_flops(lambda columns: [[-1.0] * len(columns[0])] * 4),
    "operations of other layers": of_flops(lambda columns: [*columns[:-1], [1.0]]),
}
"""What is done to an honest answer on its way."""

Spoil = Callable[[Part], Part]


def number(value: float) -> Spoil:
    """The first number that is meant is another one."""

    def spoil(part: Part) -> Part:
        for name, values in part.values.items():
            held = part.held(name)
            meant = torch.ones_like(values, dtype=torch.bool) if held is None else held
            if values.is_floating_point() and meant.any():
                new = values.clone()
                new.view(-1)[int(meant.flatten().nonzero()[0])] = value
                return replace(part, values={**part.values, name: new})
        raise AssertionError("there is no number")

    return spoil


def shorter(part: Part) -> Part:
    name = next(iter(part.values))
    keep = {n: bits for n, bits in part.keep.items() if n != name}
    return replace(part, values={**part.values, name: part.values[name].reshape(-1)[:1]}, keep=keep)


def fewer(part: Part) -> Part:
    _, *rest = part.values
    return replace(
        part,
        values={name: part.values[name] for name in rest},
        keep={name: bits for name, bits in part.keep.items() if name in rest},
    )


def inflated(part: Part) -> Part:
    return replace(part, keep=tree.each(torch.ones_like, part.keep))


def masked_otherwise(part: Part) -> Part:
    """A mask where the form has none, or none where it has one."""
    name = next(iter(part.values))
    rest = {tensor: bits for tensor, bits in part.keep.items() if tensor != name}
    whole = torch.ones_like(part.values[name], dtype=torch.bool)
    return replace(part, keep=rest if name in part.keep else {**rest, name: whole}, grain={})


CONTENTS: dict[str, Spoil] = {
    "NaN": number(math.nan),
    "infinity": number(math.inf),
    "minus infinity": number(-math.inf),
    "a shape that would be broadcast": shorter,
    "a tensor left out": fewer,
    "a tensor too many": lambda part: replace(
        part, values={**part.values, "zz": torch.ones(3, dtype=torch.float64)}
    ),
    "a mask against the form": masked_otherwise,
    "mask inflation": inflated,
}
"""What a client sends that writes its messages as an honest one does."""
BUDGETED = ("dmpfl", "fedselect", "topk", "feddst")
KINDS = {
    name: [*ANSWERS, *(each for each in CONTENTS if each != "mask inflation" or name in BUDGETED)]
    for name in ("fedavg", *BUDGETED)
}


def hostile(method: Method, spoil: Spoil) -> Method:
    """The method, whose clients send something else."""

    def finish(self: Any, *given: Any) -> tuple[Message, Any]:
        upload, client = type(method).finish(self, *given)
        return {name: spoil(part) for name, part in upload.items()}, client

    cls = type("Hostile", (type(method),), {"finish": finish})
    made: Method = cls(**vars(method))
    return made


@dataclass
class OneHostile:
    """Clients in this process, of whom one answers as an attacker does."""

    clients: dict[int, Client]
    attacker: int
    kind: str = ""
    """"" loses its answer."""
    honest: dict[int, Reply] = field(default_factory=dict)

    def exchange(self, calls: Sequence[Call]) -> Exchanged:
        found = {}
        for call in calls:
            if call.client not in self.honest:
                self.honest[call.client] = self.clients[call.client].answer(call)
            reply = self.honest[call.client]
            if call.client == self.attacker:
                if not self.kind:
                    continue
                reply = self._spoiled(call, reply)
            found[call.client] = reply
        return Exchanged(found)

    def _spoiled(self, call: Call, reply: Reply) -> Reply:
        if self.kind in ANSWERS:
            return ANSWERS[self.kind](reply)
        client = self.clients[call.client]
        method = hostile(client.context.method, CONTENTS[self.kind])
        false = Client(RUN, replace(client.context, method=method), client.info, client.folder)
        return false.answer(call)


@dataclass
class Silent:
    """Clients of whom none answers."""

    calls: list[Call] = field(default_factory=list)

    def exchange(self, calls: Sequence[Call]) -> Exchanged:
        self.calls += calls
        return Exchanged({})


def after_a_round(made: Any) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MasqueradeWarning)
        state = train(made.server, made.engine, made.begin(), until=1)
    return {n: v for n, v in state.tensors().items() if not n.startswith("participation/")}


def assert_absent(name: str, position: int, folder: Path) -> int:
    """Every kind of answer leaves what the loss of it leaves; return how many were tried."""
    method = replace(METHOD_TABLE[name], local_epochs=2)
    if name == "fedselect":
        # Whose search may end before a pruning sends nothing at first, and has nothing to lie in.
        method = replace(method, stop="iterations")
    made, transport = far(simulated(method), folder)
    attacker = int(made.server.participation.cohort(0)[position])
    crowd = OneHostile(transport.clients, attacker)
    made = replace(made, engine=replace(made.engine, transport=crowd))
    absent = after_a_round(made)
    begun = {n: v for n, v in made.begin().tensors().items() if n in absent}
    assert any(not torch.equal(absent[n], begun[n]) for n in begun)
    for kind in KINDS[name]:
        crowd.kind = kind
        found = after_a_round(made)
        assert found.keys() == absent.keys()
        assert [n for n in found if not torch.equal(found[n], absent[n])] == [], kind
    return len(KINDS[name])


@pytest.mark.parametrize(("name", "position"), [("fedavg", 3), ("dmpfl", 0), ("fedselect", 2)])
def test_a_hostile_answer_is_as_if_its_client_were_absent(
    name: str, position: int, tmp_path: Path
) -> None:
    assert assert_absent(name, position, tmp_path) >= 20


@pytest.mark.drill
@pytest.mark.timeout(1700)
def test_hostile_answers_at_every_position_are_as_if_their_client_were_absent(
    tmp_path: Path,
) -> None:
    places = [(name, position) for name in KINDS for position in (0, 1, 3)]
    tried = sum(assert_absent(n, p, tmp_path / f"{n}-{p}") for n, p in places)
    assert tried >= 300
    figures = {"updates": tried, "methods": len(KINDS), "positions": 3}
    publish("hostile-updates", "pytest tests/deploy/test_hostile_updates.py -m drill", figures)


@pytest.mark.parametrize("name", ["fedavg", "dmpfl"])
@pytest.mark.parametrize("value", [1e38, -1e6])
def test_a_finite_lie_is_bounded_by_what_honest_clients_send(
    name: str, value: float, tmp_path: Path
) -> None:
    rule = {"aggregation": "median", "min_contributors": 3}
    method = replace(METHOD_TABLE[name], local_epochs=2)
    made, transport = far(simulated(method, **rule), tmp_path)
    attacker = int(made.server.participation.cohort(0)[1])
    crowd = OneHostile(transport.clients, attacker)
    made = replace(made, engine=replace(made.engine, transport=crowd))
    absent = after_a_round(made)
    sent = absent["server/params/0.weight"].abs().max()
    CONTENTS["a lie"] = number(value)
    crowd.kind = "a lie"
    found = after_a_round(made)
    del CONTENTS["a lie"]
    changed = {n for n in found if not torch.equal(found[n], absent[n])}
    assert changed
    assert float(found["server/params/0.weight"].abs().max()) < 2 * float(sent)


def test_a_client_whose_own_state_is_not_finite_keeps_the_last_good_one(tmp_path, golden) -> None:
    method = METHOD_TABLE["ditto"]
    made, transport = far(simulated(method), tmp_path)
    silent = Silent()
    after_a_round(replace(made, engine=replace(made.engine, transport=silent)))
    call = silent.calls[0]
    client = transport.clients[call.client]

    def finish(self: Any, *given: Any) -> tuple[Message, Any]:
        upload, kept = type(method).finish(self, *given)
        return upload, tree.transform(lambda value: value * math.nan, kept)

    ill = type("Ill", (type(method),), {"finish": finish})(**vars(method))
    with raises("E629", f"client {call.client}", "round 1") as refusal:
        replace(client, context=replace(client.context, method=ill)).answer(call)
    golden(refusal.value)
    assert not list(client.folder.iterdir())
    client.answer(call)
    assert len(list(client.folder.iterdir())) == 1
